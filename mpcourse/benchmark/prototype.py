"""A pipeline in sixty lines, to hold the engine against: threads, queues, a cut graph, a schedule.

It promises nothing: an error leaves everybody waiting, a stop button finds nobody, and it knows
plain tensors, means over samples, whole backwards and one kind of device only.
"""

import queue
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mpcourse.devices.devices import Device
from mpcourse.devices.workers import collect
from mpcourse.schedules.actions import Schedule


class Prototype:
    """Stages on the CPU, one a device, run by a schedule of F and B.

    Args:
        stages: The modules, in order.
        devices: One for each.
        schedule: One list of actions per device.
    """

    def __init__(
        self, stages: Sequence[nn.Module], devices: Sequence[Device], schedule: Schedule
    ) -> None:
        self.stages, self.devices, self.schedule = list(stages), list(devices), schedule

    def step(self, inputs: Tensor, targets: Tensor, loss_fn: Callable) -> Tensor:
        """Forward and backward of a mini-batch, one sample a micro-batch; returns the loss."""
        rows, answers = inputs.split(1), targets.split(1)
        edges = [(queue.SimpleQueue(), queue.SimpleQueue()) for _ in self.stages]
        losses: list[Tensor] = []

        def work(me: int) -> None:
            kept: dict[int, tuple[Tensor, Tensor]] = {}
            last = me == len(self.stages) - 1
            for _, kind, index in self.schedule[me]:
                if kind == "F":
                    value = rows[index] if me == 0 else edges[me][0].get().requires_grad_()
                    output = self.stages[me](value)
                    if last:
                        output = loss_fn(output, answers[index]) / len(rows)
                        losses.append(output.detach())
                    else:
                        edges[me + 1][0].put(output.detach())
                    kept[index] = value, output
                else:
                    value, output = kept.pop(index)
                    torch.autograd.backward(output, None if last else edges[me][1].get())
                    if me > 0:
                        edges[me - 1][1].put(value.grad)

        collect([device.submit(work, me) for me, device in enumerate(self.devices)])
        return torch.stack(losses).sum()
