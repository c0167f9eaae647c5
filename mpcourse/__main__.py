"""`python -m mpcourse lab | test | check | pages | handout | site | grade`.

Page `start_here`.

Needs nothing but Python. A Python that is too old gets a sentence, not a SyntaxError: this file has
no syntax newer than Python 3.8, and it imports nothing before it has looked at the version.
"""

import sys

OLDEST_PYTHON = (3, 11)


def python_problem(version: tuple) -> str:
    """Say what to do about a Python that is too old; empty when it is new enough."""
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return ""
    return (
        f"mpcourse needs Python 3.11 or newer; {sys.executable} is {version[0]}.{version[1]}.\n"
        "Install a newer one (python.org, conda or your system's packages) and start with it,\n"
        "for example: python3.12 -m mpcourse lab"
    )


if python_problem(sys.version_info):
    sys.exit(python_problem(sys.version_info))

# ruff: noqa: E402 (only a Python that is new enough, and finds its own modules, gets here)
import os

CLONE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not __package__:  # python3 PATH/mpcourse/__main__.py, typed in another folder
    sys.path[0] = CLONE

from mpcourse.commands import hiding_problem

if hiding_problem(CLONE):
    sys.exit(f"mpcourse: {hiding_problem(CLONE)}: give it another name.")

import signal

if __name__ == "__main__":  # until `main` is there to say that it was stopped, Ctrl-C says nothing
    at_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mpcourse.commands.clean_copies import FIRST_PAGE, HANDED_IN, find_pages, write_copies
from mpcourse.commands.setup import COURSE, ROOT, SITE, TESTS, SetupError, find_environment

# Its labconfig/ has defaults for JupyterLab: nothing to click away, names that can be read. What
# the user has set is left alone, and wins.
LAB_DEFAULTS = ROOT / "mpcourse/commands"
STORED, COPIES = "notebooks", "my_notebooks"
# Many tests wait, for processes or time limits: three at a time keep two cores busy.
# The cells of a page, and the tests of a file, stay in one process. In the order of pyproject.toml:
# else the files of few tests come last, which are slow ones, and the others have nothing to do.
THREE_AT_A_TIME = ("-n", "3", "--dist", "loadscope", "--no-loadscope-reorder")

NOTHING_INSTALLED = """{folder}: {problem}, and this Python has no torch either.
Type this first: python3 -m mpcourse lab (--here: in the environment that is active)"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of everything before `--`."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument(
        "--here", action="store_true", help="use the active environment, not .venv in the clone"
    )
    parser = argparse.ArgumentParser(
        prog="python -m mpcourse",
        description="A course on splitting a neural network over several devices.",
        epilog="All but check and handout make the environment .venv if there is none.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, summary: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            parents=[common],
            help=summary,
            description=f"{summary}. {more}",
            allow_abbrev=False,
        )

    lab = add(
        "lab",
        "Open JupyterLab on the first page",
        f"{COPIES}/ gets clean copies of the pages. After --: JupyterLab's own options.",
    )
    lab.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    lab.add_argument(
        "--stored", action="store_true", help=f"open the pages of {STORED}/ with their outputs"
    )
    lab.add_argument("--port", type=int, help="the port to serve on; the next free one if taken")
    more = "Three at a time. After --: paths and options of pytest; -n 0 runs one after the other."
    add("test", "Run all tests and all pages", more)
    add("check", "Say what this machine has and whether the installation is sound")
    pages = add("pages", "Run the pages and save them with their outputs")
    pages.add_argument("pages", nargs="*", metavar="PAGE", help="number, name or path; none: all")
    stored = "run nothing: bring all that the command writes up to date, and the clean copies"
    pages.add_argument("--stored", action="store_true", help=stored)
    address = "run nothing, write the public address everywhere; without URL the clone's origin"
    pages.add_argument("--address", nargs="?", const="", metavar="URL", help=address)
    handout = add("handout", "Write clean copies of the pages, without outputs, for a class")
    handout.add_argument("folder", type=Path, help="where to; made when absent")
    handout.add_argument("pages", nargs="*", metavar="PAGE", help="number or name; none: all")
    handout.add_argument(
        "--without-solutions",
        action="store_true",
        help="leave them out; a clone of the course still has them",
    )
    site = add(
        "site", "Write the stored pages as a site to read", "It needs no kernel and no network."
    )
    site.add_argument("folder", type=absolute, help="where to; only what it wrote is replaced")
    grade = add(
        "grade",
        "Run learners' copies of the pages and report on each exercise",
        "On Linux their cells see nothing of this machine; elsewhere what does not hold is said.",
    )
    grade.add_argument("folder", type=absolute, help=f"holds {HANDED_IN}")
    grade.add_argument("--out", type=absolute, help="for the results (default: FOLDER-results)")
    for name, kind, least, most, usual, what in [
        ("--time-limit-s", float, 30, 86400, 300, "for a page"),
        ("--memory-gb", float, 1, 1024, 4, "for a page"),
        ("--jobs", int, 1, 64, min(64, max(1, (os.cpu_count() or 1) // 2)), "pages at a time"),
    ]:
        words = f"{what}, from {least} to {most} (default: {usual})"
        grade.add_argument(name, type=number(kind, least, most), default=usual, help=words)
    return parser


def absolute(folder: str) -> str:
    """Where a folder is, seen from where this is typed."""
    return str(Path(folder).resolve())


def number(kind: type, least: float, most: float) -> Callable[[str], float]:
    """A number within a range, as an argument."""

    def number(text: str) -> float:
        if not least <= kind(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return kind(text)

    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, that of the command line when `argv` is None; return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    parser = build_parser()
    options, unknown = parser.parse_known_args(words[:cut])
    if options.command is None and not unknown:
        parser.print_help()
        return 0
    if unknown:
        parser.error(
            f"unknown: {' '.join(unknown)} (what JupyterLab or pytest shall get follows --)"
        )
    if options.command == "lab" and is_root():
        print("You are root, and so is all that a notebook does.", flush=True)
    try:
        return COMMANDS[options.command](options, words[cut + 1 :])
    except SetupError as error:
        print(f"\nmpcourse: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr, flush=True)
        return 130


def run_lab(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Open JupyterLab on the first page; ends when JupyterLab does."""
    environment = find_environment(here=options.here)
    environment.ensure(COURSE)
    folder = STORED if options.stored else COPIES
    if not options.stored:
        hand_out(ROOT / COPIES)
    browser = has_display(os.environ, platform=sys.platform) and not options.no_browser
    if not browser:
        why = "As you asked," if options.no_browser else "There is no display here, so"
        print(f"{why} no browser is opened: open the address with token= below in yours.")
    print("To stop: Ctrl-C, then y.", flush=True)
    folders = [str(LAB_DEFAULTS), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, folders))
    return environment.run(
        *lab_arguments(folder, browser=browser, is_root=is_root(), port=options.port), *rest
    )


