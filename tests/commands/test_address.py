"""The public address: read from where the clone came from, written wherever pages name it."""

from pathlib import Path

import pytest
from forks import ADDRESS, Fork, copy_course, git

from mpcourse.commands.address import (
    FIRST_PAGE,
    PLACEHOLDER,
    address_remedy,
    public_origin,
    read_repository,
    write_setting,
)
from mpcourse.commands.page_format import badges, bootstrap_source
from mpcourse.commands.pages import find_pages, read, readdress

SOMEONE = "https://github.com/someone-else/a.course"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The package, the setting and two pages."""
    pages = [f"notebooks/{page.name}" for page in find_pages(["start_here", "pipeline"])]
    folder = copy_course(tmp_path / "course", "mpcourse", "pyproject.toml", "README.md", *pages)
    write_setting(PLACEHOLDER, folder)
    git("init", "--quiet", "--initial-branch=main", cwd=folder)
    return folder


@pytest.mark.parametrize(
    "origin",
    [
        SOMEONE,
        f"{SOMEONE}.git",
        f"{SOMEONE}/",
        "https://token@github.com/someone-else/a.course.git",
        "git@github.com:someone-else/a.course.git",
        "ssh://git@github.com/someone-else/a.course",
    ],
)
def test_every_form_of_an_origin_is_read(course: Path, origin: str):
    git("remote", "add", "origin", origin, cwd=course)
    assert public_origin(course) == SOMEONE


@pytest.mark.parametrize("origin", ["/srv/course.git", "https://example.org/a/b", "", None])
def test_an_origin_that_is_not_public_is_named_with_what_to_type(course: Path, origin: str | None):
    if origin is not None:
        git("config", "remote.origin.url", origin, cwd=course)
    with pytest.raises(ValueError, match=r"--address https://github\.com/YOU/mpcourse") as told:
        public_origin(course)
    assert not origin or repr(origin) in str(told.value)


def test_setting_and_readme_are_lines_and_all_else_stays(course: Path):
    files = [course / "pyproject.toml", course / "README.md"]
    before = [path.read_text(encoding="utf-8") for path in files]
    assert address_remedy(course)
    write_setting(SOMEONE, course)
    assert read_repository(course) == SOMEONE
    assert address_remedy(course) == ""
    for path, text, count in zip(files, before, [1, 2], strict=True):
        new = path.read_text(encoding="utf-8")
        assert len(set(new.splitlines()) - set(text.splitlines())) == count, path.name
    write_setting(PLACEHOLDER, course)
    assert [path.read_text(encoding="utf-8") for path in files] == before


def test_a_wrong_address_changes_nothing(course: Path):
    pages = sorted((course / "notebooks").iterdir())
    files = [*pages, course / "pyproject.toml", course / "README.md"]
    before = [path.read_bytes() for path in files]
    with pytest.raises(ValueError, match="the badges need"):
        readdress(pages, "https://example.org/course", root=course)
    assert [path.read_bytes() for path in files] == before


def test_a_clone_of_a_fork_points_to_the_fork_everywhere(fork: Fork):
    pages = find_pages([], folder=fork.clone / "notebooks")
    assert fork.said == f"{ADDRESS} is written into {len(pages)} pages, README and setting\n"
    assert read_repository(fork.clone) == ADDRESS
    readme = (fork.clone / "README.md").read_text(encoding="utf-8").splitlines()
    assert {badges(ADDRESS, FIRST_PAGE), f"git clone {ADDRESS} mpcourse"} <= set(readme)
    for page in pages:
        cells = read(page).cells
        assert badges(ADDRESS, page.name) in cells[0].source
        assert cells[1].source == bootstrap_source(ADDRESS)
    others = [path for path in fork.clone.rglob("*.ipynb") if path not in pages]
    texts = [*pages, *others, fork.clone / "README.md", fork.clone / "pyproject.toml"]
    assert not [path for path in texts if read_repository() in path.read_text(encoding="utf-8")]


def test_a_new_address_keeps_all_outputs(fork: Fork):
    for page in find_pages([]):
        new, old = read(fork.clone / "notebooks" / page.name), read(page)
        assert [c.get("outputs") for c in new.cells] == [c.get("outputs") for c in old.cells]
