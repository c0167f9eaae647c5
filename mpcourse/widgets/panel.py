"""A box of controls that screen readers can name.

ipywidgets 8.1 names neither the handle of a slider, nor buttons of `Play`, nor a row of buttons,
and does not say which of them is pressed. Source: w3.org/WAI/ARIA/apg/patterns.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import ipywidgets

NAMES = Path(__file__).with_name("names.js").read_text(encoding="utf-8")
# A picture that is not there: what it does about that is how a widget's HTML can run something.
RUN = f'<img src="data:," alt="" onerror="{escape(NAMES)}">'


class Panel(ipywidgets.VBox):
    """Widgets below one another, each with the name and state that it shows."""

    def __init__(self, children: Sequence[ipywidgets.Widget]) -> None:
        super().__init__([*children, ipywidgets.HTML(RUN, layout={"display": "none"})])
