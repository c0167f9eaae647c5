"""Print the lines for GPUs, and which of them ran without one: `python tests/cuda_lines.py`.

The tests that pretend CUDA (`pretend_cuda`), or those named, run under a trace. A line is for GPUs
if it asks CUDA for something or stands under an `if` that does.
"""

import ast
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "mpcourse"
CUDA = ("cuda", "cudnn", "record_stream", "wait_event", "wait_stream", "record_event")


def lines_for_gpus(source: str) -> Iterator[int]:
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _lines(function.body, inside=False)


def _lines(statements: list[ast.stmt], *, inside: bool) -> Iterator[int]:
    for statement in statements:
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        own = ast.unparse(statement).splitlines()[0] if any(blocks) else ast.unparse(statement)
        asks = any(word in own for word in CUDA) and not isinstance(statement, ast.FunctionDef)
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if (inside or asks) and not is_text:
            yield statement.lineno
        for block in blocks:
            below = inside or (asks and isinstance(statement, ast.If))
            yield from _lines(block, inside=below)


def main() -> int:
    """Run the tests, print what they did not reach; return pytest's exit status."""
    ran: dict[str, set[int]] = {}

    def trace(frame: FrameType, event: str, argument: object):
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)):
            return None
        ran.setdefault(file, set()).add(frame.f_lineno)
        return trace

    pretending = [f for f in TESTS.rglob("test_*.py") if "pretend_cuda" in f.read_text("utf-8")]
    threading.settrace(trace)
    sys.settrace(trace)
    status = pytest.main(["-q", *(sys.argv[1:] or map(str, sorted(pretending)))])
    sys.settrace(None)
    threading.settrace(None)
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines, reached = set(lines_for_gpus(text)), ran.get(str(path), set())
        if lines:
            print(f"\n{path.relative_to(PACKAGE)}: {len(lines & reached)} of {len(lines)} ran")
        for number in sorted(lines - reached):
            print(f"  {number:4}  {text.splitlines()[number - 1].strip()}")
    return status


if __name__ == "__main__":
    sys.exit(main())
