"""The command that executes and saves the pages, and the cell that finds the course."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
from forks import commit_all, copy_course, git
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from mpcourse.commands import pages
from mpcourse.commands.address import PLACEHOLDER, Address, badges
from mpcourse.commands.clean_copies import CLEAN, clean_copy, find_pages
from mpcourse.commands.pages import (
    FOLDED,
    bootstrap_source,
    normalise,
    to_text,
    write_links,
)
from mpcourse.commands.setup import ROOT

ADDRESS = Address("https://github.com/someone/mpcourse", "main")
NAME = "01_sample.ipynb"
SITE_PACKAGES = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def save(path: Path, *cells: NotebookNode) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    title = new_markdown_cell("# 01 A sample\n\nAfter this page you can run one.")
    path.write_text(to_text(new_notebook(cells=[title, *cells])), encoding="utf-8")
    return path


def test_the_badges_open_the_clean_copy_on_three_services():
    file, page = "someone/mpcourse/blob/v2", "notebooks/clean/01_sample.ipynb"
    line = badges(ADDRESS._replace(branch="v2"), NAME)
    assert re.findall(r"\[!\[.*?\]\(.*?\)\]\((.*?)\)", line) == [
        f"https://colab.research.google.com/github/{file}/{page}",
        f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}/{page}",
        f"https://mybinder.org/v2/gh/someone/mpcourse/v2?urlpath=lab/tree/{page}",
    ]


@pytest.fixture(scope="module")
def local_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with the package as it is in the working tree."""
    return commit_all(copy_course(tmp_path_factory.mktemp("origin"), "mpcourse", "pyproject.toml"))


def run_python(cwd: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess:
    ours = ("PYTHONPATH", "MPCOURSE_REPOSITORY")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**environment, "COLUMNS": "200", **more},
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_bootstrap(
    cwd: Path, repository: object, *, before: str = "", then: str = "", branch: str = "main"
) -> subprocess.CompletedProcess:
    """Run the cell as a fresh kernel would, where neither folder nor installation offers mpcourse.

    -I leaves the working directory and PYTHONPATH out, -S the .pth files of editable installs.
    """
    cell = bootstrap_source(ADDRESS._replace(branch=branch))
    lines = [f"import sys; sys.path += {SITE_PACKAGES!r}", before, cell, then]
    source = "\n".join(lines)
    return run_python(cwd, "-I", "-S", "-c", source, MPCOURSE_REPOSITORY=str(repository))


WHERE = (
    "import mpcourse, torch as t; print(mpcourse.__file__, t.__version__, sys.path[0], sep='\\n')"
)
FOUND = "print(course)"


def test_numbers_in_title_and_links_follow_the_file_names():
    text = new_markdown_cell(
        "[One](03_other.ipynb#Why?), [two](00_sample.ipynb), [none](04_none.ipynb)."
    )
    notebook = new_notebook(cells=[new_markdown_cell("# 99 Sample"), text])
    write_links(notebook, page_name=NAME, pages=[NAME, "12_other.ipynb"])
    assert notebook.cells[0].source == "# 01 Sample"
    assert (
        text.source == "[One](12_other.ipynb#Why?), [two](01_sample.ipynb), [none](04_none.ipynb)."
    )


def test_the_bootstrap_cell_fetches_the_course_where_only_the_notebook_is(
    tmp_path: Path, local_repository: Path
):
    result = run_bootstrap(tmp_path, local_repository)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    result = run_bootstrap(tmp_path, "/no/such/repository", then=WHERE)  # it is there by now
    clone = tmp_path / "mpcourse-clone/mpcourse/__init__.py"
    expected = [str(clone), torch.__version__, str(tmp_path / "mpcourse-clone")]
    assert result.stdout.splitlines() == expected, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mpcourse-clone"]


WITHOUT_OWNERS = "import os\nif hasattr(os, 'getuid'): del os.getuid"


@pytest.mark.parametrize(
    ("folder", "before"), [("notebooks", ""), (CLEAN, ""), (".", ""), ("notebooks", WITHOUT_OWNERS)]
)
def test_the_bootstrap_cell_finds_a_clone_around_it_and_fetches_nothing(folder: str, before: str):
    result = run_bootstrap(ROOT / folder, "/no/such/repository", before=before, then=WHERE)
    expected = [str(ROOT / "mpcourse/__init__.py"), torch.__version__, str(ROOT)]
    assert result.stdout.splitlines() == expected, result.stderr
    assert not (ROOT / folder / "mpcourse-clone").exists()


