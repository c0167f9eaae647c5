"""What `python -m mpcourse check` looks at: the installation, and what the machine has.

Page `start_here`.

Heavy imports stand inside the checks, so that a broken package fails its own lines only. Source for
torchvision's operators: github.com/pytorch/vision/issues/9077.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mpcourse.commands import hiding_problem
from mpcourse.commands.clean_copies import PAGES
from mpcourse.commands.setup import COURSE, ROOT, read_requirements

GIB = 2**30
KERNEL_CODE = "import sys"
LIMIT_S = 90.0  # a first start from a slow disk takes half a minute

PYTHON = f'"{sys.executable}"' if " " in sys.executable else sys.executable
INSTALL = "python3 -m mpcourse lab installs what is missing (--here: where you are now)"
KERNEL = f"{PYTHON} -m ipykernel install --sys-prefix"
WIDGETS = "@jupyter-widgets/jupyterlab-manager"  # of the package jupyterlab_widgets
LITTLE_OVERLAP = "nothing is broken; close other programs and look again"


@dataclass(frozen=True)
class Finding:
    """One line of the report; "note" is good to know, and every "FAIL" has a remedy."""

    item: str
    word: Literal["ok", "FAIL", "note"]
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.word:<4}  {self.item}: {self.detail}"
        return f"{line}\n      what to do: {self.remedy}" if self.remedy else line


def main() -> int:
    """Print one line per item."""
    failed = 0
    for item, check in CHECKS.items():
        for finding in run_check(item, check):
            print(finding, flush=True)
            failed += finding.word == "FAIL"
    print(f"\nFAILED: {failed}; each line says what to do." if failed else "\nNothing failed.")
    return 1 if failed else 0


def run_check(item: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Return the findings of a check; when it raises, the finding that it failed."""
    try:
        return check()
    except Exception as error:  # any: the report goes on, whatever one package does
        return [Finding(item, "FAIL", f"{type(error).__name__}: {error}", mend(error))]


def mend(error: Exception, module: str = "") -> str:
    """Say what to do about an exception, raised by the import of `module` if that is named."""
    lacking = error.name if isinstance(error, ImportError) else ""
    top = (lacking or module).partition(".")[0]
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)[1:]]
    frames += [error.filename or ""] if isinstance(error, SyntaxError) else []
    own = [Path(name) for name in frames if Path(name).is_relative_to(ROOT / "mpcourse")]
    if top == "mpcourse" and own:
        return restore(own[-1].relative_to(ROOT).as_posix())
    if top not in ("", "mpcourse"):
        return reinstall(top)
    return f"mend what failed above; if nothing did, {INSTALL}"


def reinstall(module: str) -> str:
    """The line that installs the package of a module anew, and what it needs."""
    asked = {line.split(">")[0]: line for line in read_requirements(COURSE)}
    return f'{PYTHON} -m pip install --force-reinstall "{asked.get(module, module)}"'


def restore(path: str) -> str:
    """The line that brings a file of the course back."""
    return f"in the clone: git checkout -- {path}"


def check_python() -> list[Finding]:
    """Is this a Python that the course is tested on, and where is it?"""
    detail = f"{platform.python_version()} at {sys.executable}"
    word = "ok" if sys.version_info < (3, 14) else "note"
    return [Finding("Python", word, f"{detail} (tested: 3.11 to 3.13)")]


def check_versions() -> list[Finding]:
    """Does the version of each requirement lie in the range of requirements.txt?"""
    return [judge_version(text) for text in read_requirements(COURSE)]


def judge_version(requirement: str) -> Finding:
    """Compare what is installed with one line of requirements.txt, such as `torch>=2.9`."""
    name = requirement.split(">")[0]
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if is_hosted() and name in ("jupyterlab", "nbval"):
            return Finding(name, "note", "not installed; Colab and Kaggle do without it")
        return Finding(name, "FAIL", "not installed", INSTALL)
    from packaging.requirements import Requirement

    allowed = Requirement(requirement).specifier
    if allowed.contains(found, prereleases=True):
        return Finding(name, "ok", f"{found} (allowed: {allowed})")
    return Finding(name, "FAIL", f"{found} is outside {allowed}", INSTALL)


def is_hosted() -> bool:
    """Whether this is Colab or Kaggle, which have a front end of their own."""
    return bool(os.environ.keys() & {"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"})


def check_imports() -> list[Finding]:
    """Can everything be imported that pages and commands import?"""
    asked = [line.split(">")[0] for line in read_requirements(COURSE)]
    names = [name for name in asked if importlib.util.find_spec(name)]  # the others were named
    names += [name for name in imported_by_pages() if name not in names]
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # any: whatever a damaged package raises
            words = f"{type(error).__name__}: {error}"
            remedy = mend_operators() if name == "torchvision" else mend(error, name)
            failed.setdefault(words, Finding(f"import {name}", "FAIL", words, remedy))
    return list(failed.values()) or [Finding("Imports", "ok", f"{len(names)} modules of the pages")]


