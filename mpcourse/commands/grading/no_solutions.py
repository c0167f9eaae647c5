"""The course as a learner's process gets it: what a page needs to run and to play, no solutions.

Of each exercise stay only its cases and how it is played, and of its module only what these need,
found in the syntax tree. Source: the documentation of ast.
"""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from mpcourse.commands.page_format import page_key
from mpcourse.commands.setup import ROOT

PLAYED = {"cases", "play", "values"}  # of an exercise's arguments; all others judge or explain
ENGINE = ("__init__", "exercise")
HELPERS = ("__init__.py", "grading/__init__.py", "grading/learner.py", "grading/outcomes.py")
EXERCISES = "mpcourse.exercises."


def write_course(folder: Path, page: Path) -> None:
    """Lay out a copy of the course for a page in a folder."""
    package, exercises = folder / "mpcourse", folder / "mpcourse/exercises"
    skipped = shutil.ignore_patterns("exercises", "commands", "__main__.py")
    shutil.copytree(ROOT / "mpcourse", package, ignore=skipped)
    shutil.copytree(ROOT / "data", folder / "data")
    shutil.copy(ROOT / "pyproject.toml", folder)  # by which a page's first cell knows a clone
    (package / "commands/grading").mkdir(parents=True)
    for name in HELPERS:
        shutil.copy(ROOT / "mpcourse/commands" / name, package / "commands" / name)
    exercises.mkdir()
    for name in ENGINE:
        shutil.copy(ROOT / f"mpcourse/exercises/{name}.py", exercises)
    first = page_key(page.name)
    imports = rf"from {re.escape(EXERCISES)}{first} import (\w+)"
    wanted = {first: {*re.findall(imports, page.read_text(encoding="utf-8"))}}
    while wanted:
        name, asked = wanted.popitem()
        module = Module((ROOT / f"mpcourse/exercises/{name}.py").read_text(encoding="utf-8"))
        asked = {name for name in asked if not module.needs({name}) & module.solutions}
        text, others = module.kept(asked | (module.checks if name == first else set()))
        (exercises / f"{name}.py").write_text(text, encoding="utf-8")
        wanted |= {other: names for other, names in others.items() if other not in ENGINE}
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))  # for a stranger


class Module:
    """A module of exercises, taken apart into its statements."""

    def __init__(self, source: str):
        self._statements = ast.parse(source).body
        self._values = {
            name: each.value
            for each in self._statements
            if isinstance(each, ast.Assign)
            for name in _defined(each)
        }
        self.solutions: set[str] = set()
        self.checks = {name for name in self._values if name.startswith("check_")}
        for name in self.checks:
            self._leave_played(self._values[name])

    def _leave_played(self, exercise: ast.Call) -> None:
        given = [*exercise.keywords]
        for each in exercise.keywords:
            if each.arg is None:  # **NAME, of a dict in this module
                pairs = self._values[each.value.id]
                keys = zip(pairs.keys, pairs.values, strict=True)
                given += [ast.keyword(key.value, value) for key, value in keys]
        nothing = [ast.keyword("solution", ast.Constant(None))]
        nothing += [ast.keyword("read_again", ast.Constant(""))]
        self.solutions |= {each.id for each in exercise.args if isinstance(each, ast.Name)}
        exercise.args = []
        exercise.keywords = nothing + [each for each in given if each.arg in PLAYED]

    def needs(self, names: set[str]) -> set[str]:
        """The names, and all that their statements use in turn."""
        needed, used = set(), set(names)
        while used != needed:
            needed = used
            used = needed.union(*map(_used, self._defining(needed)))
        return needed

    def _defining(self, names: set[str]) -> list[ast.stmt]:
        return [each for each in self._statements if names & set(_defined(each))]

    def kept(self, names: set[str]) -> tuple[str, dict[str, set[str]]]:
        """What the names need, as source, and what it imports from other modules of exercises."""
        needed, others = self.needs(names), {}
        keep = self._defining(needed)
        for each in keep:
            if isinstance(each, ast.Import | ast.ImportFrom):
                each.names = [alias for alias in each.names if _name(alias) in needed]
            if isinstance(each, ast.ImportFrom) and each.module.startswith(EXERCISES):
                others[each.module.removeprefix(EXERCISES)] = {alias.name for alias in each.names}
        return "\n".join(ast.unparse(each) for each in keep) + "\n", others


def _name(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _defined(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module gives a value."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from map(_name, statement.names)
    elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    else:
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        yield from (node.id for node in names if isinstance(node.ctx, ast.Store))


def _used(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
