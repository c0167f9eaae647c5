"""What may be typed after `pages` and `grade`: read before anything is installed, and in what runs.

Behind `python -m mpcourse` (page `start_here`); standard library only.
"""

import argparse
from pathlib import Path


def pages_arguments() -> argparse.ArgumentParser:
    """What follows `pages`, to be a parent of a parser."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="number, name or path; none: all")
    parser.add_argument("--check", action="store_true", help="change nothing, check what is stored")
    parser.add_argument(
        "--stored",
        action="store_true",
        help="run nothing: bring all that the command writes up to date, and the clean copies",
    )
    parser.add_argument(
        "--address",
        nargs="?",
        const="",
        metavar="URL",
        help="run nothing, write the public address everywhere; without URL the clone's origin",
    )
    parser.add_argument(
        "--branch", metavar="NAME", help="with it; without, the clone's present branch"
    )
    return parser


def grade_arguments() -> argparse.ArgumentParser:
    """What follows `grade`, to be a parent of a parser."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "folder", type=Path, help="holds LEARNER/NN_page.ipynb or LEARNER_NN_page.ipynb"
    )
    parser.add_argument("--out", type=Path, help="for the results (default: FOLDER-results)")
    parser.add_argument(
        "--time-limit-s", type=float, default=300, help="for a page (default: %(default)s)"
    )
    parser.add_argument(
        "--memory-gb", type=float, default=4, help="for a page (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, help="pages at a time (default: half of the cores)")
    parser.add_argument("--again", action="store_true", help="also what was graded before")
    return parser