def imported_by_pages() -> list[str]:
    """The modules that cells of the pages import, but for the programs that cells write."""
    found, written = {}, set()
    for page in sorted((ROOT / "notebooks").glob(PAGES)):
        for source in ("".join(c["source"]) for c in _cells(page) if c["cell_type"] == "code"):
            first = source.partition("\n")[0]
            if first.startswith("%%"):
                written |= set(re.findall(r"(\w+)\.py", first))
                continue
            lines = [line for line in source.splitlines() if not line.lstrip().startswith("%")]
            for node in ast.parse("\n".join(lines)).body:
                if isinstance(node, ast.Import):
                    found |= dict.fromkeys(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    found[node.module] = None
    return [name for name in found if name not in written]


def check_course() -> list[Finding]:
    """Are the pages, and your copies of them, there and whole? Is the course as it was?"""
    found = []
    for folder in (ROOT / "notebooks", ROOT / "my_notebooks"):
        if problem := hiding_problem(str(folder)):
            found.append(Finding(folder.name, "FAIL", problem, "give it another name"))
        for page in sorted(folder.glob(PAGES)):
            path = page.relative_to(ROOT).as_posix()
            if _cells(page) == []:
                anew = "rename or delete it: python3 -m mpcourse lab makes a clean copy"
                remedy = anew if folder.name == "my_notebooks" else restore(path)
                found.append(Finding("Page", "FAIL", f"{path} is damaged", remedy))
    command = ["git", "-C", str(ROOT), "-c", "core.quotepath=off", "status", "--porcelain"]
    command += ["--untracked-files=no", "--", "mpcourse", "notebooks", "data"]
    try:
        changes = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:  # no git: nothing to compare with
        changes = []
    for path in (line[3:] for line in changes if "D" in line[:2]):
        found.append(Finding("Course", "FAIL", f"{path} is missing", restore(path)))
    changed = [line[3:] for line in changes if line[3:].startswith("mpcourse/")]
    if changed:
        words = f"changed: {', '.join(changed[:3])}{' and more' if changed[3:] else ''}"
        remedy = f"git diff shows how; to take it back, {restore('mpcourse')}"
        found.append(Finding("Course", "note", words, remedy))
    return found or [Finding("Course", "ok", "nothing is missing, damaged or changed")]


def _cells(page: Path) -> list[dict]:
    """The cells of a page; none of one that is damaged."""
    try:
        return json.loads(page.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def check_devices() -> list[Finding]:
    """Which devices do the pages get here?"""
    from mpcourse.devices.devices import describe_devices, get_devices

    return [Finding("Devices", "ok", describe_devices(get_devices(2)))]


def check_operators() -> list[Finding]:
    """Do torchvision's compiled operators load and compute?"""
    item = "torchvision's operators"
    try:
        import torch
        from torchvision.ops import nms

        # The same box twice: only the one with the higher score stays.
        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0]]).repeat(2, 1)
        kept = nms(boxes, torch.tensor([0.5, 0.9]), 0.5).tolist()
    except (RuntimeError, AttributeError, ImportError) as error:
        return [Finding(item, "FAIL", str(error), mend_operators())]
    if kept != [1]:
        return [Finding(item, "FAIL", f"nms keeps {kept}, not [1]", mend_operators())]
    return [Finding(item, "ok", "nms computes")]


def mend_operators() -> str:
    """Say how to get a torchvision from where torch came from."""
    torch, vision = map(importlib.metadata.version, ("torch", "torchvision"))
    version, _, build = torch.partition("+")
    has_index = re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", build)
    index = f" --index-url https://download.pytorch.org/whl/{build}" if has_index else ""
    return (
        f"torch {torch} and torchvision {vision} do not belong together; often one was built for "
        f"CPUs and the other for CUDA. Install both from one index: {PYTHON} -m pip "
        f"install --force-reinstall torch=={version} torchvision{index}"
    )


def check_kernel() -> list[Finding]:
    """Does a Jupyter kernel start where the pages are, and compute?"""
    from jupyter_client.manager import start_new_kernel

    try:
        manager, client = start_new_kernel(
            startup_timeout=LIMIT_S,
            kernel_name="python3",
            cwd=str(ROOT / "notebooks"),
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # of what a laptop need not do
        )
    except Exception as error:  # any: it is the kernel's, whatever it is
        return [Finding("Jupyter kernel", "FAIL", f"{type(error).__name__}: {error}", KERNEL)]
    try:
        facts = {"facts": "[1 + 1, sys.prefix]"}
        reply = client.execute_interactive(KERNEL_CODE, user_expressions=facts, timeout=LIMIT_S)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    answer = reply["content"]["user_expressions"]["facts"]["data"]["text/plain"]
    return [judge_kernel(*ast.literal_eval(answer))]


