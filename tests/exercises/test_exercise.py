"""The engine of the exercises: a verdict for every attempt, whatever it does, and no hanging."""

import _thread
import re
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from mpcourse.devices import workers
from mpcourse.exercises import exercise
from mpcourse.exercises.exercise import Exercise, NotAttempted, NotYet, Verdict, same, short

REREAD = 'Read again: "Two and two".'
NAN, INF = float("nan"), float("inf")
Point = namedtuple("Point", "x y")

check_sum = Exercise(
    lambda numbers: sum(numbers),
    read_again='"Two and two"',
    cases=[([2, 3],), ([],), ([1.5, 2],)],
    given="{}",
    hint="Add them up.",
    wrong={
        "That is the product.": lambda numbers: float(np.prod(numbers)),
        "Empty lists have a sum too.": lambda numbers: sum(numbers) or None,
        "Without the first of {0}.": lambda numbers: sum(numbers[1:]),
        "Only the last.": lambda numbers: numbers[-1] if numbers else 0,
    },
    errors={"IndexError": "A list may be empty."},
)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "GRACE_S", 0.2)


def test_the_html_of_a_verdict_has_sign_and_state_in_words_and_escapes_the_rest():
    shown = Verdict("not yet", ("got <b>&", 'Read "x"'))._repr_html_()
    root = ElementTree.fromstring(shown)
    assert root.find("b").text == "✗ not yet"
    assert [line.text for line in root.findall("div")] == ["got <b>&", 'Read "x"']


def test_the_three_states_differ_in_sign_and_colour():
    verdicts = [Verdict(state, ()) for state in ("not attempted", "not yet", "correct")]
    assert len({repr(each)[0] for each in verdicts}) == 3
    colours = re.findall("#[0-9a-f]{6}", "".join(v._repr_html_() for v in verdicts), re.I)
    assert len(set(colours)) == 3


def test_stub_and_right_answer():
    stub = "… not attempted\nReplace the ... in the cell above, then run both cells."
    assert repr(check_sum(lambda numbers: ...)) == repr(check_sum(...)) == stub
    assert check_sum(partial(sum, start=0)).state == "correct"  # whatever can be called
    right = "✓ correct\nAll 3 cases agree, also those that the page does not show."
    assert repr(check_sum(sum)) == right


@pytest.mark.parametrize(
    ("attempt", "lines"),
    [
        (lambda n: n[0] * n[1], ("[2, 3]", "expected 5", "got 6", "That is the product.")),
        (lambda n: n[0], ("[2, 3]", "expected 5", "got 2", "Add them up.")),
        (lambda n: None, ("[2, 3]", "expected 5", "got None", "None is what a", "Add them up.")),
        (lambda n: "5", ("[2, 3]", "expected 5", "got '5'", "Add them up.")),
        (lambda n: True, ("[2, 3]", "expected 5", "got True", "Add them up.")),
        (lambda n: sum(n) or None, ("[]", "expected 0", "got None", "Empty lists have")),
        (lambda n: int(sum(n)), ("[1.5, 2]", "expected 3.5", "got 3", "Add them up.")),
        (lambda n: n[0] + n[1], ("[]", "it raised IndexError", "A list may be empty.")),
    ],
)
def test_a_wrong_result_is_shown_beside_the_right_one(attempt: Callable, lines: tuple[str, ...]):
    found = check_sum(attempt)
    assert found.state == "not yet"
    assert found.lines[-1] == REREAD
    for line, wanted in zip(found.lines[:-1], (f"Given {lines[0]}:", *lines[1:]), strict=True):
        assert line.startswith(wanted)


def test_of_several_wrong_answers_that_fit_the_one_that_agrees_longer_is_meant():
    assert "Without the first of [2, 3]." in check_sum(lambda n: sum(n[1:])).lines
    other = Exercise(lambda n: n, "x", [(1,), (2,)], wrong={"a": lambda n: 3, "b": lambda n: n + 2})
    assert "a" in other(lambda n: 3).lines
    assert "b" in other(lambda n: n + 2).lines


