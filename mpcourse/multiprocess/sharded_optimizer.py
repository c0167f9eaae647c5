"""An optimizer whose state is sharded over the ranks (ZeRO, stages 1 and 2).

Page `does_it_fit`.

Source: Rajbhandari et al., 2020, arXiv:1910.02054; `torch.distributed.optim` has
`ZeroRedundancyOptimizer`, which shards by whole parameters.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from mpcourse.multiprocess.shards import (
    PartAverages,
    check_same,
    flat,
    gather_parts,
    part_length,
    part_of,
    place_of,
)

ALONE_BYTES = 2**18  # from here a parameter is broadcast by itself
# Optimizers whose update of one number depends on others of its parameter.
BY_PARAMETER = tuple(
    getattr(torch.optim, name)
    for name in ("Adafactor", "LBFGS", "Muon", "SparseAdam")
    if hasattr(torch.optim, name)
)


class ShardedOptimizer(Optimizer):
    """Each rank keeps the state of its part of every parameter, steps it, and broadcasts it.

    Gradients have to be averaged before `step`, as DistributedDataParallel does; or this does it,
    by parts, after `shard_gradients()`. Every rank makes the same calls. The state is that of
    `optimizer_class` on parts, and its bytes are the unsharded ones over the number of ranks.

    Args:
        params: As for any optimizer; the same on all ranks.
        optimizer_class: One that treats every number alike, such as SGD or AdamW.
        group: The ranks; the default group for None.
        defaults: The options of `optimizer_class`.

    Raises:
        TypeError: `optimizer_class` is no optimizer.
        ValueError: It looks at whole parameters, or the ranks' parameters differ; the message
            names the first one.
        RuntimeError: There is no process group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        group: ProcessGroup | None = None,
        **defaults: Any,
    ) -> None:
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            raise TypeError(f"optimizer_class has to be an Optimizer; got {optimizer_class!r}")
        if issubclass(optimizer_class, BY_PARAMETER):
            raise ValueError(
                f"{optimizer_class.__name__} looks at whole parameters: it cannot step parts"
            )
        self._rank, self._ranks = place_of(group)
        self._group, self._class, self._options = group, optimizer_class, defaults
        self._inner: Optimizer | None = None
        self._parts: dict[Tensor, Tensor] = {}
        self._averages: PartAverages | None = None
        super().__init__(params, defaults)
        self.defaults, self.state = self._inner.defaults, self._inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take more parameters; every rank does."""
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            described = [f"{tuple(p.shape)} {p.stride()} {p.dtype}" for p in added["params"]]
            check_same(described, added["params"][0].device, self._group)
            parts = {p: part_of(flat(p), self._rank, self._ranks) for p in added["params"]}
            local = {**added, "params": list(parts.values())}
            if self._inner is None:
                self._inner = self._class([local], **self._options)
            else:
                self._inner.add_param_group(local)
        except Exception:
            self.param_groups.pop()
            raise
        self._parts.update(parts)
        added.update(_without_parameters(self._inner.param_groups[-1]))
        if self._averages is not None:
            self._watch(added["params"])

    def shard_gradients(self) -> None:
        """From now on average gradients here, and keep this rank's part of them alone (stage 2).

        As soon as the backward has a gradient, it is sent and `.grad` is None again; several
        backwards add up. Do not average them elsewhere as well.
        """
        if self._averages is None:
            self._averages = PartAverages(self._group)
            self._watch(self._parts)

    def _watch(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter: Tensor) -> None:
        part = self._parts[parameter]

        def add(average: Tensor) -> None:
            part.grad = average if part.grad is None else part.grad.add_(average)

        gradient = _laid_out_as(parameter, parameter.grad)
        parameter.grad = None
        self._averages.send(gradient, add)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, the sharded ones too."""
        super().zero_grad(set_to_none)
        if self._averages is not None:
            self._averages.settle()
        for part in self._parts.values():
            part.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Step this rank's parts; after it all ranks have all new weights."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._averages is not None:
            self._averages.settle()
        for group, local in zip(self.param_groups, self._inner.param_groups, strict=True):
            local.update(_without_parameters(group))  # a scheduler may have changed the rate
        for parameter, part in self._parts.items():
            if parameter.grad is not None:
                gradient = _laid_out_as(parameter, parameter.grad)
                part.grad = part_of(gradient, self._rank, self._ranks)
        self._inner.step()
        if self._averages is None:
            for part in self._parts.values():
                part.grad = None  # a view of the whole one, which the caller may drop
        self._broadcast_parts()
        return loss

    def _broadcast_parts(self) -> None:
        """Each rank sends its parts: large ones one by one, small ones of a dtype together.

        By broadcasts, because gloo takes several times as long for an all-gather.
        """
        requests, together = [], defaultdict(list)
        for parameter in self._parts:
            if parameter.nbytes < ALONE_BYTES:
                together[parameter.device, parameter.dtype].append(parameter)
                continue
            for rank in range(self._ranks):
                part = part_of(flat(parameter), rank, self._ranks)
                requests.append(self._broadcast(part, rank))
        for parameters in together.values():
            self._broadcast_together(parameters)
        for request in requests:
            request.wait()

    def _broadcast_together(self, parameters: list[Tensor]) -> None:
        lengths = [part_length(parameter.numel(), self._ranks) for parameter in parameters]
        rows = parameters[0].new_empty(self._ranks, sum(lengths))
        for parameter, piece in zip(parameters, rows[self._rank].split(lengths), strict=True):
            part = self._parts[parameter]
            piece[: part.numel()] = part
        requests = [self._broadcast(row, rank) for rank, row in enumerate(rows)]
        for rank, request in enumerate(requests):
            request.wait()
            if rank == self._rank:
                continue
            for parameter, piece in zip(parameters, rows[rank].split(lengths), strict=True):
                part = part_of(flat(parameter), rank, self._ranks)
                part.copy_(piece[: part.numel()])

    def _broadcast(self, numbers: Tensor, rank: int) -> distributed.Work:
        return distributed.broadcast(numbers, group=self._group, group_src=rank, async_op=True)

    def state_dict(self) -> dict[str, Any]:
        """What the unsharded optimizer would give; every rank calls it and gets the whole."""
        found = self._inner.state_dict()
        whole = {
            index: {name: self._join(name, value, parameter) for name, value in state.items()}
            for index, parameter in enumerate(self._parts)
            if (state := found["state"].get(index)) is not None
        }
        return {**found, "state": whole}

    def _join(self, name: str, value: Any, parameter: Tensor) -> Any:
        if not _is_cut(name, value):
            return value
        joined = gather_parts(value, parameter.numel(), self._group)
        return joined.as_strided(parameter.shape, parameter.stride()).clone()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep this rank's part of what an unsharded optimizer of these parameters saved.

        Raises:
            ValueError: The groups, or the shape of a state, do not fit.
        """
        parameters = dict(enumerate(self._parts))
        state = {}
        for index, values in state_dict["state"].items():
            state[index] = {}
            for name, value in values.items():
                if _is_cut(name, value):
                    if value.shape != parameters[index].shape:
                        raise ValueError(
                            f"{name} of parameter {index} has shape {tuple(value.shape)}; the "
                            f"parameter has {tuple(parameters[index].shape)}"
                        )
                    numbers = _laid_out_as(parameters[index], value)
                    value = part_of(numbers, self._rank, self._ranks).clone()
                state[index][name] = value
        self._inner.load_state_dict({**state_dict, "state": state})
        self.state = self._inner.state
        for group, local in zip(self.param_groups, self._inner.param_groups, strict=True):
            group.update(_without_parameters(local))


def _is_cut(name: str, value: Any) -> bool:
    """Whether a state has the shape of its parameter; the count of steps has not."""
    return isinstance(value, Tensor) and name != "step"


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """The value, flat, in the memory order of the parameter."""
    if value.stride() != parameter.stride():
        value = torch.empty_like(parameter).copy_(value)
    return flat(value)


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
