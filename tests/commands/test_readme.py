"""README and the texts of the site: what they name is there, and takes as long as the page says."""

import ast
import re

import pytest

from mpcourse.commands.address import BADGES_MARK, FIRST_PAGE, badges, clone_line, read_address
from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.pages import read
from mpcourse.commands.setup import ROOT
from mpcourse.commands.site.site import SOURCE

README = ROOT / "README.md"
FILES = [*ROOT.glob("*.md"), *SOURCE.glob("*.md")]
LINES = README.read_text(encoding="utf-8").splitlines()
TEXTS = {file.name: file.read_text(encoding="utf-8") for file in FILES}
WRITTEN = "\n".join(  # by hand
    line for text in TEXTS.values() for line in text.splitlines() if BADGES_MARK not in line
)
PLACES = re.findall(r"`(\w+)` in `(mpcourse/[\w/]+\.py)`", WRITTEN)
PATH = re.compile(r"(?:mpcourse|tests|data|notebooks|binder|\.github)/[\w/.]*|\.ci/\w+")
PATHS = sorted({path.rstrip(".") for path in PATH.findall(WRITTEN)})
MINUTES = {
    page_key(path.name): int(re.search(r"About (\d+) minutes", read(path).cells[0].source)[1])
    for path in find_pages([])
}


@pytest.mark.parametrize(("name", "path"), PLACES)
def test_a_name_is_defined_where_a_text_says(name: str, path: str):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {getattr(node, "name", None) for node in tree.body}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_a_text_names_is_there(path: str):
    assert "FOLDER" in path or (ROOT / path).exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_a_text_links_to_is_there(file):
    for link in re.findall(r"\]\(([^)#]+)", file.read_text(encoding="utf-8")):
        here = file.parent / link  # how GitHub reads it; the front page is read on the site alone
        assert "://" in link or file.name == "index.md" or here.exists(), link


def test_pages_take_as_long_as_texts_say():
    rows = re.findall(r"^\| \[\d\d_(\w+)\]\(\S+\) \| (\d+) \|", TEXTS["README.md"], re.MULTILINE)
    assert {name: int(minutes) for name, minutes in rows} == MINUTES
    named = re.findall(r"`(\w+)` \((\d+)\)", TEXTS["instructors.md"])
    assert {name for name, _ in named} == set(MINUTES)
    assert {name: MINUTES[name] for name, minutes in named if MINUTES[name] != int(minutes)} == {}
    for name in ("README.md", "instructors.md"):
        assert f"about {sum(MINUTES.values()) / 60:.0f} hours" in TEXTS[name]
    assert str(len(MINUTES)) in TEXTS["README.md"].split()


def test_badges_and_what_to_clone_follow_the_setting():
    address = read_address()
    assert LINES.count(badges(address, FIRST_PAGE)) == 1
    assert LINES.count(clone_line(address)) == 1