def test_an_address_that_cannot_be_fetched_is_named_and_nothing_is_run_as_a_command(
    tmp_path: Path, local_repository: Path
):
    cwd = tmp_path / "a $(touch ran) `touch ran`; touch ran"
    cwd.mkdir()
    assert run_bootstrap(cwd, local_repository).returncode == 0
    for address in ("x; touch ran $(touch ran)", "--upload-pack=touch ran"):
        result = run_bootstrap(tmp_path, address)
        assert result.returncode == 1
        message = result.stderr.split("AssertionError: ")[1]
        assert message.startswith(f"Could not fetch {address} (Kaggle: Internet on?)")
        assert "fatal: repository" in message
    assert list(tmp_path.rglob("ran")) == []


def test_the_first_cell_of_a_page_without_an_address_says_what_to_run(tmp_path: Path):
    run = run_python(tmp_path, "-I", "-S", "-c", bootstrap_source(Address(PLACEHOLDER, "main")))
    assert run.returncode == 1
    assert "AssertionError: First run: %env MPCOURSE_REPOSITORY=" in run.stderr
    assert list(tmp_path.iterdir()) == []


OF_ANOTHER = """\
import os
def stat(path, *given, _stat=os.stat, **options):
    found = _stat(path, *given, **options)
    foreign = str(path) == FOREIGN
    return os.stat_result([*found[:4], found.st_uid + 1, *found[5:]]) if foreign else found
os.stat = stat"""


def lay_course(folder: Path) -> None:
    """What only looks like a course: the package would fail to import."""
    (folder / "mpcourse").mkdir(parents=True)
    (folder / "mpcourse/__init__.py").write_text("1 / 0")
    (folder / "pyproject.toml").touch()


@pytest.mark.parametrize(
    ("mode", "owned", "taken"),
    [
        (0o755, True, True),
        (0o777, True, True),  # a disk that is mounted so, and all of Windows
        (0o755, False, True),  # a teacher's course, or a container's user beside that of the host
        (0o777, False, False),
        (0o1777, True, False),  # a temporary folder, for root
        (0o1777, False, False),
    ],
)
def test_a_package_in_a_parent_folder_is_taken_unless_a_stranger_may_have_laid_it(
    mode: int, owned: bool, taken: bool, tmp_path: Path
):
    parent, mine = tmp_path / "parent", tmp_path / "parent/mine"
    lay_course(parent)
    mine.mkdir()
    parent.chmod(mode)
    before = "" if owned else OF_ANOTHER.replace("FOREIGN", repr(str(parent)))
    result = run_bootstrap(mine, "/no/such/repository", before=before, then=FOUND)
    assert result.stdout == (f"{parent}\n" if taken else "")
    assert taken or "Could not fetch /no/such/repository" in result.stderr


def test_a_package_alone_is_no_course(tmp_path: Path, local_repository: Path):
    lay_course(tmp_path)
    (tmp_path / "pyproject.toml").unlink()
    result = run_bootstrap(tmp_path, local_repository, then=FOUND)
    assert result.stdout == f"{tmp_path / 'mpcourse-clone'}\n", result.stderr


@pytest.mark.parametrize("why", ["half finished", "of another"])
def test_a_clone_that_is_not_whole_or_not_ones_own_is_named_with_what_to_do(
    tmp_path: Path, why: str
):
    clone, before = tmp_path / "mpcourse-clone", ""
    lay_course(clone)
    if why == "half finished":
        (clone / "pyproject.toml").unlink()  # of these, git writes it last
    else:
        tmp_path.chmod(0o1777)
        before = OF_ANOTHER.replace("FOREIGN", repr(str(clone)))
    result = run_bootstrap(tmp_path, "/no/such/repository", before=before, then=FOUND)
    said = f"AssertionError: {clone} is no whole clone of yours: delete it, run this again"
    assert result.stderr.splitlines()[-1] == said


