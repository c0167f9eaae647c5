"""Activation checkpointing of a stage: keep its input alone, run its forward again at its backward.

Pages `does_it_fit` and `pipeline`.

Workers may share one random generator (CPU cores do), and other stages draw between two draws of
this one. So the generator's state is recorded at each draw, not once per forward as
`torch.utils.checkpoint` does, and one lock stands around all draws of a pipeline's forwards.
Source: torchgpipe/checkpoint.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from mpcourse.devices.locks import fork_safe_lock
from mpcourse.devices.workers import add_note
from mpcourse.memory.recompute import buffers_kept
from mpcourse.pipeline.batch_norm import counted_already

States = list[Tensor]  # of the generators that one operation may draw from
CHANGES_ITS_INPUT = (
    "the stage changes its input in place, so its forward cannot run again from it: use "
    "inplace=False, cut elsewhere, or do not recompute this stage"
)
DRAWS_BACKWARD = (
    "random numbers are drawn in the backward of a stage that is recomputed: a part of it is "
    "recomputed too (a checkpoint) and would draw others; recompute the stage or the part, not both"
)
_one_draw = fork_safe_lock()


class CheckpointedForward:
    """One forward of a stage: run for its output first, later once more for its graph.

    The second run draws the random numbers of the first, from generators of the module's own too,
    and counts no batch. Whatever else a forward does (hooks, a counter in Python) it does twice.
    `inputs` are the leaves of the input that `forward` uses; `forward` runs the module, and the
    loss if there is one.
    """

    def __init__(self, module: nn.Module, inputs: list[Any], forward: Callable[[], Any]) -> None:
        self._module = module
        self._inputs = inputs
        self._forward = forward
        self._draws: list[States | None] = []

    def first(self) -> Any:
        """Run; the output's graph says what requires a gradient, but holds no tensor."""
        before = _versions(self._inputs)
        with saved_tensors_hooks(_save_nothing, _save_nothing), WatchDraws(self._draws.append):
            output = self._forward()
        if _versions(self._inputs) != before:
            raise RuntimeError(CHANGES_ITS_INPUT)
        return output

    def again(self) -> Any:
        """Run once more; the output has its graph."""
        try:
            with (
                counted_already(self._module),
                buffers_kept(self._module),
                RepeatDraws(self._draws),
            ):
                return self._forward()
        except Exception as error:
            add_note(error, "raised when the stage's forward ran again for its backward")
            raise

    def around_backward(self) -> AbstractContextManager:
        """For the backward: a part that is recomputed in it must not draw random numbers."""
        drew = any(states is not None for states in self._draws)
        return WatchDraws(_refuse) if drew else nullcontext()


class WatchDraws(TorchDispatchMode):
    """Calls `seen` after each operation that may draw random numbers.

    It is given the states that the operation's generators had before, or None if none moved.
    """

    def __init__(self, seen: Callable[[States | None], object]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if not _may_draw(func):
            return func(*args, **(kwargs or {}))
        with _one_draw:
            generators, before = _generator_states(args, kwargs or {})
            result = func(*args, **(kwargs or {}))
            pairs = zip(generators, before, strict=True)
            moved = any(not torch.equal(each.get_state(), state) for each, state in pairs)
            self._seen(before if moved else None)
        return result


class RepeatDraws(TorchDispatchMode):
    """Draws what was recorded; afterwards the generators are in the state in which they were."""

    def __init__(self, draws: Sequence[States | None]) -> None:
        super().__init__()
        self._left = iter(draws)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        states = next(self._left, None) if _may_draw(func) else None
        if states is None:
            return func(*args, **(kwargs or {}))
        with _one_draw, generators_at(states, args, kwargs or {}):
            return func(*args, **(kwargs or {}))


def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _generator_states(args: tuple, kwargs: dict) -> tuple[list[torch.Generator], States]:
    """The generator that an operation is given, or all that it may draw from; and their states."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    generators = given or [torch.default_generator, *torch.cuda.default_generators]
    return generators, [generator.get_state() for generator in generators]


@contextmanager
def generators_at(states: States, args: tuple, kwargs: dict) -> Iterator[None]:
    """Set an operation's generators to recorded states; put them back afterwards."""
    generators, before = _generator_states(args, kwargs)
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _refuse(states: States | None) -> None:
    if states is not None:
        raise RuntimeError(DRAWS_BACKWARD)


def _save_nothing(_: Any) -> None:
    return None


def _versions(leaves: list[Any]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not say."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference()]
    return [tensor._version for tensor in tensors]
