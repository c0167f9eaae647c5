"""A model cut into stages, trained by a schedule over several devices.

Pages `pipeline` to `train_mnist`.

`Pipeline.step` does what one forward and one backward of the uncut model would do: the same loss,
the same gradients. Source: torch/distributed/pipelining (PipelineStage and its schedules).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mpcourse.devices.devices import Device, DeviceLike, as_devices, get_devices
from mpcourse.devices.timing import HostClock
from mpcourse.devices.workers import add_note
from mpcourse.pipeline.batch_norm import minibatch_statistics
from mpcourse.pipeline.engine import LinkedAction, link_actions, run_schedule
from mpcourse.pipeline.microbatch import (
    bring_to,
    merge_microbatches,
    microbatch_sizes,
    num_samples_of,
    split_minibatch,
)
from mpcourse.pipeline.microbatch import microbatch_shares as shares_of
from mpcourse.pipeline.stage import Stage
from mpcourse.schedules.actions import Action, Schedule
from mpcourse.schedules.named import make_schedule, num_devices_for
from mpcourse.schedules.simulation import recompute_flags
from mpcourse.schedules.timeline import Timeline
from mpcourse.schedules.validate import check_actions, validate_schedule


class Pipeline(nn.Module):
    """Stages on devices, run by a schedule.

    Args:
        stages: The parts of the model, in order. These very modules are used, moved to their
            devices.
        devices: One for each list of the schedule; `get_devices` chooses when `None`.
        schedule: A name ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"), or a
            `Schedule` for a fixed number of micro-batches.
        num_microbatches: Into how many micro-batches a step cuts its mini-batch.
        microbatch_size: Or how many samples each has. Exactly one of the two is given.
        recompute: True, or a list with a flag per stage: those stages keep only the inputs of their
            micro-batches and run their forwards again when the backwards come. What else a forward
            or the loss does, besides buffers of the stage and random numbers, is done twice.

    Attributes:
        stages: The modules.
        recompute: A flag per stage.
        stage_type: What runs a stage's F, B, I and W; a class of yours may split backwards its way.

    Raises:
        ValueError: Stages, devices and schedule do not fit, or two stages share a parameter.
        TypeError: A stage is no module, or a flag is no bool.
    """

    stage_type: type[Stage] = Stage

    def __init__(
        self,
        stages: Sequence[nn.Module],
        devices: Sequence[DeviceLike] | None = None,
        schedule: str | Schedule = "1f1b",
        *,
        num_microbatches: int | None = None,
        microbatch_size: int | None = None,
        recompute: bool | Sequence[bool] = False,
    ) -> None:
        super().__init__()
        stages = list(stages)
        _check_stages(stages)
        if any(isinstance(module, Pipeline) for stage in stages for module in stage.modules()):
            raise TypeError(
                "a stage holds a Pipeline, whose forward makes no gradients: give its stages to "
                "this one"
            )
        self._cut = {"num_microbatches": num_microbatches, "microbatch_size": microbatch_size}
        microbatch_sizes(1, **self._cut)  # refuses bad arguments now, not at the first step
        self.recompute = recompute_flags(recompute, len(stages))
        if devices is None:
            devices = get_devices(num_devices_for(schedule, len(stages)))
        self.devices = as_devices(devices)
        self.schedule = schedule
        self._rows: dict[tuple[int, str], list[list[LinkedAction]]] = {}
        self._num_stages = len(stages)
        # any number of devices takes as many micro-batches
        any_schedule = self._schedule_for(len(self.devices))
        home = _find_homes(any_schedule, self.devices, len(stages))
        for stage, device in zip(stages, home, strict=True):
            stage.to(device.device)
        self.stages = nn.ModuleList(stages)
        self._clocks: list[HostClock] = []
        self._places = [device.device for device in home]

    def _rows_for(self, num_microbatches: int, kinds: str = "FBIW") -> list[list[LinkedAction]]:
        """What each device does of these kinds of action; the schedule has been validated."""
        key = num_microbatches, kinds
        if key not in self._rows:
            try:
                schedule = self._schedule_for(num_microbatches)
            except ValueError as error:
                add_note(
                    error,
                    f"this mini-batch makes {num_microbatches} micro-batches; if it is the last of "
                    "an epoch and shorter than the others, drop it (drop_last=True) or pad it",
                )
                raise
            validate_schedule(schedule, self._num_stages, num_microbatches)
            wanted = [[action for action in row if action.kind in kinds] for row in schedule]
            self._rows[key] = link_actions(wanted, self._num_stages)
        return self._rows[key]

    def _schedule_for(self, num_microbatches: int) -> Schedule:
        if not isinstance(self.schedule, str):
            return self.schedule
        return make_schedule(self.schedule, self._num_stages, len(self.devices), num_microbatches)

    def step(
        self,
        inputs: Any,
        targets: Any,
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        reduction: str | None = None,
        microbatch_shares: Sequence[float] | None = None,
    ) -> Tensor:
        """Forward and backward of one mini-batch; adds to the parameters' `.grad`.

        Hooks, of modules and of parameters, run once for each micro-batch.

        Args:
            inputs: Tensors of shape (N, ...), or a nest of them, on any device.
            targets: The same for `loss_fn`; they are brought to the last stage's device.
            loss_fn: `loss_fn(output, target)` gives a loss of 0 dimensions.
            reduction: "mean" or "sum", for a loss that does not say.
            microbatch_shares: By how much each micro-batch's loss counts, where the loss is a mean
                over something other than samples (class weights, ignored targets).

        Returns:
            The loss of the mini-batch, cut off from the graph, on the last stage's device.

        Raises:
            ValueError: The mini-batch is empty or does not fit the schedule, or the loss needs
                shares; nothing has run then.
            Exception: What a stage raised, with a note that names device, action and stage. The
                gradients of that step are incomplete: clear them. After an interrupt, an action
                that takes over two seconds to end goes on in its thread, and may add to `.grad`
                until it has ended.
        """
        sizes = microbatch_sizes(num_samples_of((inputs, targets)), **self._cut)
        rows = self._rows_for(len(sizes))
        if len(sizes) > 1:
            _check_no_graph((inputs, targets))
        shares = shares_of(loss_fn, targets, sizes, reduction=reduction, shares=microbatch_shares)
        flags = self.recompute
        stages = [
            self.stage_type(stage, is_first=i == 0, recompute=flags[i], beside_others=any(flags))
            for i, stage in enumerate(self.stages)
        ]
        first, last = self._places[0], self._places[-1]
        pieces = split_minibatch(inputs, sizes)
        # whole and first: a copy between GPUs, later, would make both wait for each other's kernels
        with torch.inference_mode(False):  # what is copied in that mode, no backward can use
            answers = split_minibatch(bring_to(targets, last), sizes)
        losses: dict[int, Tensor] = {}

        def run(action: Action, value: Any) -> Any:
            stage_index, kind, index = action
            stage = stages[stage_index]
            if kind != "F":
                return stage.run_backward(kind, index, value)
            if stage_index == 0:
                value = bring_to(pieces[index], first)
            if stage_index < len(stages) - 1:
                return stage.forward(index, value)
            loss_share = _share_of_loss(loss_fn, answers[index], shares[index], last)
            losses[index] = stage.forward(index, value, loss_share)
            return None

        try:
            self._run(rows, run, len(sizes), gradients=True)
        finally:
            for stage in stages:
                stage.in_flight.clear()
        return torch.stack([losses[index] for index in range(len(sizes))]).sum().detach()

    def forward(self, inputs: Any) -> Any:
        """Forward only, without gradients, through the same stages and micro-batches.

        Args:
            inputs: As for `step`.

        Returns:
            The outputs of the whole mini-batch, on the last stage's device.
        """
        sizes = microbatch_sizes(num_samples_of(inputs), **self._cut)
        pieces = split_minibatch(inputs, sizes)
        rows = self._rows_for(len(sizes), "F")
        outputs: dict[int, Any] = {}

        def run(action: Action, value: Any) -> Any:
            index = action.microbatch_index
            if action.stage_index == 0:
                value = bring_to(pieces[index], self._places[0])
            output = self.stages[action.stage_index](value)
            if action.stage_index == self._num_stages - 1:
                outputs[index] = output
            return output

        self._run(rows, run, len(sizes), gradients=False)
        return merge_microbatches([outputs[index] for index in range(len(sizes))])

    def _run(
        self, rows: list[list[LinkedAction]], run: Callable, count: int, *, gradients: bool
    ) -> None:
        with minibatch_statistics(self.stages, count):
            self._clocks = run_schedule(rows, self.devices, run, gradients=gradients)

    @property
    def timeline(self) -> Timeline | None:
        """The measured timeline of the last step, in seconds; None before the first."""
        if not self._clocks:
            return None
        rows = [clock.events(index) for index, clock in enumerate(self._clocks)]
        events = [event for row in rows for event in row]
        return Timeline.from_clock(events, len(self.devices), tuple(self.recompute))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Pipeline":
        """What `.to`, `.cuda`, `.double` and others do; stages stay on their devices."""
        for place in self._places:
            target = fn(torch.empty(0, device=place)).device
            if target != place:
                raise ValueError(
                    f"the stages of a pipeline have devices of their own, and {place} is one of "
                    f"them: they cannot all go to {target}; make a Pipeline on other devices"
                )
        return super()._apply(fn, recurse)


def _share_of_loss(
    loss_fn: Callable[[Any, Any], Tensor], target: Any, share: float, place: torch.device
) -> Callable[[Any], Tensor]:
    """What a micro-batch's output adds to the loss of the mini-batch."""
    if share == 0:  # nothing of it counts, also where its own mean is NaN
        return lambda output: torch.zeros((), device=place)
    return lambda output: loss_fn(output, target) * share


