"""What `python -m mpcourse check` looks at: the installation, and what the machine has.

Page `start_here`.

Heavy imports stand inside the checks, so that a broken package fails its own lines only. Source for
torchvision's operators: github.com/pytorch/vision/issues/9077.
"""

import ast
import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mpcourse.commands.setup import ROOT

GIB = 2**30
KERNEL_CODE = "import sys"
LIMIT_S = 90.0  # a first start from a slow disk takes half a minute

INSTALL = "python3 -m mpcourse lab installs what is missing (--here: where you are now)"
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
        remedy = f"mend what failed above; if nothing did, {INSTALL}"
        return [Finding(item, "FAIL", f"{type(error).__name__}: {error}", remedy)]


def check_python() -> list[Finding]:
    """Is this a Python that the course is tested on, and where is it?"""
    detail = f"{platform.python_version()} at {sys.executable}"
    word = "ok" if sys.version_info < (3, 14) else "note"
    return [Finding("Python", word, f"{detail} (tested: 3.11 to 3.13)")]


def check_versions() -> list[Finding]:
    """Does the version of each requirement lie in the range of requirements.txt?"""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    ranges = [line.split("#")[0].strip() for line in lines]
    return [judge_version(text) for text in ranges if text and not text.startswith("-")]


def judge_version(requirement: str) -> Finding:
    """Compare what is installed with one line of requirements.txt, such as `torch>=2.9`."""
    name = requirement.split(">")[0]
    hosted = os.environ.keys() & {"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"}
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if hosted and name in ("jupyterlab", "nbval"):
            return Finding(name, "note", "not installed; Colab and Kaggle do without it")
        return Finding(name, "FAIL", "not installed", INSTALL)
    from packaging.requirements import Requirement

    allowed = Requirement(requirement).specifier
    if allowed.contains(found, prereleases=True):
        return Finding(name, "ok", f"{found} (allowed: {allowed})")
    return Finding(name, "FAIL", f"{found} is outside {allowed}", INSTALL)


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
        f"CPUs and the other for CUDA. Install both from one index: {sys.executable} -m pip "
        f"install --force-reinstall torch=={version} torchvision{index}"
    )


def check_kernel() -> list[Finding]:
    """Does a Jupyter kernel start where the pages are, and compute?"""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(
        startup_timeout=LIMIT_S,
        kernel_name="python3",
        cwd=str(ROOT / "notebooks"),
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # it warns of what a laptop need not do
    )
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
        remedy = f"{sys.executable} -m ipykernel install --sys-prefix"
        return Finding("Jupyter kernel", "FAIL", detail, remedy)
    return Finding("Jupyter kernel", "ok", "it starts, and 1 + 1 = 2")


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
    from mpcourse.commands.address import address_remedy, read_repository

    remedy = address_remedy()
    return [Finding("Public address", "note" if remedy else "ok", read_repository(), remedy)]


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
    "Devices": check_devices,
    "torchvision's operators": check_operators,
    "Jupyter kernel": check_kernel,
    "Room": check_room,
    "Overlap": check_overlap,
    "MNIST sample": check_data,
    "Public address": check_address,
}

if __name__ == "__main__":
    sys.exit(main())
