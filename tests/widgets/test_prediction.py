"""A guess is held against the answer as it was meant, however it is written."""

import xml.etree.ElementTree as ElementTree

import ipywidgets
import pytest

from mpcourse.widgets import predict

# Answer, how far off a guess may be, guesses that agree, guesses that do not
GUESSES = [
    (
        "3, 3, 1",
        0,
        [
            *("3,3,1", "3, 3, 1", "3 3 1", "[3, 3, 1]", "(3,3,1)", "3 and 3 and 1", "3; 3; 1"),
            *("3-3-1", " 3,3,1 ", "3.0 3.0 1.0", "A: 3, B: 3, C: 1", "3/3/1", "3, 3, 1."),
        ],
        ["3,3,2", "3,1,3", "3,3", "3,3,1,0", "331"],
    ),
    ("3", 0, [], ["three"]),
    ("-2", 0, ["-2"], ["2"]),
    ("2", 0, ["+2"], ["-2"]),
    ("1, -2", 0, ["1, -2"], []),
    ("-1, -2", 0, ["-1 -2"], []),
    (
        "0.5",
        0,
        ["0.5", ".5", "1/2", "half", "Half a step", "0,5", "50%"],
        ["5", "5%", "1/4", "1/0", "0,6"],
    ),
    ("-0.5", 0, ["-.5", "-1/2"], []),
    ("4", 0, ["4."], []),
    ("0.001", 0, ["1e-3"], []),
    ("2000", 0, ["2E3"], []),
    ("4.67; 4.00", 0, ["4.67 4"], ["4.667, 4"]),
    ("4.67; 4.00", 0.01, ["4.667, 4", "4 2/3, 4"], ["4 1/3, 4"]),
    ("25 %", 0, ["25%", "about 25 percent"], []),
    ("1", 0.1, ["1.1", "1.09", "0.91"], ["1.11", "1.2"]),
    ("-1", 0.1, ["-1.05"], []),
    ("100, 20", 0.1, ["110 19"], ["110 15"]),
    ("0", 0.1, ["0"], ["0.01"]),
    ("1.95 times, measured here", 0.1, ["2 times as fast"], []),
    (
        "vector",
        0,
        ["vector", "Vector", "a vector.", " VECTOR "],
        ["sum", "vectors", "not a vector", "error, sum or vector", "5"],
    ),
    ("result", 0, [".result()"], []),
    (".result()", 0, ["at .result()"], []),
    ("Device B", 0, ["device B"], []),
    ("0.50", 0.01, ["1 / 2 step"], []),
    ("0.333", 0.01, ["a third", "1 - 4/6", "1-4 / 6"], ["1 - 4", "11 - 4/6", "2 - 4/6", "1 4/6"]),
    ("0.25", 0, ["a quarter"], ["3/4/12"]),
    ("0.25", 0.01, [], ["a third"]),
    ("0.0039; 0.5", 0.01, ["1/254, 1/2"], []),
    ("0.5; 1.2", 0, ["0,5; 1,2"], []),
    ("1; 2", 0, ["1/2"], []),
    ("1", 0, [], ["half"]),
    ("compile", 0, ["torch.compile"], ["torch.export", "torch"]),
    (
        "72,000 bytes",
        [72000],
        ["72,000", "72 000 bytes", "72000", "7.2e4"],
        ["72", "72,00", "72,0000", "072,000", "1,72,000"],
    ),
    ("120, 200", 0, ["120 200", "120,200"], ["120200"]),
    (
        "2, 15, 1.3, 1.88",
        [2, 15, 4 / 3, 15 / 8],  # the values before they are rounded
        ["2, 15, 4/3, 15/8", "2 15 1.33 1.88", "2; 15; 1.333333; 1.875"],
        ["2, 15, 1.3, 1.9", "2, 15, 1.33"],
    ),
]


@pytest.mark.parametrize(("answer", "within", "right", "wrong"), GUESSES)
def test_a_guess_is_held_against_the_answer(answer, within, right: list, wrong: list):
    how = {"values": within} if isinstance(within, list) else {"within": within}
    for guess in [*right, *wrong]:
        prediction = predict("a guess")
        prediction.entry.value = guess
        verdict = "as you said" if guess in right else "not what you guessed"
        sentence = f"Your guess: {guess.strip()}. Answer: {answer} ({verdict})."
        assert repr(prediction.compare(answer, **how)) == sentence


