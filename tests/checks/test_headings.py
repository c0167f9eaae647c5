"""What a check names to read again is there: its page has that heading."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_rules import headings

from mpcourse import checks
from mpcourse.commands.page_format import page_key
from mpcourse.commands.pages import find_pages

PAGES = {page_key(path.name): path for path in find_pages([])}
MODULES = {path.stem: path for path in Path(checks.__file__).parent.glob("*.py")}
QUOTED = re.compile(r'"([^"]+)"')


def named_headings(source: str) -> Iterator[str]:
    """The headings in strings such as `'"Who works when?" and what follows it'`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith('"'):
                yield from QUOTED.findall(node.value)


@pytest.mark.parametrize("name", sorted(MODULES.keys() & PAGES.keys()))
def test_the_headings_that_a_check_names_stand_on_its_page(name: str):
    there = {re.sub(r"^\d+\. ", "", heading) for heading in headings(PAGES[name])}
    named = set(named_headings(MODULES[name].read_text(encoding="utf-8")))
    assert named, "no check of this page says where to read again"
    assert sorted(named - there) == []


def test_every_page_has_a_module_of_checks_of_its_own_name():
    assert PAGES.keys() <= MODULES.keys()


def test_a_heading_is_found_wherever_the_module_names_it():
    source = 'WHERE = \'"One" and "Two?"\'\n\n\ndef f():\n    return g(where=\'"Three"\', x="no")\n'
    assert list(named_headings(source)) == ["One", "Two?", "Three"]
