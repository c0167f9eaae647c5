"""What `python -m mpcourse check` looks at: the installation, the clone, and what the machine has.

Page `start_here`. Imports stand inside the checks, so that a broken package fails its own lines
only. Source for what to do about torchvision: github.com/pytorch/vision/issues/9077.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import pkgutil
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from mpcourse.commands import hiding_problem
from mpcourse.commands.clean_copies import find_pages
from mpcourse.commands.setup import COURSE, ROOT, find_environment, read_requirements

GIB = 2**30
LIMIT_S = 90.0  # a kernel's first start from a slow disk takes half a minute
PYTHON = f'"{sys.executable}"' if " " in sys.executable else sys.executable
INSTALL = "python3 -m mpcourse lab installs what is missing (--here: where you are now)"
RESTORE = "in the clone: git checkout -- "
ANEW = f"{PYTHON} -m pip install --force-reinstall"
KERNEL = f"{PYTHON} -m ipykernel install --sys-prefix"
WIDGETS = "@jupyter-widgets/jupyterlab-manager"  # of the package jupyterlab_widgets

# "ok", "FAIL", or "note" (good to know); what was seen; what to do about it.
Finding = tuple[str, str, str]


def main() -> int:
    """Print what each check finds; one that raises has failed, and the others go on."""
    failed = 0
    for item, check in CHECKS.items():
        try:
            findings = list(check())
        except Exception as error:  # any: whatever a damaged package raises
            findings = [("FAIL", f"{type(error).__name__}: {error}", mend(error))]
        for word, detail, remedy in findings:
            failed += word == "FAIL"
            print(f"{word:<4}  {item}: {detail}")
            print(f"      what to do: {remedy}\n" if remedy else "", end="", flush=True)
    print(f"\nFAILED: {failed}; each line says what to do." if failed else "\nNothing failed.")
    return 1 if failed else 0


def mend(error: Exception, module: str = "") -> str:
    """Say what to do about an exception, raised by the import of `module` if that is named."""
    if "torchvision" in f"{module} {error}" and not isinstance(error, ModuleNotFoundError):
        return mend_operators()
    if str(ROOT / "data") in str(error):
        return f"{RESTORE}data"
    top = (getattr(error, "name", "") or module).partition(".")[0]
    if top == "mpcourse":
        return f"git diff shows what was changed; to take it back, {RESTORE}mpcourse"
    return reinstall(top) if top else f"mend what failed above; if nothing did, {INSTALL}"


def mend_operators() -> str:
    """Say how to get a torchvision from where torch came from."""
    version, _, build = importlib.metadata.version("torch").partition("+")
    has_index = build.startswith(("cpu", "cu", "rocm", "xpu"))
    index = f" --index-url https://download.pytorch.org/whl/{build}" if has_index else ""
    words = "torch and torchvision have to come from one index"
    return f"{words}: {ANEW} torch=={version} torchvision{index}"


def reinstall(module: str) -> str:
    """The line that installs the package of a module anew, and what it needs."""
    asked = {line.split(">")[0]: line for line in read_requirements(COURSE)}
    return f'{ANEW} "{asked.get(module, module)}"'


def check_versions() -> Iterator[Finding]:
    """Does the version of each requirement lie in its range?"""
    word = "ok" if sys.version_info < (3, 14) else "note"
    yield word, f"{platform.python_version()} at {sys.executable} (tested: 3.11 to 3.13)", ""
    facts = find_environment(here=True).probe(COURSE)
    for line in facts["missing"]:
        yield "FAIL", f"{line} is not installed, or in another version", INSTALL
    if not facts["has_pip"]:
        yield "note", "it has no pip", f"{PYTHON} -m ensurepip, or use uv pip"


def check_imports() -> Iterator[Finding]:
    """Can every package be imported that was asked for, and every module that pages may use?"""
    import mpcourse

    asked = [line.split(">")[0] for line in read_requirements(COURSE)]
    names = [name for name in asked if importlib.util.find_spec(name)]  # the others were named
    own = pkgutil.walk_packages(mpcourse.__path__, "mpcourse.", onerror=lambda name: None)
    failed = {}
    # what commands import is not for all of them, such as Sphinx
    modules = [each.name for each in own if not re.search("commands|__main__", each.name)]
    for name in names + modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # any: whatever a damaged package raises
            words = f"{type(error).__name__}: {error}"  # the same from all who import it in turn
            failed.setdefault(words, ("FAIL", f"{name}: {words}", mend(error, name)))
    versions = (f"{name} {importlib.metadata.version(name)}" for name in names)
    yield from failed.values() or [("ok", f"{', '.join(versions)}, all of the course", "")]


def check_course() -> Iterator[Finding]:
    """Are the pages, and your copies of them, there and whole? Is the course as it was?"""
    found = []
    for folder in (ROOT / "notebooks", ROOT / "my_notebooks"):
        if problem := hiding_problem(str(folder)):
            found.append(("FAIL", problem, "give it another name"))
        for page in filter(is_damaged, find_pages([], folder=folder)):
            path = page.relative_to(ROOT).as_posix()
            anew = "rename or delete it: python3 -m mpcourse lab makes a clean copy"
            remedy = anew if folder.name == "my_notebooks" else f"{RESTORE}{path}"
            found.append(("FAIL", f"{path} is damaged", remedy))
    command = ["git", "-c", "core.quotepath=off", "status", "--porcelain", "--untracked-files=no"]
    with contextlib.suppress(FileNotFoundError):  # no git: nothing to compare with
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        for line in run.stdout.splitlines():
            state, path = line[:2], line[3:]
            if "D" in state and path.startswith(("mpcourse/", "notebooks/", "data/")):
                found.append(("FAIL", f"{path} is missing", f"{RESTORE}{path}"))
            elif path.startswith("mpcourse/"):
                remedy = f"git diff shows how; to take it back, {RESTORE}{path}"
                found.append(("note", f"{path} was changed", remedy))
    yield from found or [("ok", "nothing is missing, damaged or changed", "")]


def is_damaged(page: Path) -> bool:
    """Whether a file is no notebook, or one without cells."""
    try:
        return not json.loads(page.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, LookupError, TypeError):
        return True


def check_kernel() -> Iterator[Finding]:
    """Does a Jupyter kernel start where the pages are, in this environment?"""
    command = [sys.executable, "-m", "jupyter_client.runapp", "--kernel=python3"]
    settings = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    code = "import sys; print(sys.prefix)"
    run = subprocess.run(command, input=code, cwd=ROOT / "notebooks", **settings)
    prefix = run.stdout.strip()
    if run.returncode:
        yield "FAIL", run.stderr.strip().rpartition("\n")[2], KERNEL
    elif prefix != sys.prefix:
        yield "FAIL", f"the one named python3 runs in {prefix}, not in {sys.prefix}", KERNEL
    else:
        yield "ok", "it starts and answers", ""


def check_widgets() -> Iterator[Finding]:
    """Does JupyterLab have what draws the sliders?"""
    from jupyter_core.paths import jupyter_path

    places = [Path(place, WIDGETS, "package.json") for place in jupyter_path("labextensions")]
    missing = "FAIL", f"the extension {WIDGETS} is missing", reinstall("jupyterlab_widgets")
    yield ("ok", WIDGETS, "") if any(place.is_file() for place in places) else missing


def check_machine() -> Iterator[Finding]:
    """Which devices do the pages get? Is there memory for them, and room to save pages and data?"""
    import psutil

    from mpcourse.devices import describe_devices, get_devices

    yield "ok", describe_devices(get_devices(2)), ""
    memory = psutil.virtual_memory().available
    limit = Path("/sys/fs/cgroup/memory.max")  # a container's own limit; psutil sees the machine
    if limit.exists() and limit.read_text().strip() != "max":
        used = int(limit.with_name("memory.current").read_text())
        memory = min(memory, int(limit.read_text()) - used)
    disk = shutil.disk_usage(ROOT).free
    for what, free, least in (("memory", memory, 1), ("disk", disk, 0.2)):
        said = f"{free / GIB:.1f} GiB of {what} free; {least} GiB is needed"
        is_short = free < least * GIB
        yield ("FAIL", said, "close programs or delete files") if is_short else ("ok", said, "")


def check_data() -> Iterator[Finding]:
    """Can the MNIST sample of the pages be read?"""
    from mpcourse.training.mnist import load_mnist

    train, test = load_mnist()
    train[0], test[0]
    yield "ok", f"{len(train):,} and {len(test):,} images", ""


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "Python": check_versions,
    "Imports": check_imports,
    "Course": check_course,
    "Jupyter kernel": check_kernel,
    "Sliders in JupyterLab": check_widgets,
    "This machine": check_machine,
    "MNIST sample": check_data,
}

if __name__ == "__main__":
    sys.exit(main())
