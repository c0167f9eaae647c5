"""Imports in the package point down only, what is promised is there, and importing is quiet."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_rules import sources_of

PACKAGE = Path(__file__).resolve().parents[1] / "mpcourse"
PAGES = sorted((PACKAGE.parent / "notebooks").glob("*.ipynb"))
MODULES = {  # dotted name -> file
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.stem not in ("sitecustomize", "forked_ranks")  # started, not imported
}

# The folders from the roof down, as the map in `mpcourse/__init__.py` draws them.
ROW = re.compile(r"^\| `(\w+)` +\|", re.MULTILINE)
FLOORS = ROW.findall(ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))))

# These run, or can be read, without anything installed.
PLAIN = re.compile(
    r"mpcourse(\.__main__|\.schedules(\..+)?|\.commands(\.(arguments|setup|shell|clean_copies))?)?"
)


def imported_folders(path: Path) -> Iterator[str]:
    """Folders of the course that a module imports, in functions too; not what only names types."""
    text = path.read_text(encoding="utf-8").split("if TYPE_CHECKING:")
    text[1:] = [re.sub(r"^( +.*\n|\n)+", "", part) for part in text[1:]]
    yield from re.findall(r"^ *(?:from|import) mpcourse\.(\w+)", "\n".join(text), re.MULTILINE)
    yield from re.findall(r"^ *from mpcourse import (\w+)", "\n".join(text), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "mpcourse"])
def test_a_module_imports_from_its_floor_and_those_below(name: str):
    floor = FLOORS.index(name.split(".")[1])
    assert not {*imported_folders(MODULES[name])} & {*FLOORS[:floor]}


def test_the_map_has_every_folder_once():
    assert sorted(FLOORS) == sorted({name.split(".")[1] for name in MODULES if "." in name})


# What others import: promised lines, whatever module holds a name; and what the pages name.

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_imports_is_there(page: Path):
    for source in sources_of(page):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import | ast.ImportFrom) and "mpcourse" in ast.unparse(node):
                exec(ast.unparse(node), {})


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
    plain = [*filter(PLAIN.fullmatch, MODULES)]
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
    result = run(IMPORT_EACH.format(names=[*MODULES]))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {}
