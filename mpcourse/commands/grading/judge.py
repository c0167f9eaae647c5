"""Inside a learner's kernel: what the course's own check says, whatever the cells have replaced.

Behind `python -m mpcourse grade`. Before the first cell runs, `answer` notes what the course's
modules hold; each later call first puts back what was replaced since, and names it. It is no jail:
code that runs in the same process can find this, too.
"""

import copy
import json
import math
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from IPython.core.getipython import get_ipython

from mpcourse import exercises
from mpcourse.exercises import PAGES, Exercise, Verdict

# What checks lean on outside the course, and would be tempting to replace.
OUTSIDE = {torch: ("allclose", "equal", "isclose"), math: ("isclose",), copy: ("deepcopy",)}
LEFT_ALONE = (list, dict, set)  # modules keep notes in them
FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
ABSENT = object()

_noted: list["Noted"] = []


class Noted:
    """What modules, classes, functions and exercises of the course held at one moment."""

    def __init__(self):
        self.modules = {name: m for name, m in sys.modules.items() if _is_ours(name)}
        self.held = {
            module: {key: value for key, value in vars(module).items() if _is_kept(key, value)}
            for module in self.modules.values()
        }
        values = [value for held in self.held.values() for value in held.values()]
        classes = {v for v in values if isinstance(v, type) and _is_ours(v.__module__)}
        self.held |= {cls: {k: v for k, v in vars(cls).items() if _acts(v)} for cls in classes}
        for own in PAGES.values():
            self.held |= {exercise: dict(vars(exercise)) for exercise in own.values()}
        for outside, names in OUTSIDE.items():
            self.held[outside] = {name: getattr(outside, name) for name in names}
        values += [value for cls in classes for value in vars(cls).values()]
        functions = {v for v in values if isinstance(v, types.FunctionType)}
        self.functions = {
            function: [getattr(function, part) for part in FUNCTION_PARTS]
            for function in functions
            if _is_ours(function.__module__)
        }

    def put_back(self) -> Iterator[str]:
        """Undo what differs from then; yields its names."""
        for name, module in self.modules.items():
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                yield name
        for owner, held in self.held.items():
            for key, value in held.items():
                now = vars(owner).get(key, ABSENT)
                if now is not value:
                    if isinstance(owner, type):
                        setattr(owner, key, value)
                    else:  # also where it is frozen
                        vars(owner)[key] = value
                    if not _same_code(now, value):
                        yield f"{_name(owner)}.{key}"
        for function, parts in self.functions.items():
            for part, value in zip(FUNCTION_PARTS, parts, strict=True):
                if getattr(function, part) is not value:
                    setattr(function, part, value)
                    yield f"{function.__module__}.{function.__qualname__}"


def _is_ours(name: str | None) -> bool:
    return (name or "").split(".")[0] == "mpcourse"


def _is_kept(key: str, value: Any) -> bool:
    return not key.startswith("__") and not isinstance(value, LEFT_ALONE)


def _acts(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def _name(owner: Any) -> str:
    if isinstance(owner, Exercise):
        return f"check of {owner.solution.__name__}"
    inside = getattr(owner, "__module__", None)  # a module has none
    return f"{inside}.{owner.__qualname__}" if inside else owner.__name__


def _same_code(one: Any, other: Any) -> bool:
    """Whether a module was only loaded again."""
    codes = [getattr(function, "__code__", ABSENT) for function in (one, other)]
    return codes[0] is not ABSENT and codes[0] == codes[1]


def answer(path: str, source: str = "", check: str = "", needs: Sequence[str] = ()) -> None:
    """Write what was replaced since the last call and, given a check cell, its verdict.

    `path` gets JSON with `replaced`, names that were put back; `missing`, names of `needs` that no
    cell has set; and `verdict`, a state with its message.
    """
    if not _noted:
        _noted.append(Noted())
    found = {"replaced": list(dict.fromkeys(_noted[0].put_back()))}
    names = dict(get_ipython().user_ns)
    found["missing"] = [name for name in needs if name not in names]
    found["verdict"] = "not judged", ""
    if source and not found["missing"]:
        found["verdict"] = _judge(source, check, names)
    Path(path).write_text(json.dumps(found), encoding="utf-8")


def _judge(source: str, check: str, names: dict[str, Any]) -> tuple[str, str]:
    """State and message: the learner's answers under the course's check."""
    names |= {"exercises": exercises, check: getattr(exercises, check)}
    try:
        verdict = eval(compile(source.strip(), "<the check>", "eval"), names)
    except Exception as error:
        return "not judged", f"the check failed with {type(error).__name__}: {error}"
    if type(verdict) is not Verdict:
        return "not judged", "the check gave no verdict"
    return verdict.state, "\n".join(verdict.lines)
