"""Clean copies have no outputs; an edited one is never overwritten, a newer edition lies beside."""

import json
from pathlib import Path

import pytest

from mpcourse.commands.clean_copies import EDITIONS, Copies, clean_copy, in_words, write_copies
from mpcourse.commands.setup import ROOT

NAME, NEW = "07_pipeline.ipynb", "07_pipeline.new.ipynb"


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


def change(pages: Path, text: str) -> None:
    (pages / NAME).write_text(page(text), encoding="utf-8")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != EDITIONS)


def test_a_copy_offers_no_other_place_to_open_it(mine):
    write_copies(ROOT / "notebooks", mine)
    for path in mine.glob("*.ipynb"):
        page, copy = (json.loads(p.read_text()) for p in (ROOT / "notebooks" / path.name, path))
        title, _, badges, _, *text = page["cells"][0]["source"]
        assert "badge" in badges
        assert copy["cells"][0]["source"] == [title, "\n", *text]
        assert [cell["id"] for cell in copy["cells"]] == [cell["id"] for cell in page["cells"]]


def test_a_clean_copy_is_the_page_without_what_it_printed():
    before, after = json.loads(page()), json.loads(clean_copy(page()))
    assert "the answer" not in clean_copy(page())
    assert after["cells"][1]["outputs"] == []
    assert after["cells"][1]["execution_count"] is None
    before["cells"][1].update(outputs=[], execution_count=None)
    assert len(after["metadata"].pop("mpcourse")["edition"]) == 12
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


def test_copies_are_made_once_and_an_untouched_one_follows_its_page(pages: Path, mine: Path):
    assert write_copies(pages, mine) == Copies([NAME], [], [])
    assert names(mine) == [NAME]
    assert write_copies(pages, mine) == Copies([], [], [])
    (mine / NAME).unlink()  # to start anew
    assert write_copies(pages, mine) == Copies([NAME], [], [])
    change(pages, "3 + 3")
    assert write_copies(pages, mine) == Copies([], [NAME], [])
    assert "3 + 3" in (mine / NAME).read_text(encoding="utf-8")
    assert names(mine) == [NAME]


@pytest.mark.parametrize("edit", ["my work", clean_copy(page("my work")), page()])
def test_an_edited_or_run_copy_stays_and_the_newer_edition_lies_beside_it(
    pages: Path, mine: Path, edit: str
):
    write_copies(pages, mine)
    (mine / NAME).write_text(edit, encoding="utf-8")
    assert write_copies(pages, mine) == Copies([], [], [])  # the page has not changed
    change(pages, "3 + 3")
    assert write_copies(pages, mine) == Copies([], [], [NEW])
    assert (mine / NAME).read_text(encoding="utf-8") == edit
    assert "3 + 3" in (mine / NEW).read_text(encoding="utf-8")
    assert write_copies(pages, mine) == Copies([], [], [])
    (mine / NEW).unlink()  # seen, not wanted
    assert write_copies(pages, mine) == Copies([], [], [])
    assert names(mine) == [NAME]


def test_an_edited_offer_stays_too(pages: Path, mine: Path):
    write_copies(pages, mine)
    (mine / NAME).write_text("first work", encoding="utf-8")
    change(pages, "3 + 3")
    write_copies(pages, mine)
    (mine / NEW).write_text("second work", encoding="utf-8")
    change(pages, "4 + 4")
    assert write_copies(pages, mine).offered == ["07_pipeline.new-2.ipynb"]
    change(pages, "5 + 5")
    assert write_copies(pages, mine).offered == ["07_pipeline.new-2.ipynb"]  # it was untouched
    assert names(mine) == [NAME, "07_pipeline.new-2.ipynb", NEW]
    assert (mine / NEW).read_text(encoding="utf-8") == "second work"


@pytest.mark.parametrize("lost", ["", "{", "[1]", "null"])
def test_without_the_notes_every_copy_counts_as_edited(pages: Path, mine: Path, lost: str):
    write_copies(pages, mine)
    (mine / EDITIONS).write_text(lost, encoding="utf-8")
    assert write_copies(pages, mine) == Copies([], [], [])  # it is what would be written
    (mine / EDITIONS).unlink()
    change(pages, "3 + 3")
    assert write_copies(pages, mine) == Copies([], [], [NEW])


def test_an_untouched_copy_follows_its_page_to_another_number(pages: Path, mine: Path):
    write_copies(pages, mine)
    (pages / NAME).rename(pages / "12_pipeline.ipynb")
    assert write_copies(pages, mine).made == ["12_pipeline.ipynb"]
    assert names(mine) == ["12_pipeline.ipynb"]
    (mine / "12_pipeline.ipynb").write_text("my work", encoding="utf-8")
    (pages / "12_pipeline.ipynb").rename(pages / NAME)
    assert write_copies(pages, mine).made == [NAME]
    assert (mine / "12_pipeline.ipynb").read_text(encoding="utf-8") == "my work"


def test_pages_are_never_the_target_and_no_pages_are_an_error(pages: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="holds the pages themselves"):
        write_copies(pages, tmp_path / "notebooks" / ".." / "notebooks")
    with pytest.raises(ValueError, match="holds no pages"):
        write_copies(tmp_path, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_what_happened_is_said():
    assert in_words(Copies([], [], []), "mine/") == ""
    said = in_words(Copies(["a", "b"], ["c"], ["d.new"]), "mine/").splitlines()
    assert "clean copies of 2 pages" in said[0]
    assert "newer editions of c." in said[1]
    assert "your copies stay as they are; newer editions lie beside them as d.new." in said[2]
