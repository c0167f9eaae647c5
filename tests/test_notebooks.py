"""The stored pages keep the rules of `page_rules`; the pages that sources name are there."""

import re
from pathlib import Path

import pytest
from page_rules import RULES, Page, Rule

from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.setup import ROOT

PAGES = find_pages([])
PAGE_NAMES = re.compile(r"\b[Pp]ages?\s+((?:`\w+`(?:,\s+|\s+and\s+)?)+)")
SOURCES = [path for name in ("mpcourse", "data") for path in (ROOT / name).rglob("*.py")]


def test_there_are_pages_and_each_number_is_used_once():
    numbers = [page.name[:2] for page in PAGES]
    assert numbers, "notebooks/ holds no page named NN_title.ipynb"
    assert len(set(numbers)) == len(numbers), f"a number stands for two pages: {numbers}"


def test_every_page_that_a_source_names_is_there():
    """As in "pages `pipeline` and `schedules`"."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    named = {n for t in texts for ns in PAGE_NAMES.findall(t) for n in re.findall(r"`(\w+)`", ns)}
    assert "capstone" in named
    assert named <= {page_key(page.name) for page in PAGES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_keeps_the_rule(path: Path, rule: Rule):
    broken = list(rule(Page.load(path)))
    if broken:
        pytest.fail("\n".join([f"{path.name} {rule.__name__}: no.", *broken]), pytrace=False)
