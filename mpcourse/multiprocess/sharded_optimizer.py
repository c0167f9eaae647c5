"""An optimizer whose state is sharded over the ranks (ZeRO, stages 1 and 2).

Page `sharded_data_parallel`.

Source: Rajbhandari et al., 2020, arXiv:1910.02054; `torch.distributed.optim` has
`ZeroRedundancyOptimizer`, which shards by whole parameters.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from mpcourse.multiprocess.shards import (
    GradientHooks,
    PartAverages,
    check_no_graph,
    check_same,
    check_whole,
    clip_parts,
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
# States that are one number for a whole parameter; a parameter may have one number itself.
ONE_NUMBER = ("step", "mu_product", "eta", "mu")
_hooks = GradientHooks()


class ShardedOptimizer(Optimizer):
    """Each rank keeps the state of its part of every parameter, steps it, and broadcasts it.

    Gradients have to be averaged before `step`, as DistributedDataParallel does; or this does it,
    by parts, after `shard_gradients()`. Every rank makes the same calls. The state is that of
    `optimizer_class` on parts, and its bytes are the unsharded ones over the number of ranks.

    To clip, call this class's `clip_grad_norm_`: after `shard_gradients()`, torch's own finds no
    gradient and clips nothing. `state_dict()` is called on every rank, also if one alone writes.

    Args:
        params: As for any optimizer; the same on all ranks.
        optimizer_class: One that treats every number alike, such as SGD or AdamW.
        group: The ranks; the default group for None.
        defaults: The options of `optimizer_class`.

    Raises:
        TypeError: `optimizer_class` is no optimizer.
        ValueError: It looks at whole parameters, or the parameters are parts already, or those of
            the ranks differ; the message names the first one.
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
        self._averages: PartAverages | None = None
        self._gradients: dict[Tensor, Tensor] = {}  # of this rank's parts, after shard_gradients()
        super().__init__(params, defaults)
        self.defaults = self._inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take more parameters; every rank does."""
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        parameters = added["params"]
        try:
            self._check(added)
            local = {**added, "params": [self._part(parameter) for parameter in parameters]}
            if self._inner is None:
                self._inner = self._class([local], **self._options)
            else:
                self._inner.add_param_group(local)
        except Exception:
            self.param_groups.pop()
            raise
        added.update(_without_parameters(self._inner.param_groups[-1]))
        for parameter, part in zip(parameters, local["params"], strict=True):
            if part in self._inner.state:  # Adagrad has one from the start
                self.state[parameter] = self._inner.state[part]
            _hooks.remove(parameter)  # an earlier optimizer's, which would take the gradient away
            if self._averages is not None:
                _hooks.put(parameter, self._send)

    def _check(self, group: dict[str, Any]) -> None:
        parameters = group["params"]
        if not parameters or len(set(parameters)) < len(parameters):
            raise ValueError("a group of parameters is empty, or has a parameter twice")
        if group.get("differentiable"):
            raise ValueError("differentiable=True: autograd does not see the messages of a step")
        check_whole(parameters)
        lines = [
            f"{tuple(p.shape)} {p.stride()} {p.dtype} requires_grad={p.requires_grad}"
            for p in parameters
        ]
        check_same(lines, parameters[0].device, self._group)

    def _part(self, parameter: Tensor) -> Tensor:
        """This rank's part, a view: to step it is to change the parameter."""
        return part_of(flat(parameter), self._rank, self._ranks)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def shard_gradients(self) -> None:
        """From now on average gradients here, and keep this rank's part of them alone (stage 2).

        As soon as the backward has a gradient, it is sent and `.grad` is None again, for every
        other optimizer too; several backwards add up. Do not average them elsewhere as well.
        """
        if self._averages is None:
            self._averages = PartAverages(self._group)
            for parameter in self._parameters():
                _hooks.put(parameter, self._send)

    def _send(self, parameter: Tensor) -> None:
        def add(average: Tensor) -> None:
            if parameter in self._gradients:
                average += self._gradients[parameter]
            self._gradients[parameter] = average

        check_no_graph(parameter.grad)
        gradient = _laid_out_as(parameter, parameter.grad)
        parameter.grad = None
        self._averages.send(gradient, add)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, the sharded ones too, or make them zero."""
        super().zero_grad(set_to_none)
        if self._averages is not None:
            self._averages.settle()
        if set_to_none:
            self._gradients.clear()
        for gradient in self._gradients.values():
            gradient.zero_()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients to a norm of at most `max_norm`; return what it was.

        Over all parameters and ranks: every rank calls it, after the backward.
        """
        if self._averages is None:
            return nn.utils.clip_grad_norm_(self._parameters(), max_norm)
        self._averages.settle()
        return clip_parts(self._gradients.values(), max_norm, self._group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Step this rank's parts; after it all ranks have all new weights.

        Raises:
            RuntimeError: After `shard_gradients()`, there is a gradient that no backward has
                brought, or another optimizer has been given the parameters.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._averages is not None:
            self._averages.settle()
            self._check_gradients()
        with self._on_parts() as parts:
            for parameter, part in parts.items():
                part.grad = self._gradients.get(parameter)
                if parameter.grad is not None:
                    gradient = _laid_out_as(parameter, parameter.grad)
                    part.grad = part_of(gradient, self._rank, self._ranks)
            self._inner.step()
        self._broadcast_parts(parts)
        return loss

    def _check_gradients(self) -> None:
        for index, parameter in enumerate(self._parameters()):
            if parameter.grad is not None:
                raise RuntimeError(
                    f"parameter {index} has a gradient that was not averaged: after "
                    "shard_gradients() all have to come from a backward"
                )
            if parameter.requires_grad and _hooks.owner(parameter) is not self:
                raise RuntimeError(
                    f"the gradients of parameter {index} do not come here: a later optimizer has "
                    "got it, or it is not from add_param_group"
                )

    @contextmanager
    def _on_parts(self) -> Iterator[dict[Tensor, Tensor]]:
        """Lend the inner optimizer the parts, with the options and the state of now.

        They are read anew each time: a scheduler has changed the rate, a module was moved.
        """
        parts = {parameter: self._part(parameter) for parameter in self._parameters()}
        wholes = {part: parameter for parameter, part in parts.items()}
        inner = self._inner
        inner.param_groups = [
            {**group, "params": [parts[parameter] for parameter in group["params"]]}
            for group in self.param_groups
        ]
        inner.state = _renamed(self.state, parts)
        yield parts
        self.state = _renamed(inner.state, wholes)
        for group, local in zip(self.param_groups, inner.param_groups, strict=True):
            parameters = group["params"]
            group.clear()
            group.update(local, params=parameters)
        inner.param_groups, inner.state = [], defaultdict(dict)  # parts would hold the gradients

    def _broadcast_parts(self, parts: dict[Tensor, Tensor]) -> None:
        """Each rank sends its parts: large ones one by one, small ones of a dtype together.

        By broadcasts, because gloo takes several times as long for an all-gather.
        """
        requests, together = [], defaultdict(list)
        for parameter in parts:
            if parameter.nbytes < ALONE_BYTES:
                together[parameter.device, parameter.dtype].append(parameter)
                continue
            for rank in range(self._ranks):
                part = part_of(flat(parameter), rank, self._ranks)
                requests.append(self._broadcast(part, rank))
        for parameters in together.values():
            self._broadcast_together(parameters, parts)
        for request in requests:
            request.wait()

    def _broadcast_together(self, parameters: list[Tensor], parts: dict[Tensor, Tensor]) -> None:
        lengths = [part_length(parameter.numel(), self._ranks) for parameter in parameters]
        rows = parameters[0].new_empty(self._ranks, sum(lengths))
        for parameter, piece in zip(parameters, rows[self._rank].split(lengths), strict=True):
            part = parts[parameter]
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
        with self._on_parts() as parts:
            found = self._inner.state_dict()
        whole = {
            index: {name: self._join(name, value, parameter) for name, value in state.items()}
            for index, parameter in enumerate(parts)
            if (state := found["state"].get(index)) is not None
        }
        return {**found, "state": {**found["state"], **whole}}

    def _join(self, name: str, value: Any, parameter: Tensor) -> Any:
        if not _is_cut(name, value):
            return value
        if value.dim() != 1:
            raise ValueError(f"{self._class.__name__} cannot be sharded: its {name} is no part")
        joined = gather_parts(value, parameter.numel(), self._group)
        return joined.as_strided(parameter.shape, parameter.stride()).clone()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep this rank's part of what an unsharded optimizer of these parameters saved.

        Raises:
            ValueError: The groups, or the shape of a state, do not fit. Nothing has changed.
        """
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        state = dict(state_dict["state"])
        for index, parameter in zip(saved, self._parameters(), strict=False):
            if index in state:
                state[index] = {
                    name: self._cut(name, value, index, parameter)
                    for name, value in state[index].items()
                }
        with self._on_parts():
            self._inner.load_state_dict({**state_dict, "state": state})  # compares the groups

    def _cut(self, name: str, value: Any, index: int, parameter: Tensor) -> Any:
        if not _is_cut(name, value):
            return value
        if value.shape != parameter.shape:
            raise ValueError(
                f"{name} of parameter {index} has shape {tuple(value.shape)}; the parameter has "
                f"{tuple(parameter.shape)}"
            )
        return part_of(_laid_out_as(parameter, value), self._rank, self._ranks).clone()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            "a ShardedOptimizer is not copied or pickled, and calls no hooks when it is saved or "
            "loaded: change what state_dict() gives"
        )

    __getstate__ = _refuse
    register_state_dict_pre_hook = register_state_dict_post_hook = _refuse
    register_load_state_dict_pre_hook = register_load_state_dict_post_hook = _refuse


def _is_cut(name: str, value: Any) -> bool:
    """Whether a state has the shape of its parameter."""
    return isinstance(value, Tensor) and name not in ONE_NUMBER


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """The value, flat, in the memory order of the parameter."""
    value = value.to_dense()  # an embedding may have sparse gradients
    if value.stride() != parameter.stride():
        value = torch.empty_like(parameter).copy_(value)
    return flat(value)


def _renamed(state: dict[Any, Any], names: dict[Any, Any]) -> dict[Any, Any]:
    return defaultdict(dict, {names.get(key, key): values for key, values in state.items()})


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
