"""torchrun, whose ranks begin as copies of a process that has imported torch already.

To import torch takes a core two seconds, in each rank again; to fork a process takes none. The
process that is copied is forked off before torchrun has a thread, and never starts one. With GPUs,
or for a program that sets what torch reads as it is imported, all is as torchrun has it.
"""

import ast
import importlib
import importlib.util
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import time
import types
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

KNOWN = {"mpcourse", "numpy", "torch", "torchvision"}  # start no thread when they are imported
READ_AT_IMPORT = re.compile(rb"^os\.environ\[.(KMP|MKL|OMP|TORCH)_", re.MULTILINE)


class Rank:
    """As much of `subprocess.Popen` as torchrun asks of a rank."""

    def __init__(self, template: Connection, words: list[str], *where: object) -> None:
        self.args, self.returncode, self._template = words, None, template
        self.pid = self._ask((words, *where))

    def _ask(self, question: object) -> int | None:
        self._template.send(question)
        return self._template.recv()

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None:
            try:
                self.returncode = self._ask(self.pid)
            except (EOFError, OSError):  # all of the run is being ended
                self.returncode = -15
        return self.returncode

    def wait(self, timeout: float) -> None:
        """Return when it has ended."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)


def template(torchrun: Connection) -> list[str]:
    """Start ranks and say how they ended; this returns in a rank alone, with its command line."""
    while True:
        try:
            asked = torchrun.recv()
        except EOFError:
            os._exit(0)
        if isinstance(asked, int):
            pid, status = os.waitpid(asked, os.WNOHANG)
            torchrun.send(os.waitstatus_to_exitcode(status) if pid else None)
        elif os.fork() == 0:
            words, environment, *files = asked
            os.setsid()
            for number, name in enumerate(files, start=1):
                if name:
                    os.dup2(os.open(name, os.O_WRONLY), number)
            os.environ.clear()
            os.environ.update(environment)
            torchrun.send(os.getpid())
            torchrun.close()
            return words


def play(words: list[str]) -> None:
    """Run a program as `python` would; the exception that ends it is told without our frames."""
    torch.seed()  # each rank its own, as if it had just begun; Python's generator sees to itself
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            return
        path, sys.argv = os.path.abspath(words[0]), words
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__ = path
        exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__.tb_next)
        sys.exit(1)


def prepare(words: list[str]) -> bool:
    """Import what a program begins with; whether its ranks may be copies of this process."""
    options = run.parse_args(words)
    name = options.training_script
    path = importlib.util.find_spec(name).origin if options.module else name
    source = Path(path).read_bytes()
    for node in ast.parse(source).body:
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else names
        for name in names:
            if name.split(".")[0] in KNOWN:
                importlib.import_module(name)
    if b"optim" in source:
        importlib.import_module("torch._dynamo")  # as the first optimizer does
    return not options.no_python and not READ_AT_IMPORT.search(source)


def main() -> None:
    """Do what `python -m torch.distributed.run` does."""
    try:
        copied = prepare(sys.argv[1:])
    except Exception:  # what is wrong with the program, its ranks say
        copied = False
    if not copied:
        return run.main()
    ours, its = multiprocessing.Pipe()
    if os.fork() == 0:
        ours.close()
        return play(template(its))
    its.close()

    def start(handler: SubprocessHandler, words: list[str], environment: dict[str, str]) -> Rank:
        files = [file and file.name for file in (handler._stdout, handler._stderr)]
        return Rank(ours, [*words[2:]], environment, *files)  # without `python -u`

    if not torch.cuda.is_available():  # asked after the fork: CUDA cannot be forked
        SubprocessHandler._popen = start
    return run.main()


if __name__ == "__main__":
    main()
