"""The public address: read from where the clone came from, written wherever pages name it."""

import subprocess
import sys
from pathlib import Path

import pytest
from forks import ADDRESS, BRANCH, FILES, Fork, copy_course, git

from mpcourse.commands.address import (
    FIRST_PAGE,
    PLACEHOLDER,
    Address,
    badges,
    find_address,
    read_address,
    write_setting,
)
from mpcourse.commands.clean_copies import CLEAN, clean_copy, find_pages
from mpcourse.commands.pages import bootstrap_source, read

SOMEONE = Address("https://github.com/someone-else/a.course", "v2.x")
NAMED = SOMEONE.repository


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The package, the setting and two pages."""
    pages = (f"notebooks/{page.name}" for page in find_pages(["start_here", "pipeline"]))
    folder = copy_course(tmp_path / "course", *FILES, "mpcourse", *pages)
    write_setting(Address(PLACEHOLDER, "main"), folder)
    git("init", "--quiet", "--initial-branch=v2.x", cwd=folder)
    return folder


@pytest.mark.parametrize(
    "origin",
    [
        NAMED,
        f"{NAMED}.git",
        f"{NAMED}/",
        "https://token@github.com/someone-else/a.course.git",
        "git@github.com:someone-else/a.course.git",
        "ssh://git@github.com/someone-else/a.course",
    ],
)
def test_every_form_of_an_origin_is_read_and_of_what_is_typed(course: Path, origin: str):
    assert find_address(origin, root=course) == SOMEONE
    git("remote", "add", "origin", origin, cwd=course)
    assert find_address(root=course) == SOMEONE


@pytest.mark.parametrize("origin", ["/srv/course.git", "https://example.org/a/b", "a/b", None])
def test_an_origin_that_is_not_public_is_named_with_what_to_type(course: Path, origin: str | None):
    if origin is not None:
        git("config", "remote.origin.url", origin, cwd=course)
    with pytest.raises(ValueError, match=r"--address https://github\.com/YOU/mpcourse") as told:
        find_address(root=course)
    assert not origin or repr(origin) in str(told.value)


@pytest.mark.parametrize("branch", ["feature/x", "ä", ""])
def test_a_branch_that_will_not_do_in_a_link_is_named(course: Path, branch: str):
    git("commit", "--quiet", "--allow-empty", "-m", "one", cwd=course)
    git("checkout", "--quiet", *(["-b", branch] if branch else ["--detach"]), cwd=course)
    with pytest.raises(ValueError, match=rf"the branch is {branch!r}: be on one whose name"):
        find_address(NAMED, course)


def test_a_wrong_address_changes_nothing(course: Path):
    files = [path for path in course.rglob("*") if path.suffix in (".ipynb", ".toml", ".md")]
    before = [path.read_bytes() for path in files]
    command = [sys.executable, "-m", "mpcourse", "pages", "--here", "--address", "x/course"]
    run = subprocess.run(command, cwd=course, env={}, capture_output=True, text=True)
    assert run.returncode == 2
    assert "'x/course'" in run.stderr
    assert "Traceback" not in run.stderr
    assert [path.read_bytes() for path in files] == before


def test_setting_and_readme_are_lines_and_all_else_stays(course: Path):
    files = [course / "pyproject.toml", course / "README.md"]
    before = [path.read_text(encoding="utf-8") for path in files]
    write_setting(SOMEONE, course)
    assert read_address(course) == SOMEONE
    for path, text in zip(files, before, strict=True):
        new = path.read_text(encoding="utf-8")
        assert len(set(new.splitlines()) - set(text.splitlines())) == 2, path.name
    write_setting(Address(PLACEHOLDER, "main"), course)
    assert [path.read_text(encoding="utf-8") for path in files] == before


def test_a_clone_of_a_fork_points_to_its_branch_everywhere_and_keeps_all_outputs(fork: Fork):
    pages, address = find_pages([], folder=fork.clone / "notebooks"), Address(ADDRESS, BRANCH)
    where = f"lead to {ADDRESS}, branch {BRANCH}\n"
    assert fork.said == f"{len(pages)} pages, their clean copies, README and setting {where}"
    assert read_address(fork.clone) == address
    readme = (fork.clone / "README.md").read_text(encoding="utf-8").splitlines()
    clone = f"git clone --branch {BRANCH} {ADDRESS} mpcourse"
    assert {badges(address, FIRST_PAGE), clone} <= set(readme)
    for page, old in zip(pages, find_pages([]), strict=True):
        cells = read(page).cells
        assert badges(address, page.name) in cells[0].source
        assert cells[1].source == bootstrap_source(address)
        assert [c.get("outputs") for c in cells] == [c.get("outputs") for c in read(old).cells]
        clean = fork.clone / CLEAN / page.name
        assert clean.read_text("utf-8") == clean_copy(page.read_text("utf-8"))
    others = [path for path in fork.clone.rglob("*.ipynb") if path not in pages]
    texts = [*pages, *others, fork.clone / "README.md", fork.clone / "pyproject.toml"]
    assert not [path for path in texts if "/OWNER/mpcourse/" in path.read_text(encoding="utf-8")]