def _check_no_graph(minibatch: Any) -> None:
    """Refuse what is made outside of the pipeline: each micro-batch would run its backward."""
    if any(
        isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in tree_leaves(minibatch)
    ):
        raise ValueError(
            "the mini-batch has a graph of its own, through which the backward of each micro-batch "
            "would go: put what made the inputs into the first stage, or detach() the mini-batch"
        )


def _check_stages(stages: list[nn.Module]) -> None:
    """Refuse what is no list of modules with parameters and buffers of their own."""
    if not stages:
        raise ValueError("stages is empty; a pipeline needs at least one")
    owner: dict[Tensor, int] = {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"stage {index} is a {type(stage).__name__}, not an nn.Module")
        for name, tensor in [*stage.named_parameters(), *stage.named_buffers()]:
            if owner.setdefault(tensor, index) != index:
                raise ValueError(
                    f"stages {owner[tensor]} and {index} share the tensor {name}; two devices "
                    "cannot both update it: put its users into one stage"
                )


def _find_homes(schedule: Schedule, devices: list[Device], num_stages: int) -> list[Device]:
    """The device of each stage."""
    check_actions(schedule)
    twice = next((device for device in devices if devices.count(device) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice; each row of the schedule needs its own device")
    if len(schedule) != len(devices):
        raise ValueError(f"the schedule is for {len(schedule)} devices; got {len(devices)}")
    rows = zip(devices, schedule, strict=True)
    home = {action.stage_index: device for device, row in rows for action in row}
    if set(home) != set(range(num_stages)):
        raise ValueError(f"the schedule has the stages {sorted(home)}; got {num_stages} modules")
    return [home[index] for index in range(num_stages)]
