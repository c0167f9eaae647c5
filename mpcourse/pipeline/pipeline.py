"""A model cut into stages, trained by a schedule over several devices.

Pages `pipeline` to `train_mnist`.

`Pipeline.step` does what one forward and one backward of the uncut model would do: the same loss,
the same gradients. Source: torch/distributed/pipelining (PipelineStage and its schedules).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from mpcourse.devices.devices import Device, DeviceLike, as_devices, get_devices
from mpcourse.pipeline.batch_norm import minibatch_statistics
from mpcourse.pipeline.engine import run_schedule
from mpcourse.pipeline.losses import microbatch_shares
from mpcourse.pipeline.microbatch import (
    merge_microbatches,
    microbatch_sizes,
    num_samples_of,
    split_minibatch,
)
from mpcourse.pipeline.stage import Stage
from mpcourse.schedules.actions import Action, Schedule
from mpcourse.schedules.named import make_schedule, num_devices_for
from mpcourse.schedules.standard import validate_schedule
from mpcourse.schedules.timeline import Timeline


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

    Attributes:
        stages: The modules.
        timeline: The measured `Timeline` of the last step, in seconds; None before the first.

    Raises:
        ValueError: Stages, devices and schedule do not fit, or two stages share a parameter.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        devices: Sequence[DeviceLike] | None = None,
        schedule: str | Schedule = "1f1b",
        *,
        num_microbatches: int | None = None,
        microbatch_size: int | None = None,
    ) -> None:
        super().__init__()
        stages = list(stages)
        _check_stages(stages)
        self._cut = {"num_microbatches": num_microbatches, "microbatch_size": microbatch_size}
        microbatch_sizes(1, **self._cut)  # refuses bad arguments now, not at the first step
        if devices is None:
            devices = get_devices(num_devices_for(schedule, len(stages)))
        self.devices = as_devices(devices)
        self.schedule = schedule
        self._schedules: dict[int, Schedule] = {}
        self._num_stages = len(stages)
        home = _home(self._any_schedule(), self.devices, len(stages))
        for stage, device in zip(stages, home, strict=True):
            stage.to(device.device)
        self.stages = nn.ModuleList(stages)
        self.timeline: Timeline | None = None
        self._places = [device.device for device in home]
        self._run_stages = [Stage(stage, is_first=index == 0) for index, stage in enumerate(stages)]

    def _any_schedule(self) -> Schedule:
        """The schedule, for as many micro-batches as any number of devices takes."""
        if isinstance(self.schedule, str):
            return make_schedule(
                self.schedule, self._num_stages, len(self.devices), len(self.devices)
            )
        return self.schedule

    def _schedule_for(self, num_microbatches: int) -> Schedule:
        """The schedule for that many micro-batches, known to be legal."""
        if num_microbatches not in self._schedules:
            schedule = self.schedule
            if isinstance(schedule, str):
                schedule = make_schedule(
                    schedule, self._num_stages, len(self.devices), num_microbatches
                )
            validate_schedule(schedule, self._num_stages, num_microbatches)
            self._schedules[num_microbatches] = schedule
        return self._schedules[num_microbatches]

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
                gradients of that step are incomplete: clear them.
        """
        num_samples = num_samples_of((inputs, targets))
        sizes = microbatch_sizes(num_samples, **self._cut)
        schedule = self._schedule_for(len(sizes))
        shares = _shares(loss_fn, targets, sizes, reduction, microbatch_shares)
        pieces = split_minibatch(inputs, sizes)
        answers = split_minibatch(targets, sizes)
        losses: dict[int, Tensor] = {}

        def loss_of(index: int) -> Callable[[Any], Tensor]:
            def scaled(output: Any) -> Tensor:
                return loss_fn(output, _to(answers[index], self._places[-1])) * shares[index]

            return scaled

        def run(action: Action, value: Any) -> Any:
            stage = self._run_stages[action.stage_index]
            index = action.microbatch_index
            is_last = action.stage_index == self._num_stages - 1
            if action.kind == "F":
                if action.stage_index == 0:
                    value = _to(pieces[index], self._places[0])
                output = stage.forward(index, value, loss_of(index) if is_last else None)
                if is_last:
                    losses[index] = output
                return output
            if action.kind == "B":
                return stage.backward(index, value)
            if action.kind == "I":
                return stage.backward_input(index, value)
            return stage.backward_weight(index)

        try:
            self._run(schedule, run, gradients=True)
        finally:
            for stage in self._run_stages:
                stage.clear()
        return torch.stack([losses[index] for index in range(len(sizes))]).sum()

    def forward(self, inputs: Any) -> Any:
        """Forward only, without gradients, through the same stages and micro-batches.

        Args:
            inputs: As for `step`.

        Returns:
            The outputs of the whole mini-batch, on the last stage's device.
        """
        sizes = microbatch_sizes(num_samples_of(inputs), **self._cut)
        pieces = split_minibatch(inputs, sizes)
        schedule = [
            [action for action in actions if action.kind == "F"]
            for actions in self._schedule_for(len(sizes))
        ]
        outputs: dict[int, Any] = {}

        def run(action: Action, value: Any) -> Any:
            index = action.microbatch_index
            if action.stage_index == 0:
                value = _to(pieces[index], self._places[0])
            output = self.stages[action.stage_index](value)
            if action.stage_index == self._num_stages - 1:
                outputs[index] = output
            return output

        self._run(schedule, run, gradients=False)
        return merge_microbatches([outputs[index] for index in range(len(sizes))])

    def _run(
        self, schedule: Schedule, run: Callable[[Action, Any], Any], *, gradients: bool
    ) -> None:
        with minibatch_statistics(self.stages):
            self.timeline = run_schedule(
                schedule, self.devices, run, self._num_stages, gradients=gradients
            )


def _check_stages(stages: list[nn.Module]) -> None:
    if not stages:
        raise ValueError("stages is empty; a pipeline needs at least one")
    owner: dict[Tensor, int] = {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"stage {index} is a {type(stage).__name__}, not an nn.Module")
        for name, parameter in stage.named_parameters():
            if owner.setdefault(parameter, index) != index:
                raise ValueError(
                    f"stages {owner[parameter]} and {index} share the parameter {name}; two "
                    "devices cannot both update it: put its users into one stage"
                )


def _home(schedule: Schedule, devices: list[Device], num_stages: int) -> list[Device]:
    """The device of each stage."""
    if len(schedule) != len(devices):
        raise ValueError(f"the schedule is for {len(schedule)} devices; got {len(devices)}")
    rows = zip(devices, schedule, strict=True)
    home = {action.stage_index: device for device, row in rows for action in row}
    if set(home) != set(range(num_stages)):
        raise ValueError(f"the schedule has the stages {sorted(home)}; got {num_stages} modules")
    return [home[index] for index in range(num_stages)]


def _shares(
    loss_fn: Callable, targets: Any, sizes: list[int], reduction: str | None, shares: Any
) -> list[float]:
    return microbatch_shares(loss_fn, targets, sizes, reduction=reduction, shares=shares)


def _to(value: Any, place: torch.device) -> Any:
    return tree_map(lambda leaf: leaf.to(place) if isinstance(leaf, Tensor) else leaf, value)
