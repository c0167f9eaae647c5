import pytest

from mpcourse.schedules.actions import Action, makes, needs, number_actions


def test_an_action_prints_as_stage_kind_microbatch() -> None:
    assert str(Action(0, "F", 1)) == f"{Action(0, 'F', 1)}" == "0F1"
    assert Action(stage_index=12, kind="W", microbatch_index=30).__str__() == "12W30"


def test_numbering_counts_each_kind_of_each_stage_by_itself() -> None:
    actions = number_actions([(0, "FF"), (3, "FI"), (0, "I"), (3, "F"), (0, "I")])
    assert " ".join(map(str, actions)) == "0F0 0F1 3F0 3I0 0I0 3F1 0I1"


@pytest.mark.parametrize(
    ("action", "needed"),
    [
        (Action(0, "F", 4), []),
        (Action(1, "F", 4), [Action(0, "F", 4)]),
        (Action(2, "B", 4), [Action(2, "F", 4)]),
        (Action(1, "B", 4), [Action(1, "F", 4), Action(2, "B", 4)]),
        (Action(1, "I", 4), [Action(1, "F", 4), Action(2, "B", 4)]),
        (Action(1, "W", 4), [Action(1, "B", 4)]),
    ],
)
def test_what_an_action_of_three_stages_needs(action: Action, needed: list[Action]) -> None:
    assert needs(action, 3) == needed


def test_i_makes_the_gradient_that_others_ask_for_as_b() -> None:
    assert makes(Action(1, "I", 0)) == makes(Action(1, "B", 0)) == Action(1, "B", 0)
    assert makes(Action(1, "W", 0)) == Action(1, "W", 0)
    assert makes(Action(1, "F", 0)) == Action(1, "F", 0)
