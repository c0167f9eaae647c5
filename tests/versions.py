"""Run the tests against other versions of torch, ipywidgets and Python: `python tests/versions.py`.

Each gets an environment of its own, some GB on disk, which is deleted afterwards. The last result
of each is kept, with its date, in tests/versions.csv. Standard library only.
"""

import argparse
import csv
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests/versions.csv"
NEWEST = "newest"
QUICK = ("-m", "not slow and not browser and not hosted")
VERSIONS = """
import importlib.metadata, platform
names = "torch", "torchvision", "ipywidgets"
print(*map(importlib.metadata.version, names), platform.python_version())"""


@dataclass(frozen=True)
class Case:
    """What an environment is asked to have; `newest` leaves it to pip."""

    torch: str = NEWEST
    ipywidgets: str = NEWEST
    python: str = ""

    def requirements(self) -> list[str]:
        """What pip is to install beside the course's own requirement files."""
        wanted = []
        if self.torch != NEWEST:
            # torchvision's minor number is torch's plus 15 from torch 2.0 on
            vision = f"0.{int(_parts(self.torch)[1]) + 15}"
            wanted += [f"torch=={self.torch}.*", f"torchvision=={vision}.*"]
        if self.ipywidgets != NEWEST:
            _parts(self.ipywidgets)
            wanted += [f"ipywidgets=={self.ipywidgets}.*"]
        return wanted


@dataclass(frozen=True)
class Result:
    """One line of the results: the versions that were there, and how the tests went."""

    torch: str
    torchvision: str
    ipywidgets: str
    python: str
    tests: str
    passed: int
    failed: int
    skipped: int
    minutes: float
    date: str


def _parts(version: str) -> list[str]:
    if not re.fullmatch(r"\d+\.\d+", version):
        raise ValueError(f"a version is two numbers, as in 2.9, or {NEWEST}; not {version!r}")
    return version.split(".")


def make_cases(
    torch: Sequence[str], ipywidgets: Sequence[str], python: Sequence[str]
) -> list[Case]:
    """One version at a time differs from the newest, on the running Python."""
    cases = [Case(torch=version) for version in torch]
    cases += [Case(ipywidgets=version) for version in ipywidgets]
    cases += [Case(python=version) for version in python]
    return list(dict.fromkeys(cases))


def find_python(version: str) -> str | None:
    """Find a Python on this machine."""
    path = shutil.which(f"python{version}") or shutil.which(version) if version else sys.executable
    if path is None:
        return None
    started = subprocess.run([path, "-c", "import venv"], capture_output=True)
    return path if started.returncode == 0 else None


def make_environment(python: str, case: Case, folder: Path) -> Path:
    """Make an environment with the course, its tests and the versions asked for."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    own = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    files = ("-r", "requirements.txt", "-r", "tests/requirements.txt")
    command = [own, "-m", "pip", "install", "--quiet", *case.requirements(), *files]
    subprocess.run(command, check=True, cwd=ROOT)
    return own


def run_tests(python: Path, arguments: Sequence[str], *, label: str, report: Path) -> Result:
    """Run pytest in an environment."""
    start = time.perf_counter()
    pytest = [python, "-m", "pytest", "-q", "--no-header", f"--junitxml={report}", *arguments]
    subprocess.run(pytest, cwd=ROOT)
    minutes = (time.perf_counter() - start) / 60
    versions = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True)
    counts = read_report(report.read_text(encoding="utf-8"))
    today = datetime.date.today().isoformat()
    return Result(*versions.stdout.split(), label, *counts, round(minutes, 1), today)


def read_report(text: str) -> tuple[int, int, int]:
    """Count in a JUnit report."""
    suites = list(ElementTree.fromstring(text).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def merge(old: Iterable[Result], new: Result) -> list[Result]:
    """Put a result in the place of an earlier one of the same versions and tests."""

    def key(result: Result) -> tuple:
        versions = astuple(result)[:4]
        numbers = [[int(n) for n in re.findall(r"\d+", version)] for version in versions]
        return numbers, result.tests

    return sorted([*(one for one in old if key(one) != key(new)), new], key=key)


def read_results(path: Path) -> list[Result]:
    """Read the results that are kept; none when there is no such file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [_result(row) for row in csv.DictReader(file)]


def _result(row: dict[str, str]) -> Result:
    return Result(**{field.name: field.type(row[field.name]) for field in fields(Result)})


def write_results(results: Iterable[Result], path: Path) -> None:
    """Write all results, in one step."""
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Result)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, results))
    os.replace(part, path)


def run_case(case: Case, arguments: Sequence[str], *, label: str) -> bool:
    """Make an environment, run the tests in it, keep the result, delete it."""
    python = find_python(case.python)
    if python is None:
        print(f"no Python {case.python} on this machine", flush=True)
        return True
    print(f"{case}: making its environment", flush=True)
    with tempfile.TemporaryDirectory(prefix="mpcourse-versions-") as folder:
        try:
            own = make_environment(python, case, Path(folder, "environment"))
            result = run_tests(own, arguments, label=label, report=Path(folder, "report.xml"))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            print(f"{case}: {error}", file=sys.stderr, flush=True)
            return False
    write_results(merge(read_results(RESULTS), result), RESULTS)
    print(result, flush=True)
    return result.failed == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases, one after the other; return 1 when a test failed in one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", nargs="*", metavar="VERSION", help="such as 2.9, or newest")
    parser.add_argument("--ipywidgets", nargs="*", metavar="VERSION", help="such as 7.7")
    parser.add_argument("--python", nargs="*", metavar="VERSION", help="such as 3.12, or a path")
    parser.add_argument("--all", action="store_true", help="also what is slow, and all pages")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="the quick ones of these")
    asked = parser.parse_args(argv)
    cases = make_cases(asked.torch or (), asked.ipywidgets or (), asked.python or ())
    if not cases:
        cases = make_cases(
            ["2.9", "2.11", "2.13", NEWEST], ["7.7", "8.1"], ["3.11", "3.12", "3.13"]
        )
    for case in cases:
        case.requirements()  # a wrong version is told before anything is installed
    arguments = ["tests", "notebooks"] if asked.all else [*QUICK, *(asked.tests or ["tests"])]
    label = "all" if asked.all else " ".join(asked.tests or ["quick"])
    return 0 if all([run_case(case, arguments, label=label) for case in cases]) else 1


if __name__ == "__main__":
    sys.exit(main())
