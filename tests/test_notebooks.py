"""The stored pages keep the rules of `page_rules`; the pages that sources name are there."""

import re
from pathlib import Path

import pytest
from nbformat.v4 import new_markdown_cell, new_notebook
from page_rules import RULES, Page, Rule, types_no_measured_numbers

from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.pages import to_text
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


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It takes 12.3 ms, or 4 s, or 20 seconds.", 3),
        ("It is 1.7x faster, 2× faster, 3 × as fast.", 3),
        ("The paper (quoted) reports 1.7x.", 0),
        ("The shapes are 3x3, 64×64 and 2 × 2; the 1s; $n! = 2x$; `take(2 ms)`.", 0),
        ("[Which one?](https://example.org/work/12.3ms)", 0),
    ],
)
def test_measured_numbers_are_told_from_shapes(text: str, count: int):
    page = Page("01_sample.ipynb", to_text(new_notebook(cells=[new_markdown_cell(text)])))
    assert len(list(types_no_measured_numbers(page))) == count
