"""Where the bytes of a training step go: an account by arithmetic, a rehearsal, a count.

The account needs the sizes alone. The rehearsal runs the step on tensors without contents, which
takes no memory, and so finds the peak too. The count runs the step.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves

from mpcourse.memory.counting import ByteCounter, saved_for_backward, storages_of
from mpcourse.memory.recompute import leaves_of, nodes_of

MakeModel = Callable[[], nn.Module]
MakeBatch = Callable[[], tuple[Tensor, Tensor]]
LossFn = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
OptimizerKind = Literal["sgd", "momentum", "adam"]
STATES = {"sgd": 0, "momentum": 1, "adam": 2}  # numbers kept for each parameter

KNOWN_WHEN_RUN = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "col2im"}
KERNELS_OWN = (
    "takes room that only its kernel knows: count_step counts it (an LSTM on the CPU can do "
    "without that kernel, within torch.backends.mkldnn.flags(enabled=False))"
)
NEEDS_NUMBERS = "depends on numbers, and there are none before the step runs: count_step counts it"
TAKES_WHAT_WAS_THERE = (
    "takes a tensor that was there before: the functions have to make the model, the "
    "batch and what the loss needs (its class weights) anew"
)
# their kernels make one number in the storage of all terms
KEEP_ALL_TERMS = {"mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"}
AUTOCAST = (
    "an account does not know the weights that autocast casts and keeps: use it in the model's "
    "forward, or rehearse_step"
)


@dataclass(frozen=True)
class Account:
    """Bytes by purpose."""

    parameters: int
    buffers: int  # what else the model holds, such as a batch norm's statistics
    gradients: int  # one number for each parameter that the loss depends on
    optimizer_state: int  # what the optimizer keeps between steps
    batch: int  # inputs and targets
    activations: int  # what autograd saves for the backward and nobody else holds; the loss

    @property
    def resident(self) -> int:
        """What is held from one step to the next: parameters, buffers, state of the optimizer."""
        return self.parameters + self.buffers + self.optimizer_state

    @property
    def total(self) -> int:
        """The sum; the peak is lower where activations are freed while gradients are made."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class StepBytes:
    """Bytes held at four moments of a step, and the most at any time."""

    before: int  # the model, the optimizer's state and the batch
    after_forward: int
    after_backward: int
    after_step: int
    peak: int
    peak_phase: str  # "forward", "backward" or "step"
    peak_operation: str  # that reached the peak; "" where it is unknown (CUDA)


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of these tensors, shared storages once."""
    storages = [storage for tensor in tensors for storage in storages_of(tensor)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def optimizer_bytes(parameters: Iterable[Tensor], optimizer: OptimizerKind) -> int:
    """Bytes that an optimizer keeps for these parameters, before it has made a step.

    "sgd" keeps nothing, "momentum" a number for each parameter, "adam" two (and counts its steps:
    four bytes for each tensor).
    """
    if optimizer not in STATES:
        raise ValueError(f"optimizer has to be one of {', '.join(STATES)}; got {optimizer!r}")
    steps = 4 if optimizer == "adam" else 0
    return sum(STATES[optimizer] * parameter.nbytes + steps for parameter in parameters)


def account(
    make_model: MakeModel, make_batch: MakeBatch, loss_fn: LossFn, optimizer: OptimizerKind
) -> Account:
    """How many bytes a training step needs, by purpose; nothing is computed or allocated.

    Args:
        make_model: Makes the model; it is called where tensors have no contents.
        make_batch: Makes inputs and targets, likewise.
        loss_fn: Takes outputs and targets.
        optimizer: "sgd", "momentum" or "adam".

    Raises:
        ValueError: Another optimizer.
        RuntimeError: What these functions do has bytes that are not known so early.
    """
    optimizer_bytes([], optimizer)  # refuses another one
    if not torch.is_grad_enabled():
        raise RuntimeError("an account of a step needs gradients: make it outside of no_grad")
    with WithoutContents():
        model = make_model()
        inputs, targets = make_batch()
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind):
            raise RuntimeError(f"{AUTOCAST}: torch.autocast({kind!r}) is on around account")
        held = [*model.parameters(), *model.buffers(), inputs, targets]
        with saved_for_backward(held) as saved:
            loss = loss_fn(model(inputs), targets)
        if any(getattr(node, "_saved_sparse", False) for node in nodes_of(loss)):
            raise RuntimeError(f"the size of a sparse gradient {NEEDS_NUMBERS}")
        reached = leaves_of(loss)
        trained = [p for p in model.parameters() if p in reached]
        state = optimizer_bytes(trained, optimizer)
    return Account(
        parameters=nbytes(model.parameters()),
        buffers=nbytes(model.buffers()),
        gradients=sum(p.nbytes for p in trained),
        optimizer_state=state,
        batch=nbytes([inputs, targets]),
        activations=saved.total + nbytes([loss]),
    )


def rehearse_step(
    make_model: MakeModel, make_batch: MakeBatch, loss_fn: LossFn, make_optimizer: MakeOptimizer
) -> StepBytes:
    """Do what `count_step` does, on tensors without contents, which take no memory.

    Raises:
        RuntimeError: The bytes of an operation are known only when it runs.

    Source: `torch._subclasses.fake_tensor.FakeTensorMode`.
    """
    with WithoutContents():
        return count_step(make_model, make_batch, loss_fn, make_optimizer)


def count_step(
    make_model: MakeModel, make_batch: MakeBatch, loss_fn: LossFn, make_optimizer: MakeOptimizer
) -> StepBytes:
    """Count the bytes of the second training step: in the first the optimizer has no state yet.

    Gradients are set to None before a step, as `zero_grad` does. On CUDA the device's allocator
    counts, which rounds up and sees what operations take for themselves; elsewhere `ByteCounter`.

    Args:
        make_model: Makes the model.
        make_batch: Makes inputs and targets, on the model's device.
        loss_fn: Takes outputs and targets.
        make_optimizer: Takes the parameters.
    """
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    inputs, targets = make_batch()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    if inputs.is_cuda and not isinstance(inputs, FakeTensor):
        counter = _AllocatorCounter(inputs.device)
    else:
        states = list(optimizer.state.values())
        counter = ByteCounter(list(model.parameters()), list(model.buffers()), states)
        counter.hold((inputs, targets), "")
    moments = [counter.live]
    with counter:
        counter.phase = "forward"
        loss = loss_fn(model(inputs), targets)
        moments.append(counter.live)
        counter.phase = "backward"
        loss.backward()
        moments.append(counter.live)
        counter.phase = "step"
        optimizer.step()
        moments.append(counter.live)
    return StepBytes(*moments, counter.peak, counter.peak_phase, counter.peak_operation)


class WithoutContents(FakeTensorMode):
    """Tensors have sizes alone; an operation whose bytes they do not tell is refused."""

    def __init__(self) -> None:
        super().__init__()
        # a memo of new tensors would keep a module's `.bfloat16()` or `.to(…)` from changing them
        self.fake_tensor_converter.set_tensor_memo = lambda *_: None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in KNOWN_WHEN_RUN:
            raise RuntimeError(f"{func} {KERNELS_OWN}")
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise RuntimeError(f"{func} {NEEDS_NUMBERS}") from error
        except AssertionError as error:
            if "convert all Tensors to FakeTensors" in str(error):
                raise RuntimeError(f"{func} {TAKES_WHAT_WAS_THERE}") from error
            raise
        layouts = {leaf.layout for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        if not layouts <= {torch.strided}:
            raise RuntimeError(f"the size of a sparse tensor {NEEDS_NUMBERS}")
        if name in KEEP_ALL_TERMS and result.dim() == 0:
            terms = super().__torch_dispatch__(torch.ops.aten.add.Tensor, types, args[:2])
            result = super().__torch_dispatch__(torch.ops.aten.resize_.default, types, (terms, []))
        return result


class _AllocatorCounter:
    """What CUDA's allocator has allocated, with the interface of `ByteCounter`."""

    peak_operation = ""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak, self.peak_phase, self._phase = self.live, "start", "start"
        torch.cuda.reset_peak_memory_stats(device)

    @property
    def live(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._close()
        self._phase = name

    def _close(self) -> None:
        reached = torch.cuda.max_memory_allocated(self.device)
        if reached > self.peak:
            self.peak, self.peak_phase = reached, self._phase

    def __enter__(self) -> "_AllocatorCounter":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
