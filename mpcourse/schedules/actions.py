"""What a schedule is made of: actions, and what each one needs (page `schedules`).

Standard library only. The vocabulary (stage_index, microbatch_index, `0F1`) is that of
torch/distributed/pipelining/schedules.py.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


class Action(NamedTuple):
    """One micro-batch through one stage, in one direction. As text: `0F1`.

    Attributes:
        stage_index: Which stage, from 0 (the one that sees the inputs).
        kind: "F" forward, "B" backward; or the backward in two halves: "I", which makes the
            gradient of the stage's input, then "W", which makes those of its weights.
        microbatch_index: Which micro-batch, from 0.
    """

    stage_index: int
    kind: str
    microbatch_index: int

    def __str__(self) -> str:
        return f"{self.stage_index}{self.kind}{self.microbatch_index}"


# One list per device: its actions in the order in which it does them. No entry stands for waiting;
# a device waits by itself until what its next action needs is there.
Schedule: TypeAlias = list[list[Action]]


class ScheduleError(ValueError):
    """The schedule cannot be run as it stands; the message names device and action."""


def number_actions(order: Iterable[tuple[int, str]]) -> list[Action]:
    """Give the actions of one device their micro-batches: first in, first out.

    `order` has pairs of a stage_index and one or several kinds. The n-th time that a stage does the
    same kind, it is for micro-batch n: [(0, "FF"), (0, "BB")] becomes 0F0 0F1 0B0 0B1.
    """
    done: Counter[tuple[int, str]] = Counter()
    actions = []
    for stage_index, kinds in order:
        for kind in kinds:
            actions.append(Action(stage_index, kind, done[stage_index, kind]))
            done[stage_index, kind] += 1
    return actions


def needs(action: Action, num_stages: int) -> list[Action]:
    """What must be finished before `action` can start, besides its device being free.

    Where the gradient of a stage's input is needed, "B" stands for whichever makes it, B or I:
    compare with what `makes` returns. The last stage gets its gradient from the loss.
    """
    stage, kind, microbatch = action
    if kind == "F":
        return [Action(stage - 1, "F", microbatch)] if stage > 0 else []
    if kind == "W":
        return [Action(stage, "B", microbatch)]
    needed = [Action(stage, "F", microbatch)]
    if stage < num_stages - 1:
        needed.append(Action(stage + 1, "B", microbatch))
    return needed


def makes(action: Action) -> Action:
    """The name under which `needs` asks for the result of `action`: itself, but "B" for "I"."""
    return Action(action[0], "B", action[2]) if action[1] == "I" else action


def check_count(name: str, value: int) -> None:
    """Refuse what is no whole number from 1, naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number from 1; got {value!r}")
    if value < 1:
        raise ValueError(f"{name} is a whole number from 1; got {value}")
