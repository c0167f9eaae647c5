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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests/versions.csv"
NEWEST = "newest"
QUICK = ("-m", "not slow and not browser and not hosted")
PACKAGES = ["torch", "torchvision", "ipywidgets", "python"]
COLUMNS = [*PACKAGES, "tests", "passed", "failed", "skipped", "minutes", "date"]
VERSIONS = """
import importlib.metadata, platform
names = "torch", "torchvision", "ipywidgets"
print(*map(importlib.metadata.version, names), platform.python_version())"""


class Case(NamedTuple):
    """What an environment is asked to have; `newest` leaves it to pip."""

    torch: str = NEWEST
    ipywidgets: str = NEWEST
    python: str = ""

    def requirements(self) -> list[str]:
        """What pip is to install beside the course's own requirement files."""
        for version in {self.torch, self.ipywidgets} - {NEWEST}:
            if not re.fullmatch(r"\d+\.\d+", version):
                words = f"a version is two numbers, as in 2.9, or {NEWEST}; not {version!r}"
                raise ValueError(words)
        wanted = []
        if self.torch != NEWEST:
            # torchvision's minor number is torch's plus 15 from torch 2.0 on
            vision = f"0.{int(self.torch.split('.')[1]) + 15}"
            wanted += [f"torch=={self.torch}.*", f"torchvision=={vision}.*"]
        return wanted + [f"ipywidgets=={self.ipywidgets}.*"] * (self.ipywidgets != NEWEST)


def run_tests(python: str, case: Case, folder: Path, arguments: Sequence[str]) -> dict[str, object]:
    """Make an environment in a folder, run pytest there, return a line of the results."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    own = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    files = ("-r", "requirements.txt", "-r", "tests/requirements.txt")
    install = [own, "-m", "pip", "install", "--quiet", *case.requirements(), *files]
    subprocess.run(install, check=True, cwd=ROOT)
    start, report = time.perf_counter(), folder / "report.xml"
    pytest = [own, "-m", "pytest", "-q", "--no-header", f"--junitxml={report}", *arguments]
    subprocess.run(pytest, cwd=ROOT)
    minutes = round((time.perf_counter() - start) / 60, 1)
    versions = subprocess.run([own, "-c", VERSIONS], capture_output=True, text=True, check=True)
    suites = list(ElementTree.fromstring(report.read_text(encoding="utf-8")).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    counts = {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}
    found = dict(zip(PACKAGES, versions.stdout.split(), strict=True)) | counts
    return found | {"minutes": minutes, "date": datetime.date.today().isoformat()}


def keep(new: dict[str, object], path: Path = RESULTS) -> None:
    """Write a line in the place of an earlier one of the same versions and tests, in one step."""

    def key(row: dict) -> tuple:
        numbers = [[int(n) for n in re.findall(r"\d+", row[name])] for name in PACKAGES]
        return numbers, row["tests"]

    old = csv.DictReader(path.read_text("utf-8").splitlines()) if path.is_file() else []
    rows = sorted([*(row for row in old if key(row) != key(new)), new], key=key)
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(part, path)


def run_case(case: Case, arguments: Sequence[str], *, label: str) -> bool:
    """Make an environment, run the tests in it, keep the result, delete it."""
    python = shutil.which(f"python{case.python}" if case.python else sys.executable)
    if python is None:
        print(f"no Python {case.python} on this machine", flush=True)
        return True
    print(f"{case}: making its environment", flush=True)
    with tempfile.TemporaryDirectory(prefix="mpcourse-versions-") as folder:
        try:
            result = run_tests(python, case, Path(folder, "environment"), arguments)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            print(f"{case}: {error}", file=sys.stderr, flush=True)
            return False
    keep(result | {"tests": label})
    print(result, flush=True)
    return result["failed"] == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases, one after the other; return 1 when a test failed in one of them.

    In each case one version differs from the newest, on the running Python.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", nargs="*", metavar="VERSION", help="such as 2.9, or newest")
    parser.add_argument("--ipywidgets", nargs="*", metavar="VERSION", help="such as 7.7")
    parser.add_argument("--python", nargs="*", metavar="VERSION", help="such as 3.12")
    parser.add_argument("--all", action="store_true", help="also what is slow, and all pages")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="the quick ones of these")
    asked = parser.parse_args(argv)
    versions = [asked.torch or (), asked.ipywidgets or (), asked.python or ()]
    if not any(versions):
        versions = [["2.9", "2.11", "2.13", NEWEST], ["7.7", "8.1"], ["3.11", "3.12", "3.13"]]
    names = zip(Case._fields, versions, strict=True)
    cases = list(dict.fromkeys(Case(**{name: each}) for name, some in names for each in some))
    for case in cases:
        case.requirements()  # a wrong version is told before anything is installed
    arguments = ["tests", "notebooks"] if asked.all else [*QUICK, *(asked.tests or ["tests"])]
    label = "all" if asked.all else " ".join(asked.tests or ["quick"])
    return 0 if all([run_case(case, arguments, label=label) for case in cases]) else 1


if __name__ == "__main__":
    sys.exit(main())