def test_a_comparison_follows_the_guess():
    prediction = predict("rows of each device")
    comparisons = [prediction.compare("3, 3, 1"), prediction.compare([3, 2, 2])]

    def shown() -> list[str]:
        return [each.view.value.removeprefix("<b>Your guess: ") for each in comparisons]

    none_yet = ["<b>No guess yet (rows of each device): the answer waits for one.</b>"] * 2
    assert shown() == none_yet
    prediction.entry.value = "3 3 1"
    assert shown() == [
        "3 3 1. Answer: 3, 3, 1 (as you said).</b>",
        "3 3 1. Answer: [3, 2, 2] (not what you guessed).</b>",
    ]
    prediction.entry.value = "   "
    assert shown() == none_yet


def test_what_is_typed_is_text_and_no_html():
    prediction = predict("a guess")
    comparison = prediction.compare("<a & b>")
    prediction.entry.value = "<script>alert('x')</script>"
    root = ElementTree.fromstring(comparison.view.value)
    assert (root.tag, list(root)) == ("b", [])
    assert root.text == repr(comparison)
    assert "<script>" in repr(comparison)
    assert "<script>" not in comparison.view.value


@pytest.mark.parametrize(
    ("guess", "verdict"),
    [
        ("16", "as you said"),
        ("size 16", "as you said"),
        ("24", "yours cannot be told from it"),
        ("32", "not what you guessed"),
        ("16 or 24", None),  # one number is asked for
    ],
)
def test_a_guess_may_be_as_good_as_the_right_number(guess: str, verdict: str | None):
    prediction = predict("the best size")
    prediction.entry.value = guess
    comparison = prediction.compare("16, measured here", values=[16], as_good=[16, 24])
    if verdict is None:
        assert "a number is asked for" in comparison.view.value
    else:
        assert f"({verdict})." in repr(comparison)


def test_a_choice_is_made_with_buttons_and_begins_empty():
    prediction = predict("which one", choices=["one", "one and two", "none"])
    assert isinstance(prediction.entry, ipywidgets.RadioButtons)
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
    with pytest.raises(ValueError, match="begins with none of the choices"):
        prediction.compare("two and one")


def test_a_prediction_asks_its_question_as_the_label_of_an_empty_field():
    prediction = predict("rows of <each> device")
    entry, _ = prediction.children
    assert entry is prediction.entry
    assert entry.description == "rows of <each> device"
    assert (entry.value, entry.placeholder) == ("", "your guess")
    assert repr(prediction) == "<your guess: rows of <each> device; run the cell to type it>"


def test_without_a_guess_the_answer_waits_for_a_button():
    prediction = predict("time of 1F1B")
    comparison = prediction.compare("33")
    view, button, _ = comparison.children
    assert "33" not in view.value
    assert (button.description, button.layout.display) == ("Show the answer", None)
    button.click()
    assert view.value == "<b>Your guess: none yet. Answer: 33.</b>"
    assert button.layout.display == "none"


@pytest.mark.parametrize(
    ("answer", "guess", "asked"),
    [
        ("3, 3, 1", "blah", "3 numbers are asked for"),
        ("3, 3, 1", "3 and 1", "3 numbers are asked for"),
        ("25 %", "little", "a number is asked for"),
        ("float32", "double", ""),
        ("vector", "5", ""),
    ],
)
def test_a_guess_of_the_wrong_kind_hears_what_is_asked_for(answer: str, guess: str, asked: str):
    prediction = predict("a guess")
    view, button, _ = prediction.compare(answer).children
    prediction.entry.value = guess
    assert (answer in view.value) == (button.layout.display == "none") == (not asked)
    assert asked in view.value
    button.click()
    assert f"{answer} (not what you guessed)" in view.value


def test_guesses_are_there_again_in_a_new_kernel_of_the_same_notebook(monkeypatch, tmp_path):
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "07_pipeline.ipynb"))
    predict("ticks").entry.value = "33"
    predict("which one", ["gpipe", "1f1b"]).entry.value = "1f1b"
    assert predict("ticks").guess == "33"
    assert predict("which one", ["gpipe", "1f1b"]).guess == "1f1b"
    assert predict("which one", ["naive", "gpipe"]).guess == predict("another").guess == ""
    assert "33 (as you said)" in predict("ticks").compare("33").view.value
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "08_schedules.ipynb"))
    assert predict("ticks").guess == ""


@pytest.mark.parametrize("kept", ["{", "[1]", '{"ticks": 3}'])
def test_a_damaged_file_of_guesses_counts_as_none(monkeypatch, tmp_path, kept: str):
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "page.ipynb"))
    (tmp_path / ".page.guesses.json").write_text(kept)
    prediction = predict("ticks")
    assert prediction.guess == ""
    prediction.entry.value = "5"
    assert predict("ticks").guess == "5"


def test_where_no_notebook_is_known_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    predict("ticks").entry.value = "5"
    assert list(tmp_path.iterdir()) == []
