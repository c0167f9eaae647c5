"""The smallest pipeline: a thread per device, queues between them, a cut graph, a schedule.

Page `pipeline`, whose reader writes one for two devices; this one takes any schedule, and the
benchmark holds the engine against it. It promises nothing: an error leaves everybody
waiting, a stop button finds nobody, and it knows plain tensors on the CPU, means over samples,
micro-batches of one size, one stage a device and whole backwards only.
"""

from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from mpcourse.devices.devices import Device
from mpcourse.devices.workers import collect
from mpcourse.schedules.actions import Schedule


class SmallestPipeline:
    """Stages, one a device, run by a schedule of F and B."""

    def __init__(
        self, stages: Sequence[nn.Module], devices: Sequence[Device], schedule: Schedule
    ) -> None:
        self.stages, self.devices, self.schedule = stages, devices, schedule

    def step(self, inputs: Tensor, targets: Tensor, loss_fn: Callable) -> Tensor:
        """Forward and backward of a mini-batch; returns its loss."""
        count, last = len(self.schedule[0]) // 2, len(self.stages) - 1
        rows, answers = inputs.chunk(count), targets.chunk(count)
        outputs = [SimpleQueue() for _ in self.stages]  # that each stage sends on
        gradients = [SimpleQueue() for _ in self.stages]  # that come back to each stage
        losses: list[Tensor] = []

        def work(me: int) -> None:
            in_flight = {}  # micro-batch -> input and output of this stage, with the graph between
            for _, kind, index in self.schedule[me]:
                if kind == "F":
                    value = rows[index] if me == 0 else outputs[me - 1].get().requires_grad_()
                    output = self.stages[me](value)
                    if me == last:
                        output = loss_fn(output, answers[index]) / count
                        losses.append(output.detach())
                    else:
                        outputs[me].put(output.detach())  # here the graph is cut
                    in_flight[index] = value, output
                else:
                    value, output = in_flight.pop(index)
                    output.backward(None if me == last else gradients[me].get())
                    if me > 0:
                        gradients[me - 1].put(value.grad)

        collect([device.submit(work, me) for me, device in enumerate(self.devices)])
        return torch.stack(losses).sum()
