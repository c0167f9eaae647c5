"""The public address: read from where the clone came from, written wherever pages name it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpcourse.front_door.address import (
    PLACEHOLDER,
    address_remedy,
    public_origin,
    read_repository,
    write_setting,
)
from mpcourse.front_door.page_format import ROOT, badges, bootstrap_source
from mpcourse.front_door.pages import find_pages, read, readdress

SOMEONE = "https://github.com/someone-else/a.course"


def git(*words: object, cwd: Path) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *map(str, words)], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The package, the setting and two pages."""
    folder = tmp_path / "course"
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    shutil.copytree(ROOT / "mpcourse", folder / "mpcourse", ignore=ignore)
    (folder / "notebooks").mkdir()
    for page in find_pages(["start_here", "pipeline"]):
        shutil.copy(page, folder / "notebooks")
    shutil.copy(ROOT / "pyproject.toml", folder)
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


def test_the_setting_is_one_line_and_all_else_stays(course: Path):
    before = (course / "pyproject.toml").read_text(encoding="utf-8")
    assert address_remedy(course)
    write_setting(SOMEONE, course)
    assert read_repository(course) == SOMEONE
    assert address_remedy(course) == ""
    write_setting(PLACEHOLDER, course)
    assert (course / "pyproject.toml").read_text(encoding="utf-8") == before


def test_a_wrong_address_changes_nothing(course: Path):
    pages = sorted((course / "notebooks").iterdir())
    before = [path.read_bytes() for path in [*pages, course / "pyproject.toml"]]
    with pytest.raises(ValueError, match="the badges need"):
        readdress(pages, "https://example.org/course", root=course)
    assert [path.read_bytes() for path in [*pages, course / "pyproject.toml"]] == before


def test_a_clone_of_a_fork_points_to_the_fork_with_all_outputs_kept(course: Path, tmp_path: Path):
    git("add", ".", cwd=course)
    git("commit", "--quiet", "-m", "all", cwd=course)
    git("clone", "--quiet", "--bare", course, tmp_path / "bare.git", cwd=tmp_path)
    here = ("-c", f"url.{tmp_path / 'bare.git'}.insteadOf={SOMEONE}")
    git(*here, "clone", "--quiet", SOMEONE, tmp_path / "clone", cwd=tmp_path)
    rewrite = f"url.{tmp_path / 'bare.git'}.insteadOf"  # what git fetches from is not the address
    git("config", rewrite, SOMEONE, cwd=tmp_path / "clone")
    code = "import sys; from mpcourse.front_door.pages import main; sys.exit(main(['--address']))"
    clone = tmp_path / "clone"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout == f"{SOMEONE} is written into 2 pages and pyproject.toml\n", run.stderr
    assert read_repository(clone) == SOMEONE
    for path in (clone / "notebooks").iterdir():
        old, new = read(course / "notebooks" / path.name), read(path)
        assert badges(SOMEONE, path.name) in new.cells[0].source
        assert new.cells[1].source == bootstrap_source(SOMEONE)
        assert [c.get("outputs") for c in new.cells] == [c.get("outputs") for c in old.cells]
        assert "OWNER/mpcourse" not in path.read_text(encoding="utf-8")


def test_the_first_cell_of_a_page_without_an_address_says_what_to_run(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", bootstrap_source(PLACEHOLDER)],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "MPCOURSE_REPOSITORY"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert "AssertionError: First run: %env MPCOURSE_REPOSITORY=" in run.stderr
    assert list(tmp_path.iterdir()) == []
