"""Every exercise: what is said of the stub, the solution, each wrong answer, and of accidents."""

import builtins
import copy
import random
import re
import symtable
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from nbformat import NotebookNode

from mpcourse.commands.clean_copies import find_pages
from mpcourse.commands.grading.questions import bound_names, exercises_of
from mpcourse.commands.pages import read
from mpcourse.devices import workers
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
    for number, (words, answer) in enumerate(each.wrong_answers)
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
    before = states_of_generators()
    solution = each.solution() if each.values else each.solution
    for right in [solution, *map(each.answer, each.also_right)]:
        verdict = judged(each, right)
        assert verdict.state == "correct", (right, verdict)
    assert states_of_generators() == before


def states_of_generators() -> list[str]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()  # noqa: NPY002
    return [str(state) for state in states]


@pytest.mark.parametrize(("each", "words", "answer"), ANSWERS)
def test_a_wrong_answer_gets_the_words_meant_for_it(
    each: Exercise, words: str, answer: object, monkeypatch: pytest.MonkeyPatch
):
    # a place in braces holds whatever the case has there
    fixed = [piece.format() for piece in re.split(r"(?<!{){\w+(?::\w+)?}(?!})", words)]
    monkeypatch.setattr(workers, "GRACE_S", 0.2)
    for limit in (3.0, 20.0):  # some of them never return; a busy machine is slow
        monkeypatch.setattr(exercise, "TIME_LIMIT_S", limit)
        verdict = said(judged(each, answer))
        if re.search(".*".join(map(re.escape, fixed)), verdict, re.DOTALL):
            return
    pytest.fail(verdict)


@pytest.mark.parametrize("each", FUNCTIONS)
def test_what_is_no_function_raises_or_never_ends_is_said(each: Exercise, monkeypatch):
    def raising(*_, **__):
        raise LookupError("on purpose")

    over = threading.Event()  # a check stops its own thread, and not those of its ranks

    def endless(*_, **__):
        while not over.is_set():
            time.sleep(0.001)

    assert "takes a function" in said(each(7))
    assert "it raised LookupError: on purpose" in said(each(raising))
    monkeypatch.setattr(exercise, "TIME_LIMIT_S", 0.3)
    monkeypatch.setattr(workers, "GRACE_S", 0.2)  # for ranks in threads
    try:
        assert "had not returned after 0.3 seconds" in said(each(endless))
    finally:
        over.set()


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


@pytest.fixture(params=PAGES)
def page(request) -> tuple[str, NotebookNode]:
    [path] = find_pages([request.param])
    return request.param, read(path)


def wanted_globals(code: str) -> set[str]:
    """Names that code reads and does not bind itself."""

    def walk(table: symtable.SymbolTable) -> Iterator[str]:
        read = (s for s in table.get_symbols() if s.is_global() and s.is_referenced())
        yield from (symbol.get_name() for symbol in read)
        for child in table.get_children():
            yield from walk(child)

    return set(walk(symtable.symtable(code, "solution", "exec"))) - bound_names(code)


def test_each_exercise_is_on_its_page_and_its_solution_runs_there(page):
    name, notebook = page
    asked = exercises_of(notebook)
    assert {each.name for each in asked} == set(PAGES[name])
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for each in asked:
        _, solution = PAGES[name][each.name].solution_text()
        assert each.asked
        assert set(each.asked) <= bound_names(solution), each.name
        above = map(bound_names, code[: code.index(each.source)])
        there = set(dir(builtins)).union(*above)
        assert wanted_globals(solution) <= there, each.name


def test_the_headings_to_read_again_stand_on_the_page(page):
    name, notebook = page
    texts = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    there = {re.sub(r"^\d+\. ", "", each) for each in re.findall(r"^#+ (.+)$", texts, re.MULTILINE)}
    for each in PAGES[name].values():
        named = re.findall(r'"([^"]+)"', each.read_again)
        assert named, each.read_again
        assert set(named) <= there


def test_the_untouched_page_shows_that_nothing_was_attempted(page):
    _, notebook = page
    checks = [cell for cell in notebook.cells if "check" in cell.metadata.get("tags", [])]
    assert checks
    for cell in checks:
        assert cell.outputs[0].data["text/plain"].startswith("… not attempted"), cell.source
