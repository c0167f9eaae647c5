"""Imports in the package point down only, what is promised is there, and importing is quiet."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
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


def parts_of(path: Path) -> tuple[str, ...]:
    """Folder and module, as in ("devices", "workers"); a file at the top is its own folder."""
    return path.relative_to(PACKAGE).with_suffix("").parts


MODULES = {".".join(parts_of(path)): path for path in sorted(PACKAGE.rglob("*.py"))}
PLAIN = [name for name in MODULES if {name, name.split(".")[0]} & STANDARD_LIBRARY_ONLY]


def statements_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without `if TYPE_CHECKING:`, which only names types."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from statements_that_run(child)


def imported(path: Path) -> Iterator[list[str]]:
    """The parts of the dotted names of all that is imported, in functions too."""
    for node in statements_that_run(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports from {'.' * node.level}: name the folder"
            yield from ([*node.module.split("."), alias.name] for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_and_what_is_plain_needs_no_installation(module: str):
    folder = module.split(".")[0]
    above = FLOORS[: FLOORS.index(folder)] if folder != "__init__" else FLOORS
    for package, *names in imported(MODULES[module]):
        if package == PACKAGE.name:
            assert not {*names[:1]} & {*above}, f"{names[0]} is not below {folder}"
        else:
            assert folder in KNOWN_ONLY_TO.get(package, {folder}), package
            assert module not in PLAIN or package in sys.stdlib_module_names, package


def test_the_map_has_every_folder_once():
    assert sorted(FLOORS) == sorted({name.split(".")[0] for name in MODULES} - {"__init__"})


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


def names_of(modules: Iterable[str]) -> list[str]:
    return [f"mpcourse.{name}".removesuffix(".__init__") for name in modules]


def test_importing_the_package_is_silent_and_imports_nothing_else():
    result = run("import mpcourse; print(*sorted(sys.modules), sep='\\n')")
    assert result.stderr == ""
    loaded = set(result.stdout.split())
    assert {name for name in loaded if name.startswith("mpcourse")} == {"mpcourse"}
    assert not loaded & {"torch", "numpy", "matplotlib", "ipywidgets", "IPython", "nbformat"}


def test_of_warnings_only_those_of_two_renamed_collectives_are_hidden():
    words = ["all_gather_into_tensor", "reduce_scatter_tensor", "another"]
    said = [f"`torch.distributed.{name}` is deprecated. Please" for name in words]
    lines = [f"warnings.warn({words!r}, FutureWarning)" for words in said]
    result = run("\n".join(["import warnings, mpcourse", *lines]))
    assert [words in result.stderr.replace("warnings.warn(", "") for words in said] == [0, 0, 1]


def test_what_needs_no_installation_imports_on_a_bare_python():
    plain = names_of(PLAIN)
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
