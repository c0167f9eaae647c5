"""What is asked of CUDA's allocator and generators, by stand-ins; on GPUs the other tests do it."""

from types import SimpleNamespace

import torch
from torch import nn

from mpcourse.memory import StepBytes, accounting, checkpointing, count_step, rehearse_step

GPU = torch.device("cuda", 1)


class Allocator:
    """Bytes given out, now and at most."""

    def __init__(self, monkeypatch) -> None:
        self.now = self.most = 0
        answers = {
            "memory_allocated": lambda: self.now,
            "max_memory_allocated": lambda: self.most,
            "reset_peak_memory_stats": self.reset,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(
                torch.cuda, name, lambda place, answer=answer: self.of(place, answer)
            )

    def of(self, place, answer):
        assert place == GPU, f"asked of {place}"
        return answer()

    def reset(self):
        self.most = self.now

    def give(self, *changes):
        for change in changes:
            self.now += change
            self.most = max(self.most, self.now)


class Doubled(nn.Module):
    """One weight, twice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return self.weight * 2


def test_a_step_on_a_gpu_is_counted_by_its_allocator_and_the_peak_by_its_phase(monkeypatch):
    allocator = Allocator(monkeypatch)

    def loss_fn(outputs, targets):
        outputs.register_hook(lambda gradient: allocator.give(70, -100))
        allocator.give(50)
        return outputs

    def make_optimizer(parameters):
        allocator.give(1000, -900)  # before: no peak of the step
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.register_step_post_hook(lambda *_: allocator.give(20))
        return optimizer

    batch = SimpleNamespace(is_cuda=True, device=GPU), 0
    found = count_step(Doubled, lambda: batch, loss_fn, make_optimizer)
    # a first step of 50 - 30 + 20 on top of 100, which is not looked at, and the same again
    assert found == StepBytes(140, 190, 160, 180, 260, "backward", "")


def test_a_rehearsal_asks_no_allocator_for_tensors_without_contents(monkeypatch):
    """The model stays on the CPU: autograd asks a driver before it goes back on a GPU."""
    monkeypatch.setattr(accounting, "_AllocatorCounter", None)
    step = rehearse_step(
        Doubled,
        lambda: (torch.empty(1000, device="cuda"), 0),
        lambda outputs, targets: outputs,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    assert step.peak >= 4000


def test_a_second_run_draws_from_every_gpu_s_generator_as_before(monkeypatch):
    theirs = torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (theirs,))
    states = checkpointing._states((torch.ones(1),), {})
    assert list(states) == [torch.default_generator, theirs]
    first = torch.rand(2, generator=theirs)
    with checkpointing.generators_at(states):
        assert torch.equal(torch.rand(2, generator=theirs), first)
    assert not torch.equal(torch.rand(2, generator=theirs), first)
