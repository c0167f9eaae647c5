"""The shape of the package: imports point down only, modules stay small, importing is quiet."""

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mpcourse"

# A module imports from the layers above its own line only. A new module has to be placed here.
LAYERS: tuple[set[str], ...] = (
    {"timeline", "results", "actions", "microbatch", "losses", "stage", "svg", "source"},
    {"batch_norm", "dropout", "models", "pretended", "ring_steps", "torch_stage"},
    {"workers", "validate", "zero_bubble", "figures", "clocks"},
    {"lanes", "schedules"},
    {"devices", "simulate", "named_schedules"},
    {"modes", "builder", "placement"},
    {"timing", "scatter_gather", "replicate", "parallel_apply", "engine", "mnist", "work"},
    {"data_parallel", "anatomy", "splits", "pipeline", "process_pipeline"},
    {"recordings", "prediction"},
    {"resnet", "training", "schedule_trials", "cuts"},
    {"pruning"},
    {"sparse_training", "quantization", "plans"},
    {"compilation", "studies"},
    {"benchmark", "mnist_study", "multiprocess", "pruning_study", "quantization_study", "sweeps"},
    {"sparse_study", "plan_trials"},
    {"widgets", "checks"},
    {"shell", "page_format"},  # from here on: the command line
    {"setup"},
    {"soundness", "pages", "xla"},
    {"__main__"},
)
LAYER_OF = {name: index for index, layer in enumerate(LAYERS) for name in layer}

# These run, or can be read, without anything installed.
STANDARD_LIBRARY_ONLY = {
    *("__init__", "__main__", "setup", "shell", "svg", "timeline"),
    *("actions", "validate", "zero_bubble", "schedules", "named_schedules", "simulate"),
    "builder",
}
KNOWN_ONLY_TO = {"ipywidgets": {"widgets"}, "matplotlib": {"figures", "widgets"}}
FOR_PAGES_ONLY = {"widgets", "checks"}  # notebooks import them, and they each other
NAMES_GPUS = {"devices", "workers"}
SAYS_NOTHING = {"utils", "helpers", "common", "misc"}
LONGEST_MODULE = 250


@dataclass(frozen=True)
class Module:
    """A source file; `name` is that of the module or subpackage directly below the package."""

    package: Path
    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(self.package.parent))

    @property
    def name(self) -> str:
        return self.path.relative_to(self.package).parts[0].removesuffix(".py")

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
    def own(self) -> set[str]:
        """Modules of the course that are imported."""
        parts = [name.split(".") for name in self.imported]
        return {
            name[1] if len(name) > 1 and self.is_module(name[1]) else "__init__"
            for name in parts
            if name[0] == self.package.name
        }

    @property
    def foreign(self) -> set[str]:
        """Top-level packages of others that are imported."""
        return {name.split(".")[0] for name in self.imported} - {self.package.name}

    def is_module(self, name: str) -> bool:
        return (self.package / f"{name}.py").exists() or (self.package / name).is_dir()


def statements_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without `if TYPE_CHECKING:`, which only names types."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from statements_that_run(child)


def modules(package: Path) -> list[Module]:
    return [Module(package, path) for path in sorted(package.rglob("*.py"))]


def broken_rules(module: Module) -> Iterator[str]:
    yield from wrong_directions(module)
    if module.name in STANDARD_LIBRARY_ONLY:
        for name in sorted(module.foreign - sys.stdlib_module_names):
            yield f"imports {name}, which is not in the standard library"
        for name in sorted(module.own - STANDARD_LIBRARY_ONLY):
            yield f"imports {name}, which needs more than the standard library"
    for name, allowed in KNOWN_ONLY_TO.items():
        if name in module.foreign and module.name not in allowed:
            yield f"imports {name}, which only {' and '.join(sorted(allowed))} may know"
    yield from wrong_forms(module)


def wrong_directions(module: Module) -> Iterator[str]:
    if module.name == "__init__":
        for name in sorted(module.own):
            yield f"imports {name}; importing the package has to stay cheap"
        return
    if module.name not in LAYER_OF:
        yield f"{module.name} is in no layer: place it in LAYERS, tests/test_imports.py"
        return
    for name in sorted(module.own - {module.name, "__init__"}):
        if {module.name, name} <= FOR_PAGES_ONLY:
            continue
        if name in FOR_PAGES_ONLY:
            yield f"imports {name}, which is for the notebooks"
        elif LAYER_OF.get(name, 0) >= LAYER_OF[module.name]:
            yield f"imports {name}, which does not lie below {module.name}"


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
        if isinstance(text, str) and text.startswith("cuda:") and module.name not in NAMES_GPUS:
            yield f"line {node.lineno}: {text!r} names a GPU; take a device as an argument"


