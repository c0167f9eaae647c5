"""A forward that keeps nothing but its input, and runs again when its backward comes.

Pages `does_it_fit` and `pipeline`.

Workers may share one random generator (CPU cores do), and other stages draw between two draws of
this one. So the generator's state is noted at each draw, not once per forward as
`torch.utils.checkpoint` does, and one lock stands around all draws of a pipeline's forwards.
Source: torchgpipe/checkpoint.py.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

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
_one_draw = threading.Lock()


class Replay:
    """One forward of a stage: run for its output first, later once more for its graph.

    The second run draws the random numbers of the first, from generators of the module's own too,
    and counts no batch. Whatever else a forward does (hooks, a counter in Python) it does twice.

    Args:
        module: The stage's layers.
        inputs: The leaves of the input, that `forward` uses.
        forward: Runs the module, and the loss if there is one.
    """

    def __init__(self, module: nn.Module, inputs: list[Any], forward: Callable[[], Any]) -> None:
        self._module = module
        self._inputs = inputs
        self._forward = forward
        self._draws: list[States | None] = []

    def first(self) -> Any:
        """Run; the output's graph says what wants a gradient, but holds no tensor.

        Raises:
            RuntimeError: The input was changed.
        """
        before = _versions(self._inputs)
        with saved_tensors_hooks(_save_nothing, _save_nothing), NotesDraws(self._draws):
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
                DrawsAgain(self._draws),
            ):
                return self._forward()
        except Exception as error:
            add_note(error, "raised when the stage's forward ran again for its backward")
            raise

    def watched(self) -> AbstractContextManager:
        """For the backward: a part that is recomputed in it must not draw random numbers."""
        drew = any(states is not None for states in self._draws)
        return RefusesDraws() if drew else nullcontext()


class NotesDraws(TorchDispatchMode):
    """Notes before each draw of random numbers where its generators stand.

    Args:
        draws: Gets an entry per operation that may draw: None if it did not.
    """

    def __init__(self, draws: list[States | None]) -> None:
        super().__init__()
        self._draws = draws

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if not _may_draw(func):
            return func(*args, **(kwargs or {}))
        with _one_draw:
            generators, before = _where_they_stand(args, kwargs or {})
            result = func(*args, **(kwargs or {}))
            self._draws.append(before if _moved(generators, before) else None)
        return result


class DrawsAgain(TorchDispatchMode):
    """Draws what was drawn; afterwards the generators stand where they stood.

    Args:
        draws: As noted.
    """

    def __init__(self, draws: Sequence[States | None]) -> None:
        super().__init__()
        self._left = iter(draws)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        states = next(self._left, None) if _may_draw(func) else None
        if states is None:
            return func(*args, **(kwargs or {}))
        with _one_draw, _set_back(args, kwargs or {}, states):
            return func(*args, **(kwargs or {}))


class RefusesDraws(TorchDispatchMode):
    """Raises where a random number is drawn."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if not _may_draw(func):
            return func(*args, **(kwargs or {}))
        with _one_draw:
            generators, before = _where_they_stand(args, kwargs or {})
            result = func(*args, **(kwargs or {}))
            if _moved(generators, before):
                raise RuntimeError(DRAWS_BACKWARD)
        return result


def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _where_they_stand(args: tuple, kwargs: dict) -> tuple[list[torch.Generator], States]:
    """The generator that an operation is given, or all that it may draw from; and their states."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    generators = given or [torch.default_generator, *torch.cuda.default_generators]
    return generators, [generator.get_state() for generator in generators]


def _moved(generators: list[torch.Generator], before: States) -> bool:
    pairs = zip(generators, before, strict=True)
    return any(not torch.equal(generator.get_state(), state) for generator, state in pairs)


@contextmanager
def _set_back(args: tuple, kwargs: dict, states: States) -> Iterator[None]:
    generators, before = _where_they_stand(args, kwargs)
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _save_nothing(_: Any) -> None:
    return None


def _versions(leaves: list[Any]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not say."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference()]
    return [tensor._version for tensor in tensors]
