"""Explorers follow their controls, and need only ipywidgets 7.7.

They are moved here as a reader moves them, by setting the value of a control; no browser is needed.
"""

import itertools
import math
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import torch
from page_rules import sources_of
from sheets import SPARSITIES

from mpcourse import widgets
from mpcourse.commands.clean_copies import find_pages
from mpcourse.commands.pages import read
from mpcourse.figures import scatter_picture, sparsity_picture
from mpcourse.figures.svg import Picture, picture
from mpcourse.memory import MODELS, LanguageModel
from mpcourse.widgets import (
    Explorer,
    fit_explorer,
    fit_view,
    layout_explorer,
    layout_view,
    picture_slider,
    scatter_explorer,
    schedule_explorer,
    schedule_view,
    slider,
    sparsity_explorer,
)

PAGES = find_pages([])
PICTURES = {size: scatter_picture([size], 1) for size in (1, 2, 4)}
MOST_CHOICES = 300
LONGEST_TEXT = 110  # ipywidgets cuts a longer text form of a widget off


def scattered(rows: int, devices: int, dim: int) -> Picture:
    sizes = [len(chunk) for chunk in torch.arange(rows).chunk(devices)]
    return scatter_picture(sizes, devices, dim=dim)


def fitting(name, parameters, layers, width, **settings):
    own = LanguageModel(parameters, layers, width, 4096)
    return fit_view(name, MODELS.get(name, own), **settings)


# Each explorer as its function makes it, and the figure that it should show for given values.
EXPLORERS: dict[str, tuple[Callable[[], Explorer], Callable[..., Picture]]] = {
    "scatter_explorer": (scatter_explorer, scattered),
    "schedule_explorer": (schedule_explorer, schedule_view),
    "sparsity_explorer": (
        lambda: sparsity_explorer(SPARSITIES, 0.5),
        lambda sparsity: sparsity_picture(SPARSITIES, sparsity),
    ),
    "fit_explorer": (fit_explorer, fitting),
    "layout_explorer": (layout_explorer, layout_view),
    "picture_slider": (
        lambda: picture_slider(PICTURES, "batch size"),
        lambda value: PICTURES[value],
    ),
}
each_explorer = pytest.mark.parametrize(("make", "figure"), EXPLORERS.values(), ids=list(EXPLORERS))


def values_of(control: Any) -> list:
    """All that a reader can choose."""
    if hasattr(control, "options"):
        return [o[1] if isinstance(o, tuple) else o for o in control.options]
    return list(range(control.min, control.max + 1, control.step))


def choices_of(explorer: Explorer) -> list[tuple]:
    """All that a reader can choose, or a sample where that is too much."""
    values = [values_of(control) for control in explorer.controls.values()]
    if math.prod(map(len, values)) <= MOST_CHOICES:
        return list(itertools.product(*values))
    chance = random.Random(0)
    return [tuple(map(chance.choice, values)) for _ in range(MOST_CHOICES)]


@each_explorer
def test_every_choice_shows_the_figure_of_its_values(make: Callable, figure: Callable):
    explorer = make()
    shown = []
    for values in choices_of(explorer):
        chosen = dict(zip(explorer.controls, values, strict=True))
        for name, value in reversed(chosen.items()):  # a model by name is chosen after its sizes
            explorer.controls[name].value = value
        assert explorer.view.value == figure(**chosen).svg
        shown.append(explorer.view.value)
    # in a sample some look the same: with one device, say, a transfer of any length
    distinct = 0.9 if len(shown) == MOST_CHOICES else 1
    assert len(set(shown)) >= distinct * len(shown) > 1


@pytest.mark.parametrize("size", ["parameters", "layers", "width"])
def test_a_size_that_is_moved_counts_though_a_model_was_chosen_by_name(size: str):
    explorer = fit_explorer()
    explorer.controls["name"].value = next(iter(MODELS))
    published = explorer.view.value
    control = explorer.controls[size]
    control.value = values_of(control)[-1]
    assert explorer.controls["name"].value not in MODELS
    assert explorer.view.value not in (published, fit_explorer().view.value)


@each_explorer
def test_one_control_alone_changes_the_picture(make: Callable, figure: Callable):
    explorer = make()
    for control in explorer.controls.values():
        begin, before = control.value, explorer.view.value
        control.value = next(value for value in values_of(control) if value != begin)
        assert explorer.view.value != before
        control.value = begin
        assert explorer.view.value == before


