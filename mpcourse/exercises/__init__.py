"""The exercises, one module a page: `check_NAME(attempt)` returns a `Verdict`.

An exercise is one thing in one place: its solution, its cases, the wrong answers that people give
with the words for each. Pages write `from mpcourse.exercises import check_ceiling`, and import the
module of that check only: what all of them need takes seconds to import.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, Verdict

PAGE_OF = {  # a check's name -> its module, read in the sources
    name: path.stem
    for path in sorted(Path(__file__).parent.glob("*.py"))
    for name in re.findall(r"^(check_\w+) = ", path.read_text(encoding="utf-8"), re.MULTILINE)
}


class Pages(Mapping[str, dict[str, Exercise]]):
    """Page -> the name of each check -> its exercise; a page is imported when it is asked for."""

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(PAGE_OF.values()))

    def __len__(self) -> int:
        return len({*PAGE_OF.values()})

    def __getitem__(self, page: str) -> dict[str, Exercise]:
        own = [name for name, stem in PAGE_OF.items() if stem == page]
        if not own:
            raise KeyError(page)
        module = importlib.import_module(f"{__name__}.{page}")
        return {name: getattr(module, name) for name in own}


PAGES = Pages()


def __getattr__(name: str) -> Exercise:
    if name not in PAGE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return PAGES[PAGE_OF[name]][name]