def hand_out(folder: Path, names: Sequence[str] = (), *, solutions: bool = True) -> None:
    """Bring the clean copies in `folder` up to date, and say so where something changed."""
    try:
        pages = find_pages(names, folder=ROOT / STORED)
        said = write_copies(pages, folder, solutions=solutions)
    except (OSError, ValueError) as error:
        raise SetupError(f"no clean copies were written to {folder}: {error}") from None
    if said:
        print(said, flush=True)


def has_display(variables: Mapping[str, str], *, platform: str) -> bool:
    """Tell whether a browser can be opened: Linux needs a display, or BROWSER set."""
    if platform in ("win32", "darwin"):
        return True
    return any(variables.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def is_root() -> bool:
    """Tell whether this is the administrator of a machine or container."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def lab_arguments(folder: str, *, browser: bool, is_root: bool, port: int | None) -> list[str]:
    """Return the module and its arguments that start JupyterLab on the first page in `folder`."""
    arguments = ["jupyterlab", f"--LabApp.default_url=/lab/tree/{folder}/{FIRST_PAGE}"]
    if port is not None:
        arguments.append(f"--port={port}")
    if not browser:
        arguments.append("--no-browser")
    if is_root:  # in containers; JupyterLab refuses to run as root otherwise
        arguments.append("--allow-root")
    return arguments


def run_test(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Run unit tests and pages under pytest, which says how it went and how long it took."""
    environment = find_environment(here=options.here)
    environment.ensure(TESTS)
    return environment.run("pytest", "--nbval", *THREE_AT_A_TIME, *rest)


def run_check(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Say what this machine has and whether the installation is sound; installs nothing."""
    environment = find_environment(here=options.here)
    problem = environment.problem(environment.probe())
    if problem and not options.here:
        if importlib.util.find_spec("torch") is None:
            message = NOTHING_INSTALLED.format(folder=environment.folder, problem=problem)
            raise SetupError(message)
        environment = find_environment(here=True)
    return environment.run("mpcourse.commands.check")


def run_handout(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Write clean copies of the pages for a class; what is there already is kept."""
    hand_out(options.folder, options.pages, solutions=not options.without_solutions)
    return 0


def run_module(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Run what needs the environment in it, with the options as they were understood."""
    environment = find_environment(here=options.here)
    environment.ensure(SITE if options.command == "site" else COURSE)
    return environment.run(MODULES[options.command], json.dumps(vars(options)))


MODULES = {
    "pages": "mpcourse.commands.pages",
    "site": "mpcourse.commands.site.site",
    "grade": "mpcourse.commands.grading.gradebook",
}
COMMANDS = {
    "lab": run_lab,
    "test": run_test,
    "check": run_check,
    "pages": run_module,
    "handout": run_handout,
    "site": run_module,
    "grade": run_module,
}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, at_interrupt)
    sys.exit(main())
