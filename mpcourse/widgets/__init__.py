"""Thin ipywidgets shells around the figures; the only package that knows ipywidgets.

Each widget shows a picture by setting `HTML.value`: no output is captured, so the pages hold under
nbval, and both ipywidgets 7.7 (Colab) and 8 have all that is used. The text form of each widget
says what it shows, for readers on a page without a kernel.
"""

from mpcourse.widgets.explorer import (
    Explorer,
    picture_slider,
    scatter_explorer,
    slider,
)
from mpcourse.widgets.layouts import (
    layout_explorer,
    layout_view,
)
from mpcourse.widgets.prediction import predict
from mpcourse.widgets.rank_bytes import fit_explorer, fit_view
from mpcourse.widgets.schedules import schedule_explorer, schedule_view
from mpcourse.widgets.sparsity import sparsity_explorer, sparsity_study
from mpcourse.widgets.split_size import split_explorer
