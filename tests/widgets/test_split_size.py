"""The explorer follows its slider, and its button measures a step and adds it."""

import xml.etree.ElementTree as ElementTree

import pytest

from mpcourse.figures import SplitCurve, split_picture
from mpcourse.pipeline.prediction import Line, StageLines, predict_step
from mpcourse.widgets import split_explorer
from mpcourse.widgets.split_size import SplitExplorer

LINES = StageLines((Line(0.01, 0.02),) * 2, (Line(0.02, 0.03),) * 2)
SIZES = range(1, 9)
NAMES = ["device A", "device B"]
STEPS = {size: predict_step(LINES, 8, size) for size in SIZES}


def explorer(**options) -> SplitExplorer:
    return split_explorer(LINES, 8, SIZES, 2, NAMES, **options)


def figure(size: int, measured: dict[int, float]) -> str:
    predicted = {n: step.makespan for n, step in STEPS.items()}
    return split_picture(SplitCurve(predicted, measured), size, STEPS[size], NAMES).svg


def test_every_split_size_shows_its_step_and_its_place():
    made = explorer()
    assert made.view.value == figure(2, {})
    shown = []
    for size in SIZES:
        made.controls["size"].value = size
        assert made.view.value == figure(size, {})
        shown.append(made.view.value)
    assert len(set(shown)) == len(SIZES)


def test_the_button_measures_the_chosen_size_and_is_off_meanwhile():
    asked = []

    def measure(size: int) -> float:
        asked.append((size, made.button.disabled, made.button.description))
        return 0.5

    made = explorer(measure=measure)
    made.controls["size"].value = 4
    made.button.click()
    assert asked == [(4, True, "measuring …")]
    assert (made.button.disabled, made.button.description) == (False, "measure it here")
    assert made.measured == {4: 0.5}
    assert made.view.value == figure(4, {4: 0.5})
    predicted = STEPS[4].makespan
    assert made.status.value == (
        f"Split size 4: predicted {predicted * 1e3:.0f} ms (simulated), 500 ms measured here; "
        f"the prediction is off by {predicted / 0.5 - 1:+.0%}."
    )
    made.controls["size"].value = 2
    assert made.view.value == figure(2, {4: 0.5})


def test_an_error_is_shown_and_the_button_works_again():
    def measure(size: int) -> float:
        if size == 2:
            raise RuntimeError("out of <memory>")
        return 0.5

    made = explorer(measure=measure)
    before = made.view.value
    made.button.click()
    shown = ElementTree.fromstring(made.status.value)
    assert (shown.tag, shown.text) == ("pre", "RuntimeError: out of <memory>")
    assert made.view.value == before
    assert not made.button.disabled
    made.controls["size"].value = 4
    made.button.click()
    assert made.measured == {4: 0.5}
    assert "out of" not in made.status.value


def test_an_interrupt_goes_on_and_leaves_the_button_working():
    def measure(size: int) -> float:
        raise KeyboardInterrupt

    made = explorer(measure=measure)
    with pytest.raises(KeyboardInterrupt):
        made._measure()
    assert not made.button.disabled
    assert made.measured == {}


def test_without_a_measure_there_is_no_button_and_the_text_form_never_changes():
    made = explorer()
    assert made.children[:-1] == (made.controls["size"], made.view)
    other = explorer(measure=lambda size: 0.5)
    assert other.children[:-1] == (other.controls["size"], other.button, other.status, other.view)
    other.controls["size"].value = 8
    assert repr(made) == repr(other)
    assert repr(made).startswith("<explorer: a step by split size, and its place on the curve")
    assert len(repr(made)) <= 110
