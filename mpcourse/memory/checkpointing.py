"""Running a forward twice alike: activation checkpointing of a pipeline's stage, or of a part.

Pages `does_it_fit` and `pipeline`.

Workers may share one random generator (CPU cores do), and other stages draw between two draws of
this one. So the generator's state is recorded at each draw, not once per forward as
`torch.utils.checkpoint` does, and one lock stands around all draws of a pipeline's forwards.
Source: torchgpipe/checkpoint.py.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcourse.devices.locks import fork_safe_lock
from mpcourse.devices.workers import add_note

States = dict[torch.Generator, Tensor]  # of those that one operation has drawn from
Buffers = dict[tuple[nn.Module, str], Tensor | None]  # by who holds it, and its name
CHANGES_ITS_INPUT = (
    "the forward changes its input in place, so it cannot run again from it: use inplace=False, "
    "cut elsewhere, or do not recompute this part"
)
DRAWS_BACKWARD = (
    "random numbers are drawn in the backward of a part that is recomputed: a part of it is "
    "recomputed too (a checkpoint) and would draw others; recompute the one or the other, not both"
)
DRAWS_OTHERS = (
    "torch.utils.checkpoint runs this dropout again without the random numbers that its own "
    "generator gave the first time: use mpcourse.memory.recomputed, or nn.Dropout"
)
_one_draw = fork_safe_lock(threading.RLock)  # a recomputed part may draw within a recomputed stage


class CheckpointedForward:
    """One forward of a module: run for its output first, later once more for its graph.

    The second run begins with the buffers that the first one found, draws the random numbers that
    the first one drew, from generators of the module's own too, and leaves no trace in either.
    Whatever else a forward does (hooks, a counter in Python) it does twice.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._draws: list[States] = []
        self._found: Buffers = {}  # those that the first run changed, as they were

    def first(self, forward: Callable[[], Any], inputs: list[Any]) -> Any:
        """Run `forward`, which calls the module on these leaves."""
        versions, before = _versions(inputs), _buffers(self._module)
        copies, stamps = _copies(before), _versions(before.values())
        with WatchDraws(self._draws.append):
            output = forward()
        if _versions(inputs) != versions:
            raise RuntimeError(CHANGES_ITS_INPUT)
        after = _buffers(self._module)
        stamped = zip(before, stamps, _versions(before.values()), strict=True)
        changed = {s[0] for s, old, new in stamped if old != new or after[s] is not before[s]}
        # all buffers of such a module: not every operation says that it has changed one
        self._found = {slot: copy for slot, copy in copies.items() if slot[0] in changed}
        return output

    def again(self, forward: Callable[[], Any]) -> Any:
        """Run `forward` once more."""
        try:
            found = _other_buffers(self._module, self._found)
            with _marked_again(), found, RepeatDraws(self._draws):
                return forward()
        except Exception as error:
            add_note(error, "raised when the forward ran again for its backward")
            raise

    def around_backward(self) -> AbstractContextManager:
        """For the backward: a part that is recomputed in it must not draw random numbers."""
        return WatchDraws(_refuse) if any(self._draws) else nullcontext()

    def drew_what_others_draw(self) -> bool:
        """Whether random numbers came from a generator that all threads share."""
        shared = {torch.default_generator, *torch.cuda.default_generators}
        return any(shared & states.keys() for states in self._draws)


_thread = threading.local()


def runs_again() -> bool:
    """Whether this thread is in a second run: for a module that remembers what is no buffer."""
    return getattr(_thread, "again", False)


def watched_draws() -> int:
    """How many watch this thread's draws; a pipeline that recomputes watches all its stages."""
    return getattr(_thread, "watchers", 0)


def refuse_other_draws() -> None:
    """Before a draw from a generator of one's own: is this a second run that repeats no draws?"""
    if torch._C._current_graph_task_id() != -1 and not runs_again():  # a forward in a backward
        raise RuntimeError(DRAWS_OTHERS)


@contextmanager
def _marked_again() -> Iterator[None]:
    before, _thread.again = runs_again(), True
    try:
        yield
    finally:
        _thread.again = before


def _buffers(module: nn.Module) -> Buffers:
    owners = module.modules()
    return {(owner, name): held for owner in owners for name, held in owner._buffers.items()}


def _copies(buffers: Buffers) -> Buffers:
    """The same numbers; a tensor that is held twice stays one tensor."""
    copies = {held: held.clone() for held in buffers.values() if held is not None}
    return {slot: copies.get(held) for slot, held in buffers.items()}


@contextmanager
def _other_buffers(module: nn.Module, found: Buffers) -> Iterator[None]:
    """Within this, the buffers are copies, of those found first; the own ones stay untouched.

    Setting the numbers of these back would change what the second run's graph has saved.
    """
    own = _buffers(module)
    for slot, copy in _copies({**own, **found}).items():
        setattr(*slot, copy)
    try:
        yield
    finally:
        for slot, held in own.items():
            setattr(*slot, held)


class WatchDraws(TorchDispatchMode):
    """Calls `seen` after each operation that may draw random numbers.

    It is given the states that the generators that have moved had before.
    """

    def __init__(self, seen: Callable[[States], object]) -> None:
        super().__init__()
        self._seen = seen

    def __enter__(self) -> "WatchDraws":
        _thread.watchers = watched_draws() + 1
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        _thread.watchers -= 1
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if not _may_draw(func):
            return func(*args, **(kwargs or {}))
        with _one_draw:
            before = _states(args, kwargs or {})
            result = func(*args, **(kwargs or {}))
            contents = not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(result))
            moved = before.items() if contents else ()
            self._seen({g: old for g, old in moved if not torch.equal(g.get_state(), old)})
        return result


class RepeatDraws(TorchDispatchMode):
    """Draws what was recorded; afterwards the generators are in the state in which they were."""

    def __init__(self, draws: Sequence[States]) -> None:
        super().__init__()
        self._left = iter(draws)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        states = next(self._left, None) if _may_draw(func) else None
        if not states:
            return func(*args, **(kwargs or {}))
        with _one_draw, generators_at(states):
            return func(*args, **(kwargs or {}))


def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _states(args: tuple, kwargs: dict) -> States:
    """Of the generator that an operation is given, or of all that it may draw from."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    generators = given or [torch.default_generator, *torch.cuda.default_generators]
    return {generator: generator.get_state() for generator in generators}


@contextmanager
def generators_at(states: States) -> Iterator[None]:
    """Set generators to recorded states; put them back afterwards."""
    before = {generator: generator.get_state() for generator in states}
    for generator, state in states.items():
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in before.items():
            generator.set_state(state)


def _refuse(states: States) -> None:
    if states:
        raise RuntimeError(DRAWS_BACKWARD)


def _versions(values: Iterable[Any]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not say."""
    return [value._version if _says(value) else 0 for value in values]


def _says(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_inference()
