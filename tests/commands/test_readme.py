"""What the README says is where is there."""

import ast
import json
import re

import pytest

from mpcourse.commands.address import BADGES_MARK, FIRST_PAGE, badges, read_address
from mpcourse.commands.pages import find_pages
from mpcourse.commands.setup import ROOT

LINES = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
PLACE = re.compile(r"`(\w+)` in `(mpcourse/[\w/]+\.py)`")
PLACES = [match for line in LINES for match in PLACE.findall(line)]
PATH = re.compile(r"(?:mpcourse|tests|data|notebooks|binder)/[\w/.]*|\.ci/\w+")
WRITTEN = [line for line in LINES if BADGES_MARK not in line]  # by hand
PATHS = sorted({path.rstrip(".") for line in WRITTEN for path in PATH.findall(line)})


@pytest.mark.parametrize(("name", "path"), PLACES)
def test_a_name_is_defined_where_the_readme_says(name: str, path: str):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {getattr(node, "name", None) for node in tree.body}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_the_readme_names_is_there(path: str):
    assert "FOLDER" in path or (ROOT / path).exists()


def test_the_hours_of_the_course_are_those_that_its_pages_name():
    titles = [
        "".join(json.loads(p.read_text("utf-8"))["cells"][0]["source"]) for p in find_pages([])
    ]
    minutes = sum(int(re.search(r"About (\d+) minutes", title)[1]) for title in titles)
    assert f"about {minutes / 60:.0f} hours" in "\n".join(LINES)


def test_badges_and_what_to_clone_follow_the_setting():
    address = read_address()
    assert LINES.count(badges(address, FIRST_PAGE)) == 1
    assert LINES.count(f"git clone {address.repository} mpcourse") == 1