@each_explorer
def test_a_picture_stands_below_labelled_controls_and_a_text_form_that_never_changes(
    make: Callable, figure: Callable
):
    explorer, other = make(), make()
    values = {name: control.value for name, control in explorer.controls.items()}
    assert explorer.view.value == figure(**values).svg
    players = () if explorer.player is None else (explorer.player,)
    assert explorer.children[:-1] == (*explorer.controls.values(), *players, explorer.view)
    assert type(explorer.view) is ipywidgets.HTML
    assert all(control.description for control in explorer.controls.values())
    for control in other.controls.values():
        control.value = values_of(control)[-1]
    assert repr(explorer) == repr(other)
    assert repr(explorer).startswith("<explorer: ")
    assert len(repr(explorer)) <= LONGEST_TEXT
    assert not any(letter.isdigit() for letter in repr(explorer))


def test_an_explorer_begins_where_it_is_told_to():
    explorer = scatter_explorer(rows=5, devices=4)
    assert explorer.view.value == scatter_picture([2, 2, 1], 4).svg
    other = scatter_explorer(rows=5, devices=4)
    other.controls["rows"].value = 16  # which moves no other explorer
    assert explorer.view.value == scatter_picture([2, 2, 1], 4).svg


def test_a_play_button_runs_over_the_slider_from_where_that_stands():
    explorer = schedule_explorer()
    control, player = explorer.controls["shown"], explorer.player
    assert isinstance(player, ipywidgets.Play)
    for name in ("value", "min", "max", "step"):
        assert getattr(player, name) == getattr(control, name)
    assert scatter_explorer().player is None


def test_what_the_explorer_of_schedules_shows_is_in_its_caption():
    caption = schedule_view("1f1b", 4, 8).svg
    assert "simulated; 1f1b: time 33, 27.3% idle, 48 transfers" in caption
    v = schedule_view("zb-v", 4, 8).svg
    assert "zb-v: time 25.5, 5.9% idle, 96 transfers" in v
    assert v.count("holds at most 4") == 3 * 4  # two halves count one: hint, words, description


def test_a_number_of_micro_batches_that_does_not_fit_is_refused_in_the_picture():
    refused = schedule_view("interleaved", 4, 9)
    assert refused.title == "No schedule"
    assert "take 8 or 10" in refused.svg


def test_a_picture_slider_keeps_the_order_of_its_pictures():
    explorer = picture_slider({"b": PICTURES[2], "a": PICTURES[1]}, "letter")
    assert explorer.view.value == PICTURES[2].svg
    explorer.controls["value"].value = "a"
    assert explorer.view.value == PICTURES[1].svg
    assert repr(explorer) == "<explorer: by letter; run the cell to move its controls>"


def test_an_exception_in_draw_is_shown_in_the_view_and_goes_away_again():
    def draw(value: int) -> Picture:
        if value == 1:
            raise ValueError("no <b>picture</b> & nothing")
        return picture([], (value, 1), title="t", description="d")

    explorer = Explorer(draw, {"value": slider("value", 1, 1, 3)}, about="errors")
    for _ in range(2):  # the first draw may fail too
        shown = ElementTree.fromstring(explorer.view.value)
        assert (shown.tag, shown.text) == ("pre", "ValueError: no <b>picture</b> & nothing")
        explorer.controls["value"].value = 2
        assert "<svg" in explorer.view.value
        explorer.controls["value"].value = 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_widget_of_the_page_is_cut_off_in_its_text_form(page: Path):
    for cell in read(page).cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/plain", "")
            if "our guess: " in text or text.startswith("<explorer: "):
                assert text.endswith((".", ">")), f"{text!r} is longer than {LONGEST_TEXT} letters"


NEW_IN_8 = re.compile(
    r"\b(ColorsInput|DatetimePicker|FloatsInput|IntsInput|NaiveDatetimePicker|Stack|TagsInput"
    r"|TimePicker|TypedTuple|titles=|\.titles|tooltip=|\.tooltip)"
)


def test_nothing_newer_than_ipywidgets_7_7_is_used():  # which Colab brings
    paths = list(Path(widgets.__file__).parent.glob("*.py"))
    sources = {path.name: path.read_text(encoding="utf-8") for path in paths}
    sources |= {page.name: "\n".join(sources_of(page)) for page in PAGES}
    assert "explorer.py" in sources
    found = {name: NEW_IN_8.findall(source) for name, source in sources.items()}
    assert {name: names for name, names in found.items() if names} == {}
