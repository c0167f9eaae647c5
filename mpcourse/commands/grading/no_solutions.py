"""The course as a learner's process gets it: what a page needs to run and to play, no solutions.

Of each exercise stay only its cases and how it is played, and of its module only what these need,
found in the syntax tree. Source: the documentation of ast.
"""

import ast
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mpcourse.commands.clean_copies import page_key
from mpcourse.commands.grading.questions import Step, needed_for
from mpcourse.commands.setup import ROOT

PLAYED = {"cases", "play", "values"}  # of an exercise's arguments; all others judge or explain
OTHERS = ("exercises", "commands", "__main__.py")
KEPT = (
    *("exercises/__init__.py", "exercises/exercise.py", "commands/__init__.py"),
    *(f"commands/grading/{name}.py" for name in ("__init__", "learner", "outcomes")),
)
EXERCISES = r"mpcourse\.exercises\."


def write_course(folder: Path, page: Path) -> None:
    """Lay out a copy of the course for a page in a folder."""
    package = folder / "mpcourse"
    shutil.copytree(ROOT / "mpcourse", package, ignore=shutil.ignore_patterns(*OTHERS))
    shutil.copytree(ROOT / "data", folder / "data")
    shutil.copy(ROOT / "pyproject.toml", folder)  # by which a page's first cell knows a clone
    for name in KEPT:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "mpcourse" / name, package / name)
    key = page_key(page.name)
    imports = rf"from {EXERCISES}{key} import (\w+)"
    wanted = {key: {*re.findall(imports, page.read_text(encoding="utf-8"))}}
    while wanted:
        name, asked = wanted.popitem()
        source = (ROOT / f"mpcourse/exercises/{name}.py").read_text(encoding="utf-8")
        text, others = without_solutions(source, asked, checks=name == key)
        (package / f"exercises/{name}.py").write_text(text, encoding="utf-8")
        wanted |= {other: names for other, names in others.items() if other != "exercise"}
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))  # for a stranger


def without_solutions(source: str, asked: set[str], *, checks: bool) -> tuple[str, dict]:
    """A module of exercises with only what is asked for of it, and maybe its checks.

    Returns its text, and the names that it needs from other modules of exercises. What is asked
    for and needs a solution is left out.
    """
    module = ast.parse(source).body
    assigned = [each for each in module if isinstance(each, ast.Assign)]
    values = {ast.unparse(each.targets[0]): each.value for each in assigned}
    exercises = {name: value for name, value in values.items() if name.startswith("check_")}
    solutions = set()
    for exercise in exercises.values():
        solutions |= {each.id for each in exercise.args if isinstance(each, ast.Name)}
        _leave_played(exercise, values)
    cells = [Step(ast.unparse(part)) for each in module for part in _parts(each)]

    def needs_solution(name: str) -> bool:
        return any(cell.touched & solutions for cell in needed_for({name}, cells))

    names = {name for name in asked if not needs_solution(name)}.union(exercises if checks else ())
    kept = "\n".join(cell.source for cell in needed_for(names, cells)) + "\n"
    others = defaultdict(set)
    for other, name in re.findall(rf"^from {EXERCISES}(\w+) import (\w+)", kept, re.MULTILINE):
        others[other].add(name)
    return kept, others


def _leave_played(exercise: ast.Call, values: dict[str, ast.expr]) -> None:
    """Take from the call that makes an exercise all but what it is played with."""
    given = [*exercise.keywords]
    for each in exercise.keywords:
        if each.arg is None:  # **NAME, of a dict in this module
            pairs = values[each.value.id]
            given += map(ast.keyword, (key.value for key in pairs.keys), pairs.values)
    nothing = {"solution": None, "read_again": ""}
    exercise.args = []
    exercise.keywords = [ast.keyword(name, ast.Constant(x)) for name, x in nothing.items()]
    exercise.keywords += [each for each in given if each.arg in PLAYED]


def _parts(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement; an import of several names as one of each."""
    if isinstance(statement, ast.ImportFrom):
        module, names = statement.module, statement.names
        yield from (ast.ImportFrom(module, [name], 0) for name in names)
    else:
        yield statement
