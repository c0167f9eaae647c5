"""A guess is held against the answer as it was meant, however it is written."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import ipywidgets
import pytest

from mpcourse.widgets import predict


def verdict_on(guess: str, answer: Any, within: float = 0.0) -> str:
    """What is said in brackets after the answer."""
    prediction = predict("a guess")
    prediction.entry.value = guess
    sentence = repr(prediction.compare(answer, within=within))
    return sentence.rpartition("(")[2].removesuffix(").")


RIGHT, WRONG = "as you said", "not what you guessed"


@pytest.mark.parametrize(
    "guess",
    [
        *("3,3,1", "3, 3, 1", "3 3 1", "[3, 3, 1]", "(3,3,1)", "3 and 3 and 1", "3; 3; 1"),
        *("3-3-1", " 3,3,1 ", "3.0 3.0 1.0", "A: 3, B: 3, C: 1", "3/3/1", "3, 3, 1."),
    ],
)
def test_numbers_may_be_written_in_any_way(guess: str):
    assert verdict_on(guess, "3, 3, 1") == RIGHT
    assert verdict_on(guess, [3, 3, 1]) == RIGHT


@pytest.mark.parametrize(
    ("guess", "answer", "within", "verdict"),
    [
        ("3,3,2", "3, 3, 1", 0, WRONG),
        ("3,1,3", "3, 3, 1", 0, WRONG),
        ("3,3", "3, 3, 1", 0, WRONG),
        ("3,3,1,0", "3, 3, 1", 0, WRONG),
        ("331", "3, 3, 1", 0, WRONG),
        ("three", "3", 0, WRONG),
        ("-2", "-2", 0, RIGHT),
        ("2", "-2", 0, WRONG),
        ("-2", "2", 0, WRONG),
        ("1, -2", "1, -2", 0, RIGHT),
        ("-1 -2", "-1, -2", 0, RIGHT),
        ("+2", "2", 0, RIGHT),
        ("0.5", "0.5", 0, RIGHT),
        (".5", "0.5", 0, RIGHT),
        ("-.5", "-0.5", 0, RIGHT),
        ("5", "0.5", 0, WRONG),
        ("4.", "4", 0, RIGHT),
        ("1e-3", "0.001", 0, RIGHT),
        ("2E3", "2000", 0, RIGHT),
        ("4.67 4", "4.67; 4.00", 0, RIGHT),
        ("4.667, 4", "4.67; 4.00", 0, WRONG),
        ("4.667, 4", "4.67; 4.00", 0.01, RIGHT),
        ("25%", "25 %", 0, RIGHT),
        ("about 25 percent", "25 %", 0, RIGHT),
        ("1.1", "1", 0.1, RIGHT),
        ("1.11", "1", 0.1, WRONG),
        ("1.09", "1", 0.1, RIGHT),
        ("1.2", "1", 0.1, WRONG),
        ("0.91", "1", 0.1, RIGHT),
        ("-1.05", "-1", 0.1, RIGHT),
        ("110 19", "100, 20", 0.1, RIGHT),
        ("110 15", "100, 20", 0.1, WRONG),
        ("0", "0", 0.1, RIGHT),
        ("0.01", "0", 0.1, WRONG),
        ("2 times as fast", "1.95 times, measured here", 0.1, RIGHT),
        ("vector", "vector", 0, RIGHT),
        ("Vector", "vector", 0, RIGHT),
        ("a vector.", "vector", 0, RIGHT),
        (" VECTOR ", "vector", 0, RIGHT),
        (".result()", "result", 0, RIGHT),
        ("at .result()", ".result()", 0, RIGHT),
        ("sum", "vector", 0, WRONG),
        ("vectors", "vector", 0, WRONG),
        ("not a vector", "vector", 0, WRONG),
        ("error, sum or vector", "vector", 0, WRONG),
        ("5", "vector", 0, WRONG),
        ("device B", "Device B", 0, RIGHT),
        ("1/2", "0.5", 0, RIGHT),
        ("1 / 2 step", "0.50", 0.01, RIGHT),
        ("half", "0.5", 0, RIGHT),
        ("a third", "0.333", 0.01, RIGHT),
        ("a quarter", "0.25", 0, RIGHT),
        ("a third", "0.25", 0.01, WRONG),
        ("Half a step", "0.5", 0, RIGHT),
        ("-1/2", "-0.5", 0, RIGHT),
        ("1/254, 1/2", "0.0039; 0.5", 0.01, RIGHT),
        ("0,5", "0.5", 0, RIGHT),
        ("0,5; 1,2", "0.5; 1.2", 0, RIGHT),
        ("1/2", "1; 2", 0, RIGHT),
        ("1/4", "0.5", 0, WRONG),
        ("1/0", "0.5", 0, WRONG),
        ("half", "1", 0, WRONG),
        ("0,6", "0.5", 0, WRONG),
        ("3/4/12", "0.25", 0, WRONG),
        ("torch.compile", "compile", 0, RIGHT),
        ("torch.export", "compile", 0, WRONG),
        ("torch", "compile", 0, WRONG),
    ],
)
def test_a_guess_is_held_against_the_answer(guess: str, answer: str, within: float, verdict: str):
    assert verdict_on(guess, answer, within) == verdict


def test_without_a_guess_the_answer_stands_alone():
    prediction = predict("rows of each device")
    comparison = prediction.compare("3, 3, 1")
    assert repr(comparison) == "Your guess: none yet. Answer: 3, 3, 1."
    assert comparison.value == "<b>Your guess: none yet. Answer: 3, 3, 1.</b>"
    prediction.entry.value = "   "
    assert repr(comparison) == "Your guess: none yet. Answer: 3, 3, 1."


def test_a_comparison_follows_the_guess():
    prediction = predict("rows of each device")
    comparisons = [prediction.compare("3, 3, 1"), prediction.compare([3, 2, 2])]
    prediction.entry.value = "3 3 1"
    assert [comparison.value for comparison in comparisons] == [
        "<b>Your guess: 3 3 1. Answer: 3, 3, 1 (as you said).</b>",
        "<b>Your guess: 3 3 1. Answer: [3, 2, 2] (not what you guessed).</b>",
    ]
    prediction.entry.value = "3 2 2"
    assert comparisons[0].value.endswith("(not what you guessed).</b>")
    assert comparisons[1].value.endswith("(as you said).</b>")
    prediction.entry.value = ""
    assert "none yet" in comparisons[0].value


def test_what_is_typed_is_text_and_no_html():
    prediction = predict("a guess")
    comparison = prediction.compare("<3 & 4>")
    prediction.entry.value = "<script>alert('x')</script>"
    root = ElementTree.fromstring(comparison.value)
    assert (root.tag, list(root)) == ("b", [])
    assert root.text == repr(comparison)
    assert "<script>" in repr(comparison)
    assert "<script>" not in comparison.value


@pytest.mark.parametrize(
    ("guess", "agrees"),
    [
        ("2, 15, 4/3, 15/8", True),
        ("2 15 1.33 1.88", True),
        ("2; 15; 1.333333; 1.875", True),
        ("2, 15, 1.3, 1.9", False),
        ("2, 15, 1.33", False),
    ],
)
def test_unrounded_values_take_fractions_and_rounded_guesses(guess: str, agrees: bool):
    prediction = predict("four numbers")
    prediction.entry.value = guess
    comparison = prediction.compare("2, 15, 1.33, 1.88", values=[2, 15, 4 / 3, 15 / 8])
    assert ("as you said" in repr(comparison)) == agrees


def test_a_choice_is_made_with_buttons_and_begins_empty():
    prediction = predict("which one", choices=["one", "one and two", "none"])
    assert isinstance(prediction.entry, ipywidgets.ToggleButtons)
    assert prediction.entry.options == ("one", "one and two", "none")
    assert prediction.entry.value is None
    shown = "<your guess: which one: one / one and two / none; run the cell to choose>"
    assert repr(prediction) == shown
    comparison = prediction.compare("one and two, measured here")
    assert repr(comparison) == "Your guess: none yet. Answer: one and two, measured here."
    prediction.entry.value = "one"
    assert "not what you guessed" in repr(comparison)
    prediction.entry.value = "one and two"
    assert "as you said" in repr(comparison)


def test_an_answer_that_is_no_choice_is_refused():
    with pytest.raises(ValueError, match="begins with none of the choices"):
        predict("which one", choices=["a sum", "a vector"]).compare("vector")


def test_a_prediction_asks_its_question_beside_an_empty_field():
    prediction = predict("rows of <each> device")
    label, entry = prediction.children
    assert type(label) is ipywidgets.Label  # shows text, no HTML
    assert label.value == "rows of <each> device"
    assert entry is prediction.entry
    assert (entry.value, entry.placeholder) == ("", "your guess")
    assert repr(prediction) == "<your guess: rows of <each> device; run the cell to type it>"
