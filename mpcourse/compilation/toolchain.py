"""Can torch.compile work here? On a CPU it writes C++, on a GPU Triton and C; both need tools."""

import contextlib
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

DEFAULT = {"darwin": "clang++", "win32": "cl"}
WITHOUT = "(nothing else on the page needs it)"


def cpp_compiler() -> str | None:
    """The command of the C++ compiler that torch.compile calls; `None` where there is none.

    It is the one that the environment variable CXX names, else g++, clang++ on macOS, cl on
    Windows.
    """
    command = os.environ.get("CXX") or DEFAULT.get(sys.platform, "g++")
    words = shlex.split(command, posix=os.name != "nt")
    if not words or shutil.which(words[0]) is None:
        return None
    if sys.platform == "win32":  # cl knows no --version
        return command
    try:  # without Apple's command line tools, clang++ is a stub that fails
        subprocess.run([*words, "--version"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return command


def compiler_problem(place: str = "cpu") -> str:
    """Why torch.compile cannot work on "cpu" or "cuda", and what to do; empty where it can."""
    if cpp_compiler() is None:
        return (
            "torch.compile needs a C++ compiler, and none was found. Install one (Debian, Ubuntu: "
            "g++; macOS: xcode-select --install; Windows: the Visual Studio build tools), or let "
            f"the environment variable CXX name yours {WITHOUT}"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return (
            "torch.compile needs Python.h, the headers of this Python, and they are not there. "
            f"Debian and Ubuntu have them in python3-dev {WITHOUT}"
        )
    if place == "cuda" and importlib.util.find_spec("triton") is None:
        return f"torch.compile needs triton for a GPU: python -m pip install triton {WITHOUT}"
    return ""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence what the compiler logs and warns of when it starts, errors excepted."""
    # "No CUDA runtime is found", beside a torch built for CUDA
    with only_errors("torch.utils.cpp_extension"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="dynamo_pgo")  # the cache is off on purpose
        # some versions of torch use it in the compiler itself
        warnings.filterwarnings("ignore", message=".torch.jit.script_method. is deprecated")
        warnings.filterwarnings("ignore", message="TensorFloat32")  # advice on recent GPUs
        yield


@contextlib.contextmanager
def only_errors(name: str) -> Iterator[None]:
    """Raise the level of the logger of this name to ERROR."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
