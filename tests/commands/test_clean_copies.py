"""Clean copies have no outputs; an edited one is never overwritten, a newer edition lies beside."""

import json
import os
import re
from pathlib import Path

import nbformat
import pytest

from mpcourse.commands.clean_copies import (
    CLEAN,
    EDITIONS,
    LEFT_OUT,
    clean_copy,
    find_pages,
    left_out,
    without_solutions,
    write_copies,
    write_whole,
)
from mpcourse.commands.setup import ROOT
from mpcourse.exercises import PAGES

NAME = "07_pipeline.ipynb"
NOTHING, MADE, RENEWED, OFFERED = "", "has clean copies of 1 pages", "newer editions of", "beside"
STORED = find_pages([])


def page(text: str = "2 + 2") -> str:
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# 07 Ünïcode"},
        {
            "cell_type": "code",
            "id": "b",
            "execution_count": 3,
            "metadata": {"tags": ["exercise"]},
            "outputs": [{"output_type": "stream", "name": "stdout", "text": "the answer\n"}],
            "source": text,
        },
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / NAME).write_text(page(), encoding="utf-8")
    (folder / "Untitled.ipynb").write_text(page(), encoding="utf-8")
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "mine"


def copied(pages: Path, mine: Path, text: str = "") -> str:
    """What is said about copies of the pages, after the one page was written anew."""
    if text:
        (pages / NAME).write_text(page(text), encoding="utf-8")
    said = write_copies(find_pages([], folder=pages), mine)
    found = [words for words in (MADE, RENEWED, OFFERED) if words in said]
    assert len(found) <= 1, said
    return found[-1] if found else said


def beside(mine: Path) -> list[Path]:
    return sorted(path for path in mine.glob("*.ipynb") if path.name != NAME)


def test_a_clean_copy_is_the_page_without_what_it_printed():
    before, after = json.loads(page()), json.loads(clean_copy(page()))
    before["cells"][1].update(outputs=[], execution_count=None)
    assert after == before
    assert "Ünïcode" in clean_copy(page())


def test_in_a_clean_copy_an_answer_is_folded():
    before = json.loads(page())
    answer = {"cell_type": "markdown", "id": "c", "metadata": {"tags": ["answer"]}}
    before["cells"].append({**answer, "source": ["It is\n", "four."]})
    after = json.loads(clean_copy(json.dumps(before)))["cells"]
    opened, below = after[2]["source"].split("\n\n", 1)
    assert opened == "<details><summary>Answer</summary>"  # the empty line: Markdown inside
    assert below == "It is\nfour.\n\n</details>"
    assert after[0] == before["cells"][0]


def test_a_copy_for_here_offers_no_other_place_to_open_it(mine: Path):
    write_copies(STORED, mine)
    for path in STORED:
        page, copy = (json.loads(p.read_text()) for p in (path, mine / path.name))
        title, _, badges, _, *text = page["cells"][0]["source"]
        assert "badge" in badges
        assert copy["cells"][0]["source"] == [title, "\n", *text]
        assert [cell["id"] for cell in copy["cells"]] == [cell["id"] for cell in page["cells"]]


def test_the_badges_open_what_the_pages_are_today():
    """`python -m mpcourse pages --stored` brings these copies up to date."""
    clean = {path.name: path.read_text("utf-8") for path in (ROOT / CLEAN).iterdir()}
    assert clean.keys() == {path.name for path in STORED}
    old = [p.name for p in STORED if clean[p.name] != clean_copy(p.read_text("utf-8"))]
    assert old == []


def lines_of(cells: list[dict]) -> set[str]:
    return {line.strip() for cell in cells for line in "".join(cell["source"]).splitlines()} - {""}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_copy_without_solutions_shows_none_and_says_so(path: Path):
    """What the page shows above an exercise is no secret, and some lines are anybody's."""
    stored = json.loads(path.read_text("utf-8"))["cells"]
    copy = without_solutions(clean_copy(path.read_text("utf-8")), path.stem[3:])
    cells = json.loads(copy)["cells"]
    checks = [i for i, cell in enumerate(cells) if "check" in cell["metadata"].get("tags", [])]
    for i in checks:
        name = re.search(r"\b(check_\w+)\(", "".join(cells[i]["source"]))[1]
        code = PAGES[path.stem[3:]][name].solution_text()[1]
        solution = lines_of([{"source": code}]) - lines_of(cells[:i])
        shown = solution & lines_of(cells[i:])
        assert len(shown) <= len(solution) / 3, (name, shown)
        assert LEFT_OUT in cells[i + 1]["source"]
        if stored[i + 2 : i + 3] and "jupyter" in stored[i + 2]["metadata"]:
            assert f'left_out("{path.stem[3:]}", "{cells[i + 2]["id"]}")' in cells[i + 2]["source"]
    assert copy.count(LEFT_OUT) == len(checks)
    assert [cell["id"] for cell in cells] == [cell["id"] for cell in stored]
    nbformat.validate(nbformat.reads(copy, 4))


