"""Imports in the package point down only, what is promised is there, and importing is quiet."""

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

PACKAGE = Path(__file__).resolve().parents[1] / "mpcourse"

# The folders from the roof down, as the map in `mpcourse/__init__.py` draws them.
ROW = re.compile(r"^\| `(\w+)` +\|", re.MULTILINE)
FLOORS = ROW.findall(ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))))

# These run, or can be read, without anything installed.
STANDARD_LIBRARY_ONLY = {
    *("__init__", "__main__", "schedules"),
    *("commands.__init__", "commands.setup", "commands.clean_copies"),
}
KNOWN_ONLY_TO = {"ipywidgets": {"widgets"}, "matplotlib": {"figures", "widgets"}}
NAMES_GPUS = {"devices", "exercises"}  # an exercise may be judged on GPUs that are pretended


@dataclass(frozen=True)
class Module:
    """A source file of the package."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(PACKAGE.parent))

    @property
    def parts(self) -> tuple[str, ...]:
        """Folder and module, as in ("devices", "workers"); a file at the top is its own folder."""
        return self.path.relative_to(PACKAGE).with_suffix("").parts

    @property
    def is_plain(self) -> bool:
        """Whether the standard library has to do."""
        return bool({self.parts[0], ".".join(self.parts)} & STANDARD_LIBRARY_ONLY)

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
                assert node.level == 0, f"{self} imports from {'.' * node.level}: name the folder"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        return names

    @property
    def own(self) -> set["Module"]:
        """The course's modules that are imported."""
        names = (name.split(".")[1:] for name in self.imported if self.is_own(name))
        return {Module(self.found(name)) for name in names} - {self}

    @property
    def foreign(self) -> set[str]:
        """Top-level packages of others that are imported."""
        return {name.split(".")[0] for name in self.imported if not self.is_own(name)}

    def is_own(self, name: str) -> bool:
        return name.split(".")[0] == PACKAGE.name

    def found(self, name: list[str]) -> Path:
        """The file that a dotted name stands for, or is defined in."""
        for count in range(len(name), 0, -1):
            path = PACKAGE.joinpath(*name[:count])
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.exists():
                    return file
        return PACKAGE / "__init__.py"


def statements_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without `if TYPE_CHECKING:`, which only names types."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from statements_that_run(child)


MODULES = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def broken_rules(module: Module) -> Iterator[str]:
    folder = module.parts[0]
    below = FLOORS[FLOORS.index(folder) :] if folder != "__init__" else []
    for other in sorted({other.parts[0] for other in module.own} - {"__init__", *below}):
        yield f"imports {other}, which does not lie below {folder}"
    if module.is_plain:
        for name in sorted(module.foreign - sys.stdlib_module_names):
            yield f"imports {name}, which is not in the standard library"
        for other in sorted(str(other) for other in module.own if not other.is_plain):
            yield f"imports {other}, which needs more than the standard library"
    for name, allowed in KNOWN_ONLY_TO.items():
        if name in module.foreign and folder not in allowed:
            yield f"imports {name}, which only {' and '.join(sorted(allowed))} may know"
    for node in ast.walk(module.tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and text.startswith("cuda:") and folder not in NAMES_GPUS:
            yield f"line {node.lineno}: {text!r} names a GPU; take a device as an argument"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_module_keeps_to_the_shape_of_the_package(module: Module):
    assert list(broken_rules(module)) == []


def test_no_modules_import_each_other():
    """A folder's `__init__` only hands on what its modules hold."""
    found = [module for module in MODULES if module.parts[-1] != "__init__"]
    graph = {module: {m for m in module.own if m.parts[-1] != "__init__"} for module in found}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(map(str, error.args[1])), pytrace=False)


def test_the_map_has_every_folder_once():
    there = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert sorted(FLOORS) == sorted({name.removesuffix(".py") for name in there} - {"__init__"})


# What others import: promised lines, whatever module holds a name.

PROMISED = {
    "devices": "get_devices as_devices describe_devices synchronize measure Timing Timeline Event",
    "data_parallel": "scatter gather replicate parallel_apply DataParallel",
    "schedules": """Action ScheduleError naive_schedule gpipe_schedule one_f_one_b_schedule
        interleaved_schedule zero_bubble_schedule make_schedule validate_schedule Costs simulate""",
    "pipeline": "Pipeline ReproducibleDropout",
    "splitting": "ToyModel ModelParallelResNet50 PipelineParallelResNet50 split_sequential",
    "training": "load_mnist train_epoch evaluate",
    "pruning": """Movement SparseLinear apply_masks channel_links channel_norms
        count_nonzeros global_masks gradient latencies layer_masks magnitude make_permanent
        masks_of multiply_adds n_m_masks prunable_layers random_scores
        remove_channels snip sparsity_of to_sparse update_masks weight_of
        zero_channels""",
    "memory": "account rehearse_step count_step recomputed",
    "quantization": "prepare_qat to_int8",
    "transformer": """Decoder cut_inside ColumnParallelLinear RowParallelLinear ParallelDropout
        VocabParallelEmbedding vocab_parallel_cross_entropy""",
    "multiprocess": "BucketedDataParallel ShardedOptimizer FullySharded ranks_in_threads",
}


@pytest.mark.parametrize("folder", PROMISED)
def test_the_promised_import_lines_work(folder: str):
    package = importlib.import_module(f"mpcourse.{folder}")
    assert {name for name in PROMISED[folder].split() if not hasattr(package, name)} == set()


# Importing, in processes of their own: here much is imported already.


def run(code: str, *options: str) -> subprocess.CompletedProcess:
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}"
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def names_of(found: list[Module]) -> list[str]:
    return [".".join(("mpcourse", *m.parts)).removesuffix(".__init__") for m in found]


def test_importing_the_package_is_silent_and_imports_nothing_else():
    result = run("import mpcourse; print(*sorted(sys.modules), sep='\\n')")
    assert result.stderr == ""
    loaded = set(result.stdout.split())
    assert {name for name in loaded if name.startswith("mpcourse")} == {"mpcourse"}
    assert not loaded & {"torch", "numpy", "matplotlib", "ipywidgets", "IPython", "nbformat"}


def test_what_needs_no_installation_imports_on_a_bare_python():
    plain = names_of([module for module in MODULES if module.is_plain])
    assert {"mpcourse.__main__", "mpcourse.commands.setup", "mpcourse.schedules"} <= set(plain)
    result = run("\n".join(f"import {name}" for name in plain), "-I", "-S")
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


def test_importing_the_modules_prints_nothing():
    result = run(IMPORT_EACH.format(names=names_of(MODULES)))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {}
