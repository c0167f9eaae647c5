"""A module whose parameters are sharded over the ranks, whole only where they are used (ZeRO 3).

Page `sharded_data_parallel`.

Source: Rajbhandari et al., 2020, arXiv:1910.02054; Zhao et al., 2023, arXiv:2304.11277;
`torch.distributed.fsdp.fully_shard` does it with DTensors.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Variable
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_map

from mpcourse.multiprocess.shards import (
    PartAverages,
    check_no_graph,
    check_same,
    check_whole,
    clip_parts,
    gather_parts,
    part_of,
    place_of,
)


class FullySharded(nn.Module):
    """Each rank keeps its part of every parameter and of every gradient.

    While a part of the module runs forward, the parameters that it reads are gathered; when it has
    returned they are dropped. What autograd would save of them is gathered again in the backward.
    Gradients are averaged and cut as they come. Every rank runs the same graph.

    The parameters are flat parts under their old names: give `parameters()` to any optimizer that
    treats every number alike. Outside of a forward, reading one gives the part.

    To clip, call this class's `clip_grad_norm_`: torch's own takes the norm of this rank's parts,
    so each rank would scale by a factor of its own, as a `GradScaler` would skip steps of its own.
    `state_dict()`, called on every rank, has whole weights, and `load_state_dict` takes them; an
    optimizer's has this rank's part: save it for each rank.

    Args:
        module: Any; its weights and buffers become those of rank 0. It is changed in place.
        compute_dtype: Of the gathered parameters and of the inputs, such as torch.bfloat16; parts
            and their gradients keep the parameters' own.
        group: The ranks; the default group for None.

    Attributes:
        module: The module.

    Raises:
        ValueError: The module has no parameters, or is sharded already; `compute_dtype` is no
            floating-point type; the ranks' parameters differ: the message names the first one.
            Nothing has changed.
        RuntimeError: There is no process group.
    """

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        place_of(group)
        named = dict(module.named_parameters())
        if not named:
            raise ValueError(f"{type(module).__name__} has no parameters to shard")
        if compute_dtype is not None and not compute_dtype.is_floating_point:
            raise ValueError(f"compute_dtype is a floating-point type; got {compute_dtype}")
        check_whole(named.values())
        lines = [
            f"{name} {tuple(p.shape)} {p.dtype} requires_grad={p.requires_grad}"
            for name, p in named.items()
        ]
        check_same(lines, next(iter(named.values())).device, group)
        self.module, self.compute_dtype, self._group = module, compute_dtype, group
        self._averages = PartAverages(group)
        self._shapes: dict[Tensor, torch.Size] = {}
        self._in_use: list[dict[Tensor, Tensor]] = []  # gathered, by the modules that now run
        self._shard_parameters()

    @torch.no_grad()
    def _shard_parameters(self) -> None:
        parts: dict[Tensor, nn.Parameter] = {}  # a tied parameter has one part
        for buffer in self.module.buffers():
            buffer.copy_(self._of_rank_0(buffer))
        for owner in list(self.module.modules()):
            for name, parameter in owner._parameters.items():
                if parameter is None:
                    continue
                if parameter not in parts:
                    flat = self._of_rank_0(parameter).reshape(-1)
                    part = part_of(flat, *place_of(self._group)).clone()
                    parts[parameter] = nn.Parameter(part, parameter.requires_grad)
                    parts[parameter].is_part = True
                    self._shapes[parts[parameter]] = parameter.shape
                owner._parameters[name] = parts[parameter]
            _read_through(owner, self._whole)
            owner.register_forward_pre_hook(self._enter)
            owner.register_forward_hook(self._leave, always_call=True)
            owner.register_state_dict_post_hook(partial(self._save))  # torch marks what it gets
            owner.register_load_state_dict_pre_hook(self._load)

    def _of_rank_0(self, tensor: Tensor) -> Tensor:
        sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        distributed.broadcast(sent, group=self._group, group_src=0)
        return sent

    def _enter(self, *_: Any) -> None:
        self._in_use.append({})

    def _leave(self, *_: Any) -> None:
        if self._in_use:
            self._in_use.pop()

    def _whole(self, part: Tensor) -> Tensor:
        """What a module reads under a parameter's name."""
        if not self._in_use:
            return part  # nobody computes: printing a module must send no messages
        for gathered in self._in_use:
            if part in gathered:
                return gathered[part]
        whole = self._in_use[-1][part] = _Gather.apply(part, self)
        return whole

    def gather(self, part: Tensor) -> Tensor:
        """The whole tensor of a part, in the dtype of computing; every rank calls it."""
        dtype = self.compute_dtype if part.is_floating_point() else None
        return self._joined(part.detach().to(dtype or part.dtype), self._shapes[part])

    def _joined(self, numbers: Tensor, shape: torch.Size) -> Tensor:
        return gather_parts(numbers, shape.numel(), self._group).view(shape)

    def reduce(self, part: Tensor, gradient: Tensor) -> None:
        """Begin to average a whole gradient and to add this rank's part of it to `part.grad`."""

        def add(average: Tensor) -> None:
            part.grad = average if part.grad is None else part.grad.add_(average)

        check_no_graph(gradient)
        if not len(self._averages):
            Variable._execution_engine.queue_callback(self.wait)  # at the end of this backward
        self._averages.send(gradient.to_dense().to(part.dtype).reshape(-1), add)

    def _pack(self, saved: Tensor) -> Any:
        storage = saved.untyped_storage()._cdata
        for gathered in self._in_use:
            for part, whole in gathered.items():
                if whole.untyped_storage()._cdata == storage:
                    view = (saved.size(), saved.stride(), saved.storage_offset())
                    return part, part._version, view
        return saved

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        part, version, view = packed
        if part._version != version:
            raise RuntimeError("a parameter has changed between its forward and its backward")
        return self.gather(part).as_strided(*view)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module.

        Raises:
            RuntimeError: The last backward was not finished; a parameter was put in after the
                others were sharded, or has a hook.
        """
        if len(self._averages):
            raise RuntimeError("the last backward has failed: call wait(), and drop the gradients")
        for name, part in self.module.named_parameters():
            if part not in self._shapes:
                raise RuntimeError(f"{name} was put in after the others were sharded: it is whole")
            if part._backward_hooks or part._post_accumulate_grad_hooks:
                raise RuntimeError(f"{name} has a hook, which would not be called: remove it")
        self._in_use.clear()
        if self.compute_dtype is not None:
            args, kwargs = tree_map(self._cast, (args, kwargs))
        with saved_tensors_hooks(self._pack, self._unpack):
            return self.module(*args, **kwargs)

    def _cast(self, value: Any) -> Any:
        is_real = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.compute_dtype) if is_real else value

    def wait(self) -> None:
        """Wait until all gradients have arrived in `.grad`; a backward ends with it, too."""
        self._averages.settle()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients to a norm of at most `max_norm`; return what it was.

        Over all parameters and ranks: every rank calls it, after the backward.
        """
        gradients = [part.grad for part in self.parameters() if part.grad is not None]
        return clip_parts(gradients, max_norm, self._group)

    def full_parameters(self) -> dict[str, Tensor]:
        """Name -> the whole tensor, in the parameters' dtype; every rank calls it."""
        return {
            name: self._joined(part.detach(), self._shapes[part])
            for name, part in self.module.named_parameters()
        }

    def _save(self, owner: nn.Module, found: dict[str, Any], prefix: str, _: Any) -> None:
        """Put whole tensors into a module's state dict."""
        for name, part in owner._parameters.items():
            if part is not None:
                found[prefix + name] = self._joined(part.detach(), self._shapes[part])

    def _load(
        self, owner: nn.Module, given: dict[str, Any], prefix: str, options: Any, *_: Any
    ) -> None:
        """Cut the whole tensors that a module is to load."""
        if options.get("assign_to_params_buffers"):
            raise ValueError("load_state_dict(assign=True) would put whole parameters in")
        for name, part in owner._parameters.items():
            key = prefix + name
            if part is None or key not in given:
                continue
            if given[key].shape != self._shapes[part]:
                raise ValueError(
                    f"{key} has shape {tuple(given[key].shape)}; the whole parameter has "
                    f"{tuple(self._shapes[part])}"
                )
            given[key] = part_of(given[key].reshape(-1), *place_of(self._group))


