"""Try a placement on pretended GPUs: what crosses from one to another, what fails.

Page `split_a_model`.
"""

import inspect
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcourse.splitting.pretended import DevicesMet, Pretence, gpu_name, pretended_gpus

COPY, COPY_INTO = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Transfer:
    """One tensor that was copied from one device to another.

    A place is "cpu" for the host, or the name of a GPU. `backward` says whether a backward pass
    copied it: a gradient on its way back.
    """

    source: str
    target: str
    shape: tuple[int, ...]
    nbytes: int
    backward: bool

    @property
    def between_gpus(self) -> bool:
        """Whether it went from one GPU to another, not from or to the host."""
        return "cpu" not in (self.source, self.target)

    def __str__(self) -> str:
        phase = "backward" if self.backward else "forward"
        way = f"{self.source} -> {self.target}"
        return f"{phase:<9} {way:<16} {self.shape!s:<18} {self.nbytes:>9,} bytes"


@dataclass(frozen=True)
class Placement:
    """What came of a program on pretended GPUs; printed, a table.

    Attributes:
        transfers: What was copied between devices, in order, without what `module.to` moved.
        parameter_bytes: Device -> bytes of the parameters that were computed with there.
        error: torch's words when tensors on two devices met in one operation, else None.
        line: The line of the program where they met.
    """

    transfers: tuple[Transfer, ...]
    parameter_bytes: dict[str, int]
    error: str | None = None
    line: str | None = None

    def __str__(self) -> str:
        if self.error:
            return f"at: {self.line}\nRuntimeError: {self.error}"
        sizes = [f"{nbytes:,} bytes on {name}" for name, nbytes in self.parameter_bytes.items()]
        return "\n".join([*map(str, self.transfers), f"parameters: {', '.join(sizes) or 'none'}"])


def try_placement(program: Callable[..., Any], *arguments: Any) -> Placement:
    """Call `program(*arguments)` on two pretended GPUs, and note what crosses from one to another.

    The program moves tensors and modules itself, by `.to("cuda:1")`, `.cuda(1)`, `device=` or
    `with torch.device(…)`. It may call backward.

    Args:
        program: A function that builds or takes a model and computes with it.
        arguments: Tensors and modules on the CPU, or nests of them. The program gets twins without
            numbers; the originals stay as they are.

    Raises:
        RuntimeError: The program asked for a GPU that is not pretended, or for the numbers in a
            tensor; or this torch has no fake tensors.
        Exception: Whatever else the program raised, except for tensors on two devices: that is
            what the `Placement` tells.
    """
    error = line = None
    try:
        with pretended_gpus() as pretence, _Recorder(pretence) as recorder:
            program(*pretence.twin(list(arguments)))
    except DevicesMet as problem:
        error, line = str(problem), _line_of(program, problem)
    return Placement(tuple(recorder.transfers), recorder.parameter_bytes(), error, line)


def works_on_a_gpu(program: Callable[..., Any], *arguments: Any) -> bool:
    """Whether no tensor of the host meets those of a GPU if all arguments lie there.

    Also True where the program asks for numbers: pretended tensors have none.
    """

    def there(*given: Any) -> None:
        program(*(each.to("cuda:0") for each in given))

    with suppress(RuntimeError):
        return try_placement(there, *arguments).error is None
    return True


INDEXING = {  # a GPU's tensor takes an index from the host, but not the other way round
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
}


class _Recorder(TorchDispatchMode):
    """Notes every copy from one device to another, and every parameter that is computed with."""

    def __init__(self, pretence: Pretence) -> None:
        super().__init__()
        self.pretence = pretence
        self.transfers: list[Transfer] = []
        self.used: dict[int, nn.Parameter] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.pretence.moving:
            return result
        if func is COPY:
            self._note(args[0], result)
        elif func is COPY_INTO:
            self._note(args[1], args[0])
        else:
            generator = (kwargs or {}).get("generator")
            if generator is not None and generator.device != result.device:
                raise RuntimeError(f"found two devices, {generator.device} and {result.device}")
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            gpus = {tensor.device for tensor in tensors} - {torch.device("cpu")}
            if len(gpus) > 1:  # torch lets tensors of 0 dimensions pass here, as if on the host
                raise RuntimeError("found two devices, {} and {}".format(*gpus))
            if func in INDEXING and args[0].device == torch.device("cpu") and gpus:
                raise RuntimeError(f"found two devices, cpu and {gpus.pop()}")  # of an index
            if not func._schema.is_mutable:  # what only fills a parameter does not compute with it
                self.used |= {id(t): t for t in tensors if isinstance(t, nn.Parameter)}
        return result

    def _note(self, source: Tensor, target: Tensor) -> None:
        if source.device != target.device:
            backward = torch._C._current_graph_task_id() != -1
            names = gpu_name(source.device), gpu_name(target.device)
            shape, nbytes = tuple(source.shape), source.numel() * source.element_size()
            self.transfers.append(Transfer(*names, shape, nbytes, backward))

    def parameter_bytes(self) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for parameter in self.used.values():
            sizes[gpu_name(parameter.device)] += parameter.numel() * parameter.element_size()
        return dict(sorted(sizes.items()))


def _line_of(program: Callable, problem: BaseException) -> str | None:
    """The last line of the program's own file that led to the error."""
    code = getattr(inspect.unwrap(program), "__code__", None)
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame.line for frame in frames if code and frame.filename == code.co_filename]
    return own[-1] if own else None