def judge_kernel(total: int, prefix: str) -> Finding:
    """Judge what a kernel computes for 1 + 1, and which environment its Python is from."""
    if total != 2:
        return Finding("Jupyter kernel", "FAIL", f"it computes 1 + 1 = {total}", INSTALL)
    if prefix != sys.prefix:
        detail = f"the kernel named python3 runs in {prefix}, not in {sys.prefix}"
        return Finding("Jupyter kernel", "FAIL", detail, KERNEL)
    return Finding("Jupyter kernel", "ok", "it starts, and 1 + 1 = 2")


def check_widgets() -> list[Finding]:
    """Does JupyterLab have what draws the sliders?"""
    from jupyter_core.paths import jupyter_path

    item = "Sliders in JupyterLab"
    if is_hosted():
        return [Finding(item, "note", "Colab and Kaggle draw them in their own way")]
    for folder in (Path(place, WIDGETS) for place in jupyter_path("labextensions")):
        if (folder / "package.json").is_file():
            about = json.loads((folder / "package.json").read_text(encoding="utf-8"))
            if (folder / about["jupyterlab"]["_build"]["load"]).is_file():
                return [Finding(item, "ok", f"{WIDGETS} {about['version']}")]
    detail = f"the extension {WIDGETS} is missing: no slider will show"
    return [Finding(item, "FAIL", detail, reinstall("jupyterlab_widgets"))]


def check_room() -> list[Finding]:
    """Is there memory for torch and two workers, and disk space to save pages and data?"""
    import psutil

    memory = psutil.virtual_memory().available
    limit = Path("/sys/fs/cgroup/memory.max")  # a container's own limit; psutil sees the machine
    if limit.exists() and limit.read_text().strip() != "max":
        used = int(limit.with_name("memory.current").read_text())
        memory = min(memory, int(limit.read_text()) - used)
    disk = shutil.disk_usage(ROOT).free
    return [
        judge_room("Memory", memory, least=GIB, enough=2 * GIB),
        judge_room("Disk", disk, least=GIB // 5, enough=GIB),
    ]


def judge_room(item: str, free: int, *, least: int, enough: int) -> Finding:
    """Compare free bytes with the least that works and with what is comfortable."""
    detail = f"{free / GIB:.1f} GiB free"
    if free >= enough:
        return Finding(item, "ok", detail)
    remedy = f"close programs or delete files; {enough / GIB:.1f} GiB is comfortable"
    return Finding(item, "FAIL" if free < least else "note", detail, remedy)


def check_address() -> list[Finding]:
    """Do the pages' badges and first cells lead to a course?"""
    from mpcourse.commands.address import address_remedy, read_address

    remedy, address = address_remedy(), read_address()
    return [Finding("Public address", "note" if remedy else "ok", address.repository, remedy)]


def check_overlap() -> list[Finding]:
    """Do two workers compute at the same time? Two equal jobs against one of them."""
    from mpcourse.devices.devices import available_cores, get_devices
    from mpcourse.devices.jobs import matrix_jobs
    from mpcourse.devices.timing import measure_overlap

    devices = get_devices(2)
    ratio = measure_overlap(matrix_jobs(devices), devices)
    return [judge_overlap(ratio, kind=devices[0].kind, cores=available_cores())]


def judge_overlap(ratio: float, *, kind: str, cores: int) -> Finding:
    """Judge the time of two jobs divided by that of one: 1 is full overlap, 2 is none."""
    detail = f"two jobs on two workers take {ratio:.2f} x the time of one (1: full overlap)"
    if kind == "cpu core" and cores < 2:
        return Finding("Overlap", "note", f"{detail}; with one core they cannot overlap")
    if ratio <= 1.5:
        return Finding("Overlap", "ok", detail)
    return Finding("Overlap", "note", detail, LITTLE_OVERLAP)


def check_data() -> list[Finding]:
    """Can the MNIST sample of the pages be read?"""
    from mpcourse.training.mnist import load_mnist

    try:
        train, test = load_mnist()
        train[0], test[0]
    except (FileNotFoundError, RuntimeError) as error:
        return [Finding("MNIST sample", "FAIL", str(error), "in the clone: git checkout -- data")]
    return [Finding("MNIST sample", "ok", f"{len(train):,} and {len(test):,} images")]


CHECKS: dict[str, Callable[[], list[Finding]]] = {
    "Python": check_python,
    "Versions": check_versions,
    "Imports": check_imports,
    "Course": check_course,
    "Devices": check_devices,
    "torchvision's operators": check_operators,
    "Jupyter kernel": check_kernel,
    "Sliders": check_widgets,
    "Room": check_room,
    "Overlap": check_overlap,
    "MNIST sample": check_data,
    "Public address": check_address,
}

if __name__ == "__main__":
    sys.exit(main())
