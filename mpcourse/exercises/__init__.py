"""The exercises, one module a page: `check_NAME(attempt)` returns a `Verdict`.

An exercise is one thing in one place: its solution, its cases, the wrong answers that people give
with the words for each. Pages write `from mpcourse.exercises import check_ceiling`.
"""

import importlib
import pkgutil

from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, Verdict

PAGES: dict[str, dict[str, Exercise]] = {}  # page -> the name of each check -> its exercise
for _module in pkgutil.iter_modules(__path__):
    _names = vars(importlib.import_module(f"{__name__}.{_module.name}"))
    _own = {name: value for name, value in _names.items() if name.startswith("check_")}
    if _own:
        assert not _own.keys() & globals().keys(), f"two checks of one name: {[*_own]}"
        PAGES[_module.name] = _own
        globals().update(_own)