class _Gather(torch.autograd.Function):
    """Forward, an all-gather of the parts; backward, a reduce-scatter of the whole's gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, sharded: FullySharded) -> Tensor:
        ctx.part, ctx.sharded = part, sharded
        return sharded.gather(part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        ctx.sharded.reduce(ctx.part, gradient)
        return None, None  # the part's gradient is still in flight


def _read_through(owner: nn.Module, whole: Callable[[Tensor], Tensor]) -> None:
    """Let a module's own parameters be read whole: its class gets a property for each."""
    names = [name for name, parameter in owner._parameters.items() if parameter is not None]
    if not names:
        return
    fields: dict[str, Any] = {
        name: property(lambda self, name=name: whole(self._parameters[name])) for name in names
    }
    if isinstance(owner, nn.RNNBase):  # it keeps a list of its parameters
        owner.__dict__.pop("_flat_weights", None)
        fields["_flat_weights"] = property(
            lambda self: [getattr(self, name) for name in self._flat_weights_names],
            lambda self, value: None,  # its own list would hold whole ones
        )
    fields["__deepcopy__"] = _refuse_copy
    owner.__class__ = type(owner.__class__.__name__, (owner.__class__,), fields)


def _refuse_copy(*_: Any) -> NoReturn:
    raise TypeError("a module that is sharded is not copied: copy it before, and shard both")