def test_a_clone_of_an_earlier_day_follows_its_branch_and_keeps_what_was_edited(
    tmp_path: Path, local_repository: Path
):
    origin, here = tmp_path / "origin", tmp_path / "here"
    git("clone", "--quiet", local_repository, origin, cwd=tmp_path)
    git("checkout", "--quiet", "-b", "autumn", cwd=origin)
    here.mkdir()

    def publish(edition: str) -> None:
        (origin / "edition").write_text(edition)
        git("add", ".", cwd=origin)
        git("commit", "--quiet", "-m", edition, cwd=origin)

    def opened(address: str = origin.as_uri(), before: str = "") -> str:
        run = run_bootstrap(here, address, branch="autumn", before=before)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        return (here / "mpcourse-clone/edition").read_text()

    publish("first")
    git("checkout", "--quiet", "main", cwd=origin)
    publish("of another branch")
    assert opened() == "first"
    git("checkout", "--quiet", "autumn", cwd=origin)
    publish("second")
    assert opened(before="sys.modules['mpcourse'] = sys") == "first"  # a kernel works with it
    assert opened() == "second"
    git("remote", "set-url", "origin", "/away", cwd=here / "mpcourse-clone")  # without a network
    publish("third")
    assert opened() == "second"
    git("remote", "set-url", "origin", origin.as_uri(), cwd=here / "mpcourse-clone")
    (here / "mpcourse-clone/edition").write_text("own work")
    assert opened() == "own work"


def test_normalise_keeps_what_a_page_is_and_drops_what_a_machine_adds():
    metadata = {"widgets": {"state": {}}, "language_info": {"name": "python", "version": "3.11"}}
    cells = [new_markdown_cell("# 01 A"), new_code_cell("1"), new_code_cell("2")]
    notebook = new_notebook(cells=cells, metadata=metadata)
    notebook.nbformat_minor = 4
    first, second, third = notebook.cells
    first.id = second.id = "kept"
    second.metadata = {"execution": {"shell": "now"}, "tags": ["check"]}
    del third["id"]
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "Slider()"}
    kept = {"text/plain": "Slider()"}
    pieces = [("stdout", "a"), ("stdout", "b"), ("stderr", ""), ("stdout", "c"), ("stderr", "d")]
    streams = [new_output("stream", name=name, text=text) for name, text in pieces]
    third.update(metadata={"scrolled": True}, outputs=[*streams, new_output("display_data", view)])
    before = copy.deepcopy(notebook)
    tidy = normalise(notebook)
    nbformat.validate(tidy)
    assert tidy.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert tidy.cells[0].id == "kept"
    assert len({cell.id for cell in tidy.cells}) == 3
    assert [cell.metadata for cell in tidy.cells] == [{}, {"tags": ["check"]}, {}]
    *said, shown = tidy.cells[2].outputs
    assert [(o.name, o.text) for o in said] == [("stdout", "abc"), ("stderr", "d")]
    assert shown.data == kept
    assert notebook == before, "the argument was changed"
    assert normalise(tidy) == tidy


@pytest.mark.parametrize("name", ["01", "1", "01_sample", "sample", NAME])
def test_a_page_is_found_by_number_by_name_and_by_path(tmp_path: Path, name: str):
    first, other, draft = (save(tmp_path / file) for file in (NAME, "10_other.ipynb", "a.ipynb"))
    assert find_pages([name, str(draft)], folder=tmp_path) == [first, draft]
    assert find_pages([], folder=tmp_path) == [first, other]


def asked(*names: object) -> dict:
    """As it is understood when pages are named and nothing else."""
    return {"pages": [*map(str, names)], "stored": False, "address": None}


def test_an_unknown_page_is_named_and_so_are_those_there_are(capsys):
    assert pages.main(asked("no-such-page")) == 2
    assert "no page 'no-such-page'; there are: 00_start_here" in capsys.readouterr().err


