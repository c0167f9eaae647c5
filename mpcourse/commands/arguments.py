"""What may be typed after `pages` and `grade`: read before anything is installed, and in what runs.

Behind `python -m mpcourse` (page `start_here`); standard library only.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

LOOKED_FOR = "LEARNER/NN_page.ipynb or LEARNER_NN_page.ipynb"


def pages_arguments() -> argparse.ArgumentParser:
    """What follows `pages`; also to be a parent of a parser."""
    parser = argparse.ArgumentParser("python -m mpcourse pages", add_help=False, allow_abbrev=False)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="number, name or path; none: all")
    stored = "run nothing: bring all that the command writes up to date, and the clean copies"
    parser.add_argument("--stored", action="store_true", help=stored)
    address = "run nothing, write the public address everywhere; without URL the clone's origin"
    parser.add_argument("--address", nargs="?", const="", metavar="URL", help=address)
    return parser


def grade_arguments() -> argparse.ArgumentParser:
    """What follows `grade`; also to be a parent of a parser."""
    parser = argparse.ArgumentParser("python -m mpcourse grade", add_help=False, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help=f"holds {LOOKED_FOR}")
    parser.add_argument("--out", type=Path, help="for the results (default: FOLDER-results)")
    for name, kind, least, most, usual, what in [
        ("--time-limit-s", float, 30, 86400, 300, "for a page"),
        ("--memory-gb", float, 1, 1024, 4, "for a page"),
        ("--jobs", int, 1, 64, min(64, max(1, (os.cpu_count() or 1) // 2)), "pages at a time"),
    ]:
        words = f"{what}, from {least} to {most} (default: {usual})"
        parser.add_argument(name, type=number(kind, least, most), default=usual, help=words)
    return parser


def number(kind: type, least: float, most: float) -> Callable[[str], float]:
    """A number within a range, as an argument."""

    def number(text: str) -> float:
        if not least <= kind(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return kind(text)

    return number
