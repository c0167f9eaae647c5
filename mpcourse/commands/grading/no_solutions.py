"""The course as a learner's process gets it: what a page needs to run and to play, no solutions.

Of each exercise stay only its cases and how it is played, and of its module only what these need,
found in the syntax tree. Source: the documentation of ast.
"""

import ast
import re
import shutil
from collections import defaultdict
from pathlib import Path

from mpcourse.commands.clean_copies import page_key
from mpcourse.commands.grading.questions import Step, needed_for
from mpcourse.commands.setup import ROOT

PLAYED = ("cases", "play", "values")  # of an exercise's arguments; all others judge or explain
KEPT = (
    *("exercises/__init__.py", "exercises/exercise.py", "commands/__init__.py"),
    *(f"commands/grading/{name}.py" for name in ("__init__", "learner", "outcomes")),
)
IMPORT = r"^\s*\"?from mpcourse\.exercises\.(\w+) import ([\w, ]+)"


def write_course(folder: Path, page: Path) -> None:
    """Lay out a copy of the course for a page in a folder."""
    package = folder / "mpcourse"
    others = shutil.ignore_patterns("exercises", "commands", "__main__.py", "__pycache__")
    shutil.copytree(ROOT / "mpcourse", package, ignore=others)
    shutil.copytree(ROOT / "data", folder / "data")
    shutil.copy(ROOT / "pyproject.toml", folder)  # by which a page's first cell knows a clone
    for name in KEPT:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "mpcourse" / name, package / name)
    asked = imported(page.read_text(encoding="utf-8"))
    write_exercises(package, page_key(page.name), asked[page_key(page.name)], checks=True)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))  # for a stranger


def imported(text: str) -> dict[str, set[str]]:
    """The names that a text takes from modules of exercises."""
    found = defaultdict(set)
    for module, names in re.findall(IMPORT, text, re.MULTILINE):
        found[module] |= {*names.split(", ")}
    return found


def write_exercises(package: Path, name: str, asked: set[str], *, checks: bool = False) -> None:
    """Write of a module of exercises what is asked for, maybe its checks, and what these need."""
    source = (ROOT / f"mpcourse/exercises/{name}.py").read_text(encoding="utf-8")
    kept = without_solutions(source, asked, checks=checks)
    (package / f"exercises/{name}.py").write_text(kept, encoding="utf-8")
    for other, names in imported(kept).items():
        if other != "exercise":
            write_exercises(package, other, names)


def without_solutions(source: str, asked: set[str], *, checks: bool) -> str:
    """A module of exercises with only what is asked for of it, and maybe its checks."""
    module = ast.parse(source).body
    assigned = [each for each in module if isinstance(each, ast.Assign)]
    values = {ast.unparse(each.targets[0]): each.value for each in assigned}
    own = {name for name in values if checks and name.startswith("check_")}
    for name in own:
        values[name].args = [ast.Constant(None), ast.Constant("")]  # no solution, no words
        values[name].keywords = played(values[name], values)
    parts = []
    for each in module:
        if isinstance(each, ast.ImportFrom):  # several names become an import of each
            parts += [ast.ImportFrom(each.module, [name], 0) for name in each.names]
        else:
            parts.append(each)
    cells = [Step(ast.unparse(part)) for part in parts]
    return "\n".join(cell.source for cell in needed_for(asked | own, cells)) + "\n"


def played(exercise: ast.Call, values: dict[str, ast.expr]) -> list[ast.keyword]:
    """Of the arguments that make an exercise those with which it is played."""
    given = [*exercise.keywords]
    for each in exercise.keywords:
        if each.arg is None:  # **NAME, of a dict in this module
            pairs = values[each.value.id]
            given += map(ast.keyword, (key.value for key in pairs.keys), pairs.values)
    return [each for each in given if each.arg in PLAYED]