FIRST = "notebooks/00_start_here.ipynb"  # its first cell is that of all pages
COPIED = ("mpcourse", "pyproject.toml", "requirements.txt", FIRST)
SLIDER = "from ipywidgets import IntSlider\nIntSlider(value=3, description='rows')"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the command needs, with one page of our own."""
    folder = copy_course(tmp_path_factory.mktemp("course"), *COPIED)
    save(
        folder / "notebooks" / NAME,
        new_code_cell("import os\nimport mpcourse\n\nprint('one')\nos.path.basename(os.getcwd())"),
        new_code_cell("1 / 0"),
        new_code_cell(SLIDER),
        new_code_cell("object()"),
        new_code_cell("import time\n\ntime.time_ns()"),
        new_code_cell("import sys\n\nprint('a note of this machine', file=sys.stderr)"),
    )
    notebook = pages.read(folder / "notebooks" / NAME)
    notebook.cells[2].metadata.tags = ["raises-exception"]
    notebook.cells[5].metadata.tags = ["nbval-ignore-output"]
    (folder / "notebooks" / NAME).write_text(to_text(notebook), encoding="utf-8")
    return folder


def test_a_page_runs_in_its_folder_and_is_saved_with_its_outputs(course: Path):
    run = run_python(course, "-m", "mpcourse", "pages", "--here", "01")
    assert run.returncode == 0, run.stderr
    cells = pages.read(course / "notebooks" / NAME).cells
    assert [cell.execution_count for cell in cells[1:]] == [1, 2, 3, 4, 5, 6, 7]
    assert cells[2].outputs[0].text == "one\n"
    assert cells[2].outputs[1].data == {"text/plain": "'notebooks'"}
    assert cells[4].outputs[0].data == {"text/plain": "IntSlider(value=3, description='rows')"}
    assert {key for cell in cells for key in cell.metadata} == {"tags", *FOLDED}
    assert (course / "notebooks" / NAME).read_bytes().endswith(b"}\n")
    clean = (course / CLEAN / NAME).read_text(encoding="utf-8")
    assert clean == clean_copy((course / "notebooks" / NAME).read_text(encoding="utf-8"))
    names = sorted(path.name for path in course.rglob("notebooks/**/*"))
    assert names == [Path(FIRST).name, NAME, NAME, "clean"]
    [error] = cells[3].outputs  # no paths of the machine
    assert error.ename == "ZeroDivisionError"
    text = "\n".join(error.traceback)
    assert "----> 1 1 / 0" in text
    assert str(course) not in text
    assert "\x1b" not in text


def test_a_page_without_title_and_a_check_that_no_exercise_has_are_named():
    check = new_code_cell("check_mine(my_work)", metadata={"tags": ["check"]})
    notebook = new_notebook(cells=[check, new_markdown_cell("On.")])
    with pytest.raises(ValueError, match=r"check_mine is not in mpcourse/exercises/mine\.py"):
        pages.write_solutions(notebook, "mine")
    with pytest.raises(ValueError, match=f"{NAME}: the first cell"):
        pages.write_address(notebook, ADDRESS, page_name=NAME)


FAILING = {
    "1 / 0": "ZeroDivisionError: division by zero",
    "import os\n\nos._exit(1)": "Kernel died",
    "while True:\n    pass": "A cell timed out",
}


def test_a_page_that_fails_stays_as_it_was_and_the_next_one_still_runs(
    tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setattr(pages, "CELL_TIMEOUT_S", 5)
    (tmp_path / "mpcourse").mkdir()
    for name in ("mpcourse/__init__.py", "pyproject.toml"):  # what the bootstrap cell looks for
        (tmp_path / name).touch()
    folder = tmp_path / "notebooks"
    failing = [
        save(folder / f"0{number}_sample.ipynb", new_code_cell("1"), new_code_cell(source))
        for number, source in enumerate(FAILING, start=1)
    ]
    before = [path.read_bytes() for path in failing]
    sound = save(folder / "09_sample.ipynb", new_code_cell("1 + 1"))
    assert pages.main(asked(*failing, sound)) == 1
    said = capsys.readouterr()
    for path, message in zip(failing, FAILING.values(), strict=True):
        assert re.search(rf"{path.name}: (.|\n)*{message}", said.err)
        assert f"{path.name} is as it was." in said.err
    assert "09_sample.ipynb: " in said.out
    assert [path.read_bytes() for path in failing] == before
    assert sorted(folder.iterdir()) == [*failing, sound]
    left = [each.cmdline() for each in psutil.Process().children()]
    assert not any("ipykernel_launcher" in line for line in left)