def test_what_is_known_is_played_once_and_what_gives_nothing_twice():
    played = Counter()

    def noting(name: str, answer: Callable) -> Callable:
        return lambda n: played.update([(name, n)]) or answer(n)

    wrong = {
        "never": noting("raises", lambda n: 1 / 0),
        "one more": noting("more", lambda n: n + 1),
    }
    wrong["late"] = noting("late", lambda n: n if n < 2 else 7)
    check = Exercise(noting("right", lambda n: n), "x", [(1,), (2,)], wrong=wrong)
    for _ in range(4):
        assert "late" in check(lambda n: n if n < 2 else 7).lines
    assert played == {
        **{("right", 1): 1, ("right", 2): 1, ("late", 1): 1, ("late", 2): 1},
        **{("more", 2): 1, ("raises", 2): 2},  # other in the case that failed: asked about no more
    }


def twice(n):
    return n + n


def test_a_text_is_the_solution_with_changes_of_its_code():
    slips = {"square": "+ => *", "zero": "n + n => n - n", "both": ("n + => 3 +", "+ n => + 2")}
    each = Exercise(twice, "x", [(3,), (5,)], wrong=slips, also_right=["n + n => 2 * n"])
    for words, answer in {
        "square": lambda n: n * n,
        "zero": lambda n: 0,
        "both": lambda n: 5,
    }.items():
        assert words in each(answer).lines
    assert each(each.answer(*each.also_right)).state == "correct"
    with pytest.raises(ValueError, match="twice has no 'm'"):
        each.answer("m => n")


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("after {0} comes {expected}", "after 1 comes 2"),
        (lambda outcome, expected: f"{ {outcome: expected} }", "{3: 2}"),
    ],
)
def test_places_are_filled_in_where_a_hint_is_a_text(hint: Any, said: str):
    check = Exercise(lambda n: n + 1, "x", [(1,)], hint=hint)
    assert check(lambda n: n + 2).lines == ("expected 2", "got 3", said, "Read again: x.")


def test_a_world_may_say_what_is_wrong_itself():
    def play(attempt: Callable, number: int) -> int:
        if attempt(number) is None:
            raise NotYet("no number", "", "in this world")
        if attempt(number) == 0:
            raise NotAttempted
        return attempt(number)

    world = Exercise(lambda n: n, "there", [(1,)], given="{}", play=play)
    said = ("Given 1:", "no number", "in this world", "Read again: there.")
    assert world(lambda n: None).lines == said
    assert world(lambda n: 0).state == "not attempted"
    assert world(lambda n: n).state == "correct"


@pytest.mark.parametrize("thing", [5, None, "sum", [5], torch.tensor(5)])
def test_what_cannot_be_called_is_named(thing: Any):
    assert check_sum(thing).lines == (
        f"This check takes a function; it got {short(thing)}.",
        REREAD,
    )


def test_a_comparison_that_raises_is_no_agreement():
    odd = Exercise(lambda: 1, "x", same=lambda a, b: a.item() == b)
    assert odd(lambda: 1).state == "not yet"


def test_draws_of_an_attempt_leave_the_readers_generator_alone():
    state = torch.get_rng_state()
    check_sum(lambda numbers: torch.rand(1).item())
    assert torch.equal(torch.get_rng_state(), state)


def deep(numbers: list) -> int:
    return deep(numbers)


def stops(error: BaseException) -> Callable:
    def attempt(numbers: list) -> None:
        raise error

    return attempt


@pytest.mark.parametrize(
    ("attempt", "problem"),
    [
        (stops(ValueError("no <good>")), r"ValueError: no <good> \(line \d+ of attempt\)"),
        (stops(AssertionError()), r"AssertionError \(line \d+ of attempt\)"),
        (stops(TimeoutError("mine")), r"TimeoutError: mine \(line \d+ of attempt\)"),
        (stops(SystemExit(1)), r"SystemExit: 1 \(line \d+ of attempt\)"),
        (stops(KeyboardInterrupt()), r"KeyboardInterrupt \(line \d+ of attempt\)"),
        (stops(StopIteration()), r"StopIteration \(line \d+ of attempt\)"),
        (lambda n: n["x"], r"TypeError: list indices .* \(line \d+ of <lambda>\)"),
        (deep, r"RecursionError: maximum recursion depth .* of deep\)"),
        (lambda: 5, r"TypeError: .*<lambda>\(\) takes 0 positional arguments but 1 was given"),
    ],
)
def test_an_error_of_the_attempt_is_told_with_its_line(attempt: Callable, problem: str):
    found = check_sum(attempt)
    assert found.state == "not yet"
    assert re.fullmatch(f"it raised {problem}", found.lines[1])
    assert found.lines[2:] == ("Add them up.", REREAD)
    assert check_sum(sum).state == "correct"