@pytest.mark.parametrize("module", modules(PACKAGE), ids=str)
def test_module_keeps_to_the_shape_of_the_package(module: Module):
    broken = list(broken_rules(module))
    if broken:
        pytest.fail("\n".join(f"{module} {problem}" for problem in broken), pytrace=False)


# Each rule notices a planted violation. The files are those of a small package `course`.

SMALL = {"__init__.py": "", "timeline.py": "", "devices.py": "", "widgets.py": "", "figures.py": ""}
PLANTS = [
    ({"results.py": "from course.devices import a"}, "imports devices, which does not lie below"),
    ({"results.py": "import course.devices"}, "imports devices, which does not lie below results"),
    ({"results.py": "from course import devices"}, "imports devices, which does not lie below"),
    ({"results.py": "from . import devices"}, "imports devices, which does not lie below"),
    ({"results.py": "from .devices import a"}, "imports devices, which does not lie below"),
    ({"devices.py": "def f():\n    import course.mnist", "mnist.py": ""}, "imports mnist, which"),
    ({"timing.py": "import course.replicate", "replicate.py": ""}, "imports replicate, which does"),
    ({"checks/a.py": "from ..pages import b", "pages.py": ""}, "imports pages, which does not lie"),
    ({"devices.py": "from course.widgets import a"}, "imports widgets, which is for the notebooks"),
    ({"pages.py": "from course.checks.a import b", "checks/a.py": ""}, "imports checks, which is"),
    ({"__init__.py": "from course import timeline"}, "imports timeline; importing the package has"),
    ({"timeline.py": "import torch"}, "imports torch, which is not in the standard library"),
    ({"setup.py": "def f():\n    from torch.nn import a"}, "imports torch, which is not in the"),
    ({"__main__.py": "import course.devices"}, "imports devices, which needs more than the stand"),
    ({"figures.py": "import ipywidgets"}, "imports ipywidgets, which only widgets may know"),
    ({"checks/a.py": "import ipywidgets"}, "imports ipywidgets, which only widgets may know"),
    ({"devices.py": "import matplotlib.pyplot"}, "which only figures and widgets may know"),
    ({"mnist.py": "from course.devices import *"}, "line 1: a star import"),
    ({"mnist.py": "def f(device='cuda:0'): ..."}, "line 1: 'cuda:0' names a GPU"),
    ({"mnist.py": "n = 1\na = f'cuda:{n}'"}, "line 2: 'cuda:' names a GPU"),
    ({"mnist.py": "\n" * 251}, "has 251 lines, more than 250"),
    ({"checks/utils.py": ""}, "is called utils"),
    ({"novelty.py": ""}, "novelty is in no layer: place it in LAYERS"),
]
TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import course.devices"
FINE = [
    {"widgets.py": "import ipywidgets, matplotlib\nfrom course import figures, timeline"},
    {"widgets.py": "from course.checks import a", "checks/__init__.py": "from .b import c"},
    {"checks/a.py": "from . import b\nfrom ..widgets import c\nimport torch", "checks/b.py": ""},
    {"timeline.py": TYPES_ONLY},
    {"devices.py": "import torch\nfrom course.timeline import a\nGPU = 'cuda:0'"},
    {"mnist.py": "'''Takes 'cuda:0'.'''\nfrom course import __version__\n" + "\n" * 248},
    {"__main__.py": "import sys\nfrom course.setup import a", "setup.py": "import os"},
]


def problems_of(files: dict[str, str], folder: Path) -> list[str]:
    package = folder / "course"
    for name, source in {**SMALL, **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source, encoding="utf-8")
    return [problem for module in modules(package) for problem in broken_rules(module)]


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
    here = {module.name for module in modules(PACKAGE)} & STANDARD_LIBRARY_ONLY - {"__init__"}
    assert here >= {"timeline", "setup", "__main__"}
    imports = "\n".join(f"import mpcourse.{name}" for name in sorted(here))
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
    assert "mpcourse.devices" in names
    assert import_each(names) == {}


def test_a_module_that_prints_is_noticed():
    assert list(import_each(["this", "json"])) == ["this"]
