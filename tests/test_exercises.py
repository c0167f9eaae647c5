"""Every exercise: what is said of the stub, the solution, each wrong answer, and of accidents."""

import copy
import re
import time

import pytest
import torch

from mpcourse.exercises import PAGES, exercise
from mpcourse.exercises.exercise import Exercise, Verdict, call

EXERCISES = [
    pytest.param(each, id=f"{page}-{name.removeprefix('check_')}")
    for page, own in PAGES.items()
    for name, each in own.items()
]
ANSWERS = [
    pytest.param(each, words, answer, id=f"{page}-{name.removeprefix('check_')}-{number}")
    for page, own in PAGES.items()
    for name, each in own.items()
    for number, (words, answer) in enumerate(each.wrong_answers())
]
FUNCTIONS = [param for param in EXERCISES if not param.values[0].values]


def judged(each: Exercise, answer: object) -> Verdict:
    return each(*answer) if each.values and isinstance(answer, tuple) else each(answer)


def said(verdict: Verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


@pytest.mark.parametrize("each", EXERCISES)
def test_the_stub_is_not_attempted(each: Exercise):
    assert each(...).state == "not attempted"
    if not each.values:
        assert each(lambda *_, **__: ...).state == "not attempted"


@pytest.mark.parametrize("each", EXERCISES)
def test_the_solution_and_its_other_forms_are_correct(each: Exercise):
    solution = each.solution() if each.values else each.solution
    for right in [solution, *each.also_right]:
        verdict = judged(each, right)
        assert verdict.state == "correct", (right, verdict)


@pytest.mark.parametrize(("each", "words", "answer"), ANSWERS)
def test_a_wrong_answer_gets_the_words_meant_for_it(
    each: Exercise, words: str, answer: object, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(exercise, "TIME_LIMIT_S", 3.0)  # some of them never return
    verdict = said(judged(each, answer))
    # a place in braces holds whatever the case has there
    fixed = [piece.format() for piece in re.split(r"(?<!{){\w+(?::\w+)?}(?!})", words)]
    assert re.search(".*".join(map(re.escape, fixed)), verdict, re.DOTALL), verdict


@pytest.mark.parametrize("each", FUNCTIONS)
def test_what_is_no_function_raises_or_never_ends_is_said(each: Exercise, monkeypatch):
    def raising(*_, **__):
        raise LookupError("on purpose")

    def endless(*_, **__):
        while True:
            time.sleep(0.001)

    assert "takes a function" in said(each(7))
    assert "it raised LookupError: on purpose" in said(each(raising))
    monkeypatch.setattr(exercise, "TIME_LIMIT_S", 0.3)
    assert "had not returned after 0.3 seconds" in said(each(endless))


@pytest.mark.parametrize("each", [p for p in FUNCTIONS if p.values[0].play is call])
def test_an_attempt_may_change_what_it_is_given(each: Exercise):
    def changing(*given):
        result = each.solution(*copy.deepcopy(given))
        for value in given:
            if isinstance(value, list | dict):
                value.clear()
            elif isinstance(value, torch.Tensor):
                value.detach().zero_()
        return result

    assert each(changing).state == "correct"


@pytest.mark.parametrize("each", EXERCISES)
def test_the_solution_is_explained_in_two_to_five_sentences(each: Exercise):
    words, code = each.solution_text()
    assert 2 <= len(re.findall(r"[.?](?=\s|$)", words)) <= 5, words
    compile(code, "the solution", "exec")
    assert words not in code
