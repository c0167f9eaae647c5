"""The board adds legal moves, says why others are illegal, and loses nothing."""

import pytest
from ipywidgets import Button, HBox
from schedule_cases import orders

from mpcourse.schedules.builder import Builder
from mpcourse.widgets import ScheduleBoard, board_picture


def button(board: ScheduleBoard, words: str) -> Button:
    """The button that a reader sees under these words."""
    rows = [child for child in board.children if isinstance(child, HBox)]
    found = [b for row in rows for b in row.children if b.description == words]
    found += [b for b in board.children if isinstance(b, Button) and b.description == words]
    [only] = found
    return only


@pytest.fixture
def board() -> ScheduleBoard:
    return ScheduleBoard(Builder(2, 2, max_activations=1))


def test_a_button_adds_the_next_action_of_its_kind(board: ScheduleBoard) -> None:
    for words in ("add 0F0", "add 1F0", "add 1B0", "add 0B0", "add 0F1"):
        button(board, words).click()
    assert orders(board.schedule) == "0F0 0B0 0F1\n1F0 1B0"
    assert board.message.value == "<b>0F1 added</b>"
    assert board.view.value == board_picture(board.builder).svg


def test_an_illegal_move_is_refused_with_its_reason(board: ScheduleBoard) -> None:
    button(board, "add 0F0").click()
    before = board.view.value
    button(board, "add 0F1").click()
    assert board.message.value == (
        "<b>0F1 refused: device 0: 0F1 makes it hold 2 activations; max_activations is 1</b>"
    )
    button(board, "add 1B0").click()
    assert "needs 1F0, which has not been done" in board.message.value
    assert board.view.value == before
    assert orders(board.schedule) == "0F0\n"


def test_undo_takes_the_last_move_back(board: ScheduleBoard) -> None:
    before = board.view.value
    button(board, "undo").click()
    button(board, "add 0F0").click()
    assert board.view.value != before
    button(board, "undo").click()
    assert board.view.value == before
    assert button(board, "add 0F0")
    assert board.schedule == [[], []]


def test_the_picture_says_how_far_it_is_and_what_the_cap_is(board: ScheduleBoard) -> None:
    assert "0 actions, not complete; time so far 0, cap 1" in board.view.value
    board.builder.add("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1")
    assert "8 actions, complete; time so far 12, cap 1" in board_picture(board.builder).svg
    assert "cap" not in board_picture(Builder(1, 1)).svg


def test_the_text_form_is_the_same_for_every_board_and_state(board: ScheduleBoard) -> None:
    text = repr(board)
    board.press(0, "F")
    assert repr(board) == text == repr(ScheduleBoard(Builder(3, 4)))
    assert text.startswith("<board: ")