@pytest.mark.parametrize(
    "name", ["/tmp/ipykernel_123/4567.py", "<ipython-input-3-abc>", "/tmp/ipython-input-2-12.py"]
)
def test_the_line_is_the_cells_not_that_of_what_the_cell_calls(name: str):
    namespace = {"torch": torch}
    source = "def f(numbers):\n    layer = torch.nn.Linear(2, 1)\n    return layer(numbers)"
    exec(compile(source, name, "exec"), namespace)
    assert check_sum(namespace["f"]).lines[1].endswith("(line 3 of f)")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exercise, "TIME_LIMIT_S", 0.25)


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Set when the test is over, so that no attempt runs on behind the others."""
    event = threading.Event()
    yield event
    event.set()


def forever(*_) -> None:
    while True:
        pass


def in_the_second_case(numbers: list, end: threading.Event) -> int:
    return sum(numbers) or forever()


def asleep(numbers: list, end: threading.Event) -> None:
    end.wait(30)


def stubborn(numbers: list, end: threading.Event) -> None:
    while not end.is_set():
        try:
            while not end.is_set():
                time.sleep(0.001)
        except BaseException:
            pass


@pytest.mark.parametrize("attempt", [forever, in_the_second_case, asleep, stubborn])
def test_an_attempt_that_never_returns_is_stopped_or_left_behind(
    attempt: Callable, hurried: None, end: threading.Event
):
    for _ in range(2):
        given, said = check_sum(lambda numbers: attempt(numbers, end)).lines[:2]
        assert given == ("Given []:" if attempt is in_the_second_case else "Given [2, 3]:")
        assert said == "it had not returned after 0.25 seconds and was stopped."
        assert check_sum(sum).state == "correct"


def test_an_outcome_that_never_ends_is_wrong(hurried: None):
    check = Exercise(lambda: [1], "there", look=lambda outcome: sum(outcome))
    assert check(lambda: iter(lambda: 1, 2)).lines[0].startswith("got <callable_iterator")
    assert check(lambda: [1]).state == "correct"


def test_an_interrupt_ends_the_check_and_the_attempt(end: threading.Event):
    started, ended = threading.Event(), threading.Event()

    def attempt(numbers: list) -> None:
        started.set()
        try:
            forever(numbers)
        finally:
            ended.set()

    def interrupt() -> None:
        started.wait(10)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        check_sum(attempt)
    assert ended.wait(10)
    assert check_sum(sum).state == "correct"


T = torch.tensor


SAME = [  # expected, results that count as it, results that do not
    (5, [5, 5.0, T(5), T([[5.0]]), np.int64(5)], [6, "5", [5], T([5, 5])]),
    (5.0, [5], []),
    (0.3, [0.1 + 0.2], [0.3001]),
    (1.0, [1.0000005], [1.000002, -1.0, INF, NAN, 1j]),
    (0.0, [1e-9], [1e-5, False]),
    (25557032, [25557032, 25557031.5], [25557031]),
    (INF, [INF], [-INF, 1.0]),
    (NAN, [], [NAN]),
    (0.1, [np.float32(0.1)], []),
    (0.5, [np.float64(0.5)], []),
    (0, [], [None]),
    # bools, strings, None
    (True, [True, T(True)], [1, T(1)]),
    (1, [], [True, T(True)]),
    (False, [], [1, None]),
    ("a", ["a"], ["A", b"a"]),
    (None, [None], [0]),
    # tensors
    (T([1.0, 2.0]), [T([1.0, 2.0]), T([1, 2])], [T([1.0, 2.1]), T([[1.0, 2.0]]), [1.0, 2.0]]),
    (T([1.0]), [T([1.0 + 5e-7]), T([1.0]).double()], [T([1.00001]), T([NAN])]),
    (T([1.0]), [T([1.0], requires_grad=True)], []),
    (T([1.0], requires_grad=True), [T([1.0])], []),
    (T([0.0]), [T([1e-10])], [T([1e-8])]),
    (T([1, 2]), [T([1.0, 2.0]), T([1, 2], dtype=torch.int8)], []),
    (T([25557032]), [T([25557032])], [T([25557031])]),
    (T([True]), [T([True])], []),
    (T([False]), [], [T([True])]),
    (T([NAN]), [], [T([NAN])]),
    (T([INF]), [T([INF])], []),
    (T(1.0), [], [T([1.0]), 1.0, None]),
    (torch.ones(0), [torch.ones(0)], []),
    (torch.ones(0, 2), [], [torch.ones(0)]),
    (torch.ones(2), [np.ones(2)], []),
    # nests
    ([1, 2], [[1, 2], (1, 2), [T(1), T(2)]], [[2, 1], [1, 2, 3], [1], T([1, 2]), np.array([1, 2])]),
    ([1, 2], [], [(n for n in (1, 2))]),
    ((1, 2), [[1, 2], Point(1, 2)], []),
    (Point(1, 2), [(1, 2)], []),
    ([0, 1], [], [range(2)]),
    ([], [[]], []),
    (["a", "b"], [], ["ab"]),
    ([[1], [2, 3]], [[[1], [2, 3]]], [[[1], [2, 4]]]),
    ([T([1.0])], [[T([1.0])]], [[T([2.0])]]),
    (
        {"a": 1},
        [{"a": 1}, OrderedDict(a=1)],
        [{"a": 2}, {"b": 1}, {"a": 1, "b": 2}, {}, [("a", 1)]],
    ),
    ({"b": 2, "a": 1}, [{"a": 1, "b": 2}], []),
    ({"a": (T([1.0]), None)}, [{"a": [T([1.0]), None]}], []),
    # anything else
    ({2, 1}, [{1, 2}], []),
    (torch.float32, [torch.float32], [torch.float64]),
    (torch.device("cpu"), [torch.device("cpu")], ["cpu"]),
]


@pytest.mark.parametrize(("expected", "right", "wrong"), SAME)
def test_same(expected: Any, right: list, wrong: list):
    for result in [*right, *wrong]:
        assert same(result, expected) is any(result is each for each in right), result


@pytest.mark.gpu
def test_a_tensor_counts_wherever_it_is():
    assert same(T([1.0, 2.0], device="cuda"), T([1.0, 2.0]))
    assert not same(T([1.0, 3.0], device="cuda"), T([1.0, 2.0]))
    assert same(T(2.0, device="cuda"), 2.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "5"),
        (0.1, "0.1"),
        (2 / 3, "0.6666667"),
        (123456.7, "123456.7"),
        (NAN, "nan"),
        (None, "None"),
        (..., "Ellipsis"),
        (T(0.1), "tensor 0.1"),
        (T([0.1, 2.0]), "tensor [0.1, 2]"),
        (T([-0.0, -0.5]), "tensor [0, -0.5]"),
        (T([[1, 2], [3, 4]]), "tensor [[1, 2], [3, 4]]"),
        (torch.ones(12), f"tensor [{', '.join('1' * 12)}]"),
        (torch.ones(13), "a tensor of shape (13,)"),
        ([1, (2.5, "x")], "[1, (2.5, 'x')]"),
        ({"a": T([1.0]), "b": {}}, "{'a': tensor [1], 'b': {}}"),
        (list(range(13)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (13 in all)]"),
        (tuple(range(12)), "(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)"),
        ({n: n for n in range(99)}, None),
        ("x" * 100, "'" + "x" * 76 + "…"),
    ],
)
def test_short(value: Any, words: str | None):
    shown = short(value)
    assert len(shown) < 120
    assert words is None or shown == words


@pytest.mark.parametrize(
    ("one", "other"), [(1.0, 1.000002), (123456.7, 123457.1), (1e-3, 1.002e-3), (10, 10.00002)]
)
def test_numbers_that_are_not_the_same_do_not_look_the_same(one: float, other: float):
    assert not same(one, other)
    assert short(one) != short(other)
    assert short(T(one, dtype=torch.float64)) != short(T(other, dtype=torch.float64))
