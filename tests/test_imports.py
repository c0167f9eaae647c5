"""The shape of the package: imports point down only, modules stay small, importing is quiet."""

import ast
import functools
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from page_rules import sources_of

PACKAGE = Path(__file__).resolve().parents[1] / "mpcourse"
PAGES = sorted((PACKAGE.parent / "notebooks").glob("*.ipynb"))

# The folders from the roof down, as the map in `mpcourse/__init__.py` draws them.
ROW = re.compile(r"^\| `(\w+)` +\|", re.MULTILINE)
FLOORS = ROW.findall(ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))))

# These run, or can be read, without anything installed.
STANDARD_LIBRARY_ONLY = {
    *("__init__", "__main__", "schedules"),
    *("commands", "commands.__init__", "commands.setup", "commands.shell"),
    "commands.clean_copies",
}
KNOWN_ONLY_TO = {"ipywidgets": {"widgets"}, "matplotlib": {"figures", "widgets"}}
NAMES_GPUS = {"devices"}
MOST_AT_THE_TOP = 21
SAYS_NOTHING = {"utils", "helpers", "common", "misc"}
LONGEST_MODULE = 250


@dataclass(frozen=True)
class Module:
    """A source file of the package."""

    package: Path
    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(self.package.parent))

    @property
    def parts(self) -> tuple[str, ...]:
        """Folder and module, as in ("devices", "workers"); a file at the top is its own folder."""
        return self.path.relative_to(self.package).with_suffix("").parts

    @property
    def folder(self) -> str:
        return self.parts[0]

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @functools.cached_property
    def imported(self) -> set[str]:
        """Full dotted names of all that is imported, in functions too."""
        names = set()
        for node in statements_that_run(self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = self.base_of(node)
                names |= {f"{base}.{alias.name}" for alias in node.names}
        return names

    def base_of(self, node: ast.ImportFrom) -> str:
        """Where a `from` import looks: `.` is this file's package, `..` the one above."""
        if node.level == 0:
            return node.module or ""
        parents = self.path.relative_to(self.package.parent).parts[: -node.level]
        return ".".join([*parents, *([node.module] if node.module else [])])

    @property
    def own(self) -> set[tuple[str, ...]]:
        """The `parts` of the course's modules that are imported."""
        names = (name.split(".")[1:] for name in self.imported if self.is_own(name))
        return {self.found(name) for name in names} - {self.parts}

    def is_own(self, name: str) -> bool:
        return name.split(".")[0] == self.package.name

    def found(self, name: list[str]) -> tuple[str, ...]:
        """The module that a dotted name stands for, or stands in."""
        for count in (2, 1):
            path = self.package.joinpath(*name[:count])
            if len(name) >= count and path.with_suffix(".py").exists():
                return tuple(name[:count])
            if len(name) >= count and path.is_dir():
                return (*name[:count], "__init__")
        return ("__init__",)

    @property
    def foreign(self) -> set[str]:
        """Top-level packages of others that are imported."""
        return {name.split(".")[0] for name in self.imported} - {self.package.name}


def statements_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without `if TYPE_CHECKING:`, which only names types."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from statements_that_run(child)


def modules(package: Path) -> list[Module]:
    return [Module(package, path) for path in sorted(package.rglob("*.py"))]


def is_plain(parts: tuple[str, ...]) -> bool:
    """Whether a module has to do with the standard library."""
    return parts[0] in STANDARD_LIBRARY_ONLY - {"commands"} or ".".join(parts) in (
        STANDARD_LIBRARY_ONLY
    )


def broken_rules(module: Module) -> Iterator[str]:
    yield from wrong_directions(module)
    if is_plain(module.parts):
        for name in sorted(module.foreign - sys.stdlib_module_names):
            yield f"imports {name}, which is not in the standard library"
        for parts in sorted(parts for parts in module.own if not is_plain(parts)):
            yield f"imports {'.'.join(parts)}, which needs more than the standard library"
    for name, allowed in KNOWN_ONLY_TO.items():
        if name in module.foreign and module.folder not in allowed:
            yield f"imports {name}, which only {' and '.join(sorted(allowed))} may know"
    yield from wrong_forms(module)


def wrong_directions(module: Module) -> Iterator[str]:
    if module.folder == "__init__":
        for parts in sorted(module.own):
            yield f"imports {parts[0]}; importing the package has to stay cheap"
        return
    if module.folder not in FLOORS:
        yield f"{module.folder} is not on the map: place it in mpcourse/__init__.py"
        return
    floor = FLOORS.index(module.folder)
    for name in sorted({parts[0] for parts in module.own} - {module.folder, "__init__"}):
        if name not in FLOORS[floor:]:
            yield f"imports {name}, which does not lie below {module.folder}"


def circles(found: list[Module]) -> Iterator[str]:
    """Circles of modules, within a folder too; a folder's `__init__` only hands on."""
    graph = {
        module.parts: {parts for parts in module.own if parts[-1] != "__init__"}
        for module in found
        if module.parts[-1] != "__init__"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "import each other: " + " -> ".join(".".join(parts) for parts in error.args[1])


def wrong_forms(module: Module) -> Iterator[str]:
    if module.path.stem in SAYS_NOTHING:
        yield f"is called {module.path.stem}, which does not say what it holds"
    lines = len(module.path.read_text(encoding="utf-8").splitlines())
    if lines > LONGEST_MODULE:
        yield f"has {lines} lines, more than {LONGEST_MODULE}: it holds two ideas"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield f"line {node.lineno}: a star import hides where names come from"
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and text.startswith("cuda:") and module.folder not in NAMES_GPUS:
            yield f"line {node.lineno}: {text!r} names a GPU; take a device as an argument"


@pytest.mark.parametrize("module", modules(PACKAGE), ids=str)
def test_module_keeps_to_the_shape_of_the_package(module: Module):
    broken = list(broken_rules(module))
    if broken:
        pytest.fail("\n".join(f"{module} {problem}" for problem in broken), pytrace=False)


def test_no_modules_import_each_other():
    assert list(circles(modules(PACKAGE))) == []


def test_the_map_has_every_folder_once_and_the_top_stays_small():
    there = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    folders = {name.removesuffix(".py") for name in there} - {"__init__"}
    assert sorted(FLOORS) == sorted(folders)
    assert len(there) <= MOST_AT_THE_TOP


@pytest.mark.parametrize("folder", [name for name in FLOORS if name != "__main__"])
def test_a_folder_says_what_it_holds(folder: str):
    assert importlib.import_module(f"mpcourse.{folder}").__doc__


# What others import: promised lines, whatever module holds a name; and what the pages name.

PROMISED = {
    "devices": "get_devices as_devices describe_devices synchronize measure Timing Timeline Event",
    "data_parallel": "scatter gather replicate parallel_apply DataParallel",
    "schedules": """Action ScheduleError naive_schedule gpipe_schedule one_f_one_b_schedule
        interleaved_schedule zero_bubble_schedule make_schedule validate_schedule Costs simulate""",
    "pipeline": "Pipeline",
    "splitting": "ToyModel ModelParallelResNet50 PipelineParallelResNet50 split_sequential",
    "training": "load_mnist train_epoch evaluate",
    "pruning": """Movement Report SparseLinear apply_masks channel_links channel_norms
        count_nonzeros global_masks gradient latencies layer_masks magnitude make_permanent
        masks_of multiply_adds n_m_masks prunable_layers random_scores
        remove_channels report report_table snip sparsity_of to_sparse update_masks weight_of
        zero_channels""",
    "transformer": "Decoder",
    "multiprocess": "launch BucketedDataParallel ShardedOptimizer FullySharded",
}


@pytest.mark.parametrize("folder", PROMISED)
def test_the_promised_import_lines_work(folder: str):
    package = importlib.import_module(f"mpcourse.{folder}")
    assert {name for name in PROMISED[folder].split() if not hasattr(package, name)} == set()


def names_imported_by(sources: list[str]) -> set[tuple[str, str]]:
    """Module and name ("" for the module itself) of all that comes from the package."""
    found = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                found |= {(node.module or "", alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {(alias.name, "") for alias in node.names}
    return {pair for pair in found if pair[0].split(".")[0] == "mpcourse"}


def missing_names(names: set[tuple[str, str]]) -> list[str]:
    missing = []
    for module, name in sorted(names):
        loaded = importlib.import_module(module)
        if name and not hasattr(loaded, name):
            try:
                importlib.import_module(f"{module}.{name}")
            except ImportError:
                missing.append(f"{module} has no {name}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_imports_is_there(page: Path):
    names = names_imported_by(sources_of(page))
    assert len(names) > 1
    assert missing_names(names) == []


def test_a_name_that_is_gone_is_noticed():
    source = "if True:\n    from mpcourse.devices import get_devices, gone\nimport mpcourse.figures"
    missing = missing_names(names_imported_by([source, "from mpcourse import checks"]))
    assert missing == ["mpcourse.devices has no gone"]


# Each rule notices a planted violation. The files are those of a small package `course`.

SMALL = {
    "__init__.py": "",
    "schedules/__init__.py": "",
    "schedules/timeline.py": "",
    "devices/__init__.py": "",
    "devices/workers.py": "",
    "widgets/__init__.py": "",
    "figures/__init__.py": "",
}
LOW = "devices/low.py"
PLANTS = [
    ({LOW: "from course.figures import a"}, "imports figures, which does not lie below devices"),
    ({LOW: "import course.figures"}, "imports figures, which does not lie below devices"),
    ({LOW: "import course.widgets.board"}, "imports widgets, which does not lie below"),
    ({LOW: "from course import figures"}, "imports figures, which does not lie below"),
    ({LOW: "from .. import figures"}, "imports figures, which does not lie below"),
    ({LOW: "from ..figures.svg import a"}, "imports figures, which does not lie below"),
    ({"figures/a.py": "def f():\n    import course.widgets"}, "imports widgets, which"),
    ({"figures/a.py": "from ..checks import b", "checks/__init__.py": ""}, "imports checks, which"),
    ({"devices/a.py": "from course.widgets import a"}, "imports widgets, which does not lie below"),
    ({"__init__.py": "from course import schedules"}, "imports schedules; importing the package"),
    ({"schedules/a.py": "import torch"}, "imports torch, which is not in the standard library"),
    (
        {"commands/setup.py": "def f():\n    from torch.nn import a"},
        "imports torch, which is not",
    ),
    ({"__main__.py": "import course.devices"}, "devices.__init__, which needs more than the stand"),
    ({"figures/a.py": "import ipywidgets"}, "imports ipywidgets, which only widgets may know"),
    ({"checks/a.py": "import ipywidgets"}, "imports ipywidgets, which only widgets may know"),
    ({"devices/a.py": "import matplotlib.pyplot"}, "which only figures and widgets may know"),
    ({"training/a.py": "from course.devices import *"}, "line 1: a star import"),
    ({"training/a.py": "def f(device='cuda:0'): ..."}, "line 1: 'cuda:0' names a GPU"),
    ({"training/a.py": "n = 1\na = f'cuda:{n}'"}, "line 2: 'cuda:' names a GPU"),
    ({"training/a.py": "\n" * 251}, "has 251 lines, more than 250"),
    ({"checks/utils.py": ""}, "is called utils"),
    ({"novelty.py": ""}, "novelty is not on the map"),
    ({"novelty/a.py": ""}, "novelty is not on the map"),
    (
        {"devices/a.py": "from .b import c", "devices/b.py": "import course.devices.a"},
        "import each other: devices.",
    ),
]
TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import course.devices"
FINE = [
    {"widgets/a.py": "import ipywidgets, matplotlib\nfrom course import figures, schedules"},
    {"checks/a.py": "from course.widgets import a", "checks/__init__.py": "from .b import c"},
    {"checks/a.py": "from . import b\nfrom ..widgets import c\nimport torch", "checks/b.py": ""},
    {"schedules/a.py": TYPES_ONLY},
    {"devices/a.py": "import torch\nfrom course.schedules.timeline import a\nGPU = 'cuda:0'"},
    {"training/a.py": "'''Takes 'cuda:0'.'''\nfrom course import __version__\n" + "\n" * 248},
    {
        "__main__.py": "import sys\nfrom course.commands.setup import a",
        "commands/__init__.py": "",
        "commands/setup.py": "import os",
    },
]


def problems_of(files: dict[str, str], folder: Path) -> list[str]:
    package = folder / "course"
    for name, source in {**SMALL, **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source, encoding="utf-8")
    found = modules(package)
    problems = [problem for module in found for problem in broken_rules(module)]
    return [*problems, *circles(found)]


@pytest.mark.parametrize(("files", "problem"), PLANTS, ids=[problem for _, problem in PLANTS])
def test_a_planted_violation_is_found(files: dict[str, str], problem: str, tmp_path: Path):
    [found] = problems_of(files, tmp_path)
    assert problem in found


@pytest.mark.parametrize("files", FINE, ids=str)
def test_what_is_allowed_is_not_reported(files: dict[str, str], tmp_path: Path):
    assert problems_of(files, tmp_path) == []


# Importing, in processes of their own: here much is imported already.


def run(code: str, *options: str) -> subprocess.CompletedProcess:
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}"
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_importing_the_package_is_silent_and_imports_nothing_else():
    result = run("import mpcourse; print(*sorted(sys.modules), sep='\\n')")
    assert result.stderr == ""
    loaded = set(result.stdout.split())
    assert {name for name in loaded if name.startswith("mpcourse")} == {"mpcourse"}
    assert not loaded & {"torch", "numpy", "matplotlib", "ipywidgets", "IPython", "nbformat"}


def test_what_needs_no_installation_imports_on_a_bare_python():
    here = {".".join(m.parts) for m in modules(PACKAGE) if is_plain(m.parts)} - {"__init__"}
    assert here >= {"schedules.timeline", "schedules.simulation", "commands.setup", "__main__"}
    imports = "\n".join(
        f"import mpcourse.{name.removesuffix('.__init__')}" for name in sorted(here)
    )
    result = run(imports, "-I", "-S")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


IMPORT_EACH = """
import contextlib, importlib, io, json
import torch, torchvision  # what they print on some machines is not ours
printed = {{}}
for name in {names!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        importlib.import_module(name)
    if out.getvalue():
        printed[name] = out.getvalue()
print(json.dumps(printed))
"""


def import_each(names: list[str]) -> dict[str, str]:
    """Import the modules one after the other and return what each one printed."""
    result = run(IMPORT_EACH.format(names=names))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_importing_the_modules_prints_nothing():
    paths = [module.path.relative_to(PACKAGE.parent) for module in modules(PACKAGE)]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    assert "mpcourse.devices.devices" in names
    assert import_each(names) == {}


def test_a_module_that_prints_is_noticed():
    assert list(import_each(["this", "json"])) == ["this"]
