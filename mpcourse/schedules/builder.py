"""Build a schedule by hand, a move at a time; an illegal move is refused with its reason.

Page `schedules`.

Standard library only. A move is legal when what it needs stands already, so whatever has been built
can run: there is no way into a deadlock.
"""

from mpcourse.schedules.actions import Action, Schedule, ScheduleError, check_count, makes, needs
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.timeline import Timeline
from mpcourse.schedules.validate import check_actions, check_memory

UNITS = Costs(1, 2, input_backward=1, weight_backward=1)


class Builder:
    """A schedule that grows by legal moves only. Stage i is on device i.

    Args:
        num_stages: Stages, one per device, 1 or more.
        num_microbatches: Micro-batches, 1 or more.
        max_activations: The most stage-micro-batches that a device may hold at once; None: any.
    """

    def __init__(
        self, num_stages: int, num_microbatches: int, max_activations: int | None = None
    ) -> None:
        check_count("num_stages", num_stages)
        check_count("num_microbatches", num_microbatches)
        if max_activations is not None:
            check_count("max_activations", max_activations)
        self.num_stages = num_stages
        self.num_microbatches = num_microbatches
        self.max_activations = max_activations
        self.moves: list[Action] = []

    def add(self, moves: str) -> "Builder":
        """Append moves such as "0F0 1F0 0F1", each to the device of its stage: all, or none.

        Returns the builder itself. The first illegal move raises a ScheduleError that says why.
        """
        before = len(self.moves)
        try:
            for word in moves.split():
                action = read_action(word)
                self._check(action)
                self.moves.append(action)
        except ScheduleError:
            del self.moves[before:]
            raise
        return self

    def why_not(self, move: str) -> str | None:
        """The reason why a move is illegal now; None if it is legal."""
        try:
            self._check(read_action(move))
        except ScheduleError as error:
            return str(error)
        return None

    def undo(self) -> None:
        """Take the last move back, if there is one."""
        del self.moves[-1:]

    def next_of(self, stage_index: int, kind: str) -> Action:
        """The action of that kind which a stage has not done yet, first in, first out."""
        done = sum((a.stage_index, a.kind) == (stage_index, kind) for a in self.moves)
        return Action(stage_index, kind, done)

    @property
    def schedule(self) -> Schedule:
        """What has been built: a list per device, complete or not."""
        return self._with()

    @property
    def timeline(self) -> Timeline:
        """What has been built, simulated: F takes 1, B 2, I and W 1 each."""
        return simulate(self.schedule, UNITS)

    @property
    def is_complete(self) -> bool:
        """Whether every micro-batch has been through every stage, both ways."""
        backwards = sum(action.kind in "BW" for action in self.moves)
        return backwards == self.num_stages * self.num_microbatches

    def _with(self, *more: Action) -> Schedule:
        schedule: Schedule = [[] for _ in range(self.num_stages)]
        for action in [*self.moves, *more]:
            schedule[action.stage_index].append(action)
        return schedule

    def _check(self, action: Action) -> None:
        if action.stage_index >= self.num_stages:
            allowed = f"0 to {self.num_stages - 1}"
            raise ScheduleError(f"{action} has no device: the stages are {allowed}")
        schedule = self._with(action)
        check_actions(schedule, self.num_stages, self.num_microbatches)
        done = {makes(move) for move in self.moves}
        for need in needs(action, self.num_stages):
            if need not in done:
                raise ScheduleError(
                    f"device {action.stage_index}: {action} needs {_named(need, action)}, "
                    "which has not been done"
                )
        if self.max_activations is not None:
            check_memory(schedule, self.max_activations)


def _named(need: Action, action: Action) -> str:
    """The action that is needed, as the reader knows it: a split backward needs an I."""
    return str(need._replace(kind="I") if need.kind == "B" and action.kind in "IW" else need)


def read_action(word: str) -> Action:
    """An action from its text, `0F1`."""
    for kind in "FBIW":
        stage, found, microbatch = word.partition(kind)
        if found and stage.isdecimal() and microbatch.isdecimal():
            return Action(int(stage), kind, int(microbatch))
    raise ScheduleError(f"{word!r} is no action; one is written as stage, kind, micro-batch: 0F1")