def test_what_was_left_out_is_run_from_the_stored_page():
    assert left_out("split_a_model", "cell-18").startswith("def training_step(")


def test_copies_are_made_once_and_an_untouched_one_follows_its_page(pages: Path, mine: Path):
    assert copied(pages, mine) == MADE
    assert {path.name for path in mine.iterdir()} == {NAME, EDITIONS}
    assert copied(pages, mine) == NOTHING
    (mine / NAME).unlink()  # to start anew
    assert copied(pages, mine) == MADE
    assert copied(pages, mine, "3 + 3") == RENEWED
    assert "3 + 3" in (mine / NAME).read_text(encoding="utf-8")
    assert beside(mine) == []


@pytest.mark.parametrize("edit", ["my work", clean_copy(page("my work")), page()])
def test_an_edited_or_run_copy_stays_and_the_newer_edition_lies_beside_it(
    pages: Path, mine: Path, edit: str
):
    copied(pages, mine)
    (mine / NAME).write_text(edit, encoding="utf-8")
    assert copied(pages, mine, "3 + 3") == OFFERED
    assert (mine / NAME).read_text(encoding="utf-8") == edit
    [offer] = beside(mine)
    assert re.fullmatch(r"07_pipeline\.new-[0-9a-f]{6}\.ipynb", offer.name)
    assert "3 + 3" in offer.read_text(encoding="utf-8")
    assert copied(pages, mine) == NOTHING
    offer.unlink()  # seen, not wanted
    assert copied(pages, mine) == NOTHING
    assert copied(pages, mine, "4 + 4") == OFFERED
    [offer] = beside(mine)
    assert copied(pages, mine, "5 + 5") == OFFERED
    assert offer not in beside(mine)  # nobody had touched it
    [offer] = beside(mine)
    offer.write_text("second work", encoding="utf-8")
    assert copied(pages, mine, "6 + 6") == OFFERED
    assert offer.read_text(encoding="utf-8") == "second work"
    assert len(beside(mine)) == 2


@pytest.mark.parametrize("lost", ["", "{", "[1]", "null"])
def test_without_the_notes_every_copy_counts_as_edited(pages: Path, mine: Path, lost: str):
    copied(pages, mine)
    (mine / EDITIONS).write_text(lost, encoding="utf-8")
    assert copied(pages, mine) == NOTHING  # it is what would be written
    (mine / EDITIONS).unlink()
    assert copied(pages, mine, "3 + 3") == OFFERED


def test_an_untouched_copy_follows_its_page_to_another_number(pages: Path, mine: Path):
    copied(pages, mine)
    (pages / NAME).rename(pages / "12_pipeline.ipynb")
    assert copied(pages, mine) == MADE
    assert [path.name for path in mine.glob("*.ipynb")] == ["12_pipeline.ipynb"]
    (mine / "12_pipeline.ipynb").write_text("my work", encoding="utf-8")
    (pages / "12_pipeline.ipynb").rename(pages / NAME)
    assert copied(pages, mine) == MADE
    assert (mine / "12_pipeline.ipynb").read_text(encoding="utf-8") == "my work"


def test_pages_are_never_the_target_and_no_pages_are_an_error(pages: Path, tmp_path: Path):
    for folder in (tmp_path / "notebooks" / ".." / "notebooks", ROOT / CLEAN):
        with pytest.raises(ValueError, match="holds the pages themselves"):
            write_copies(find_pages([], folder=pages), folder)
    with pytest.raises(ValueError, match="no pages"):
        write_copies([], tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_full_disk_leaves_neither_half_a_file_nor_another_one(tmp_path, monkeypatch):
    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "page").write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "page", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
