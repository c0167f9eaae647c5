"""Linear layers cut over ranks: by columns of y = xW, or by its rows (page `cut_inside_a_layer`).

`nn.Linear` stores W transposed, (out, in): a cut by columns keeps some of the stored rows. Source:
Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from mpcourse.memory.checkpointing import refuse_other_draws
from mpcourse.transformer.tensor_parallel_functions import (
    copy_to_ranks,
    rank_of,
    reduce_from_ranks,
    size_of,
)


def own_part(size: int, what: str, group: ProcessGroup | None = None) -> slice:
    """Which of `size` things in a row this rank holds: an equal share each, or a ValueError."""
    ranks, rank = size_of(group), rank_of(group)
    if size % ranks:
        raise ValueError(f"{ranks} ranks do not divide {size} {what}: each takes the same number")
    return slice(rank * size // ranks, (rank + 1) * size // ranks)


def check_plain(whole: nn.Module, kind: type[nn.Module]) -> None:
    """Refuse to cut a module that does more than its class: the part would do without it."""
    hooks = [whole._forward_pre_hooks, whole._forward_hooks]
    hooks += [whole._backward_pre_hooks, whole._backward_hooks]
    hooks += [has_hooks(parameter) for parameter in whole.parameters(recurse=False)]
    if type(whole) is not kind or any(hooks):
        found = type(whole).__name__ + (" with hooks" if any(hooks) else "")
        raise ValueError(f"only a plain {kind.__name__} without hooks can be cut; got {found}")


def has_hooks(parameter: nn.Parameter) -> bool:
    """Whether something acts on its gradient; a copy has none of it."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def from_rank_0(whole: nn.Module, group: ProcessGroup | None) -> nn.Module:
    """Send the first rank's parameters to all: what each has drawn makes no one layer."""
    if size_of(group) > 1:
        for parameter in whole.parameters():
            distributed.broadcast(parameter.data, group=group, group_src=0)
    return whole


def taken(whole: nn.Parameter, *part: slice) -> nn.Parameter:
    """A copy of a part of a parameter, frozen if that is."""
    return nn.Parameter(whole.detach()[part].clone(), whole.requires_grad)


def refuse_reset(part: nn.Module) -> None:
    """Stands in for `reset_parameters`: what each rank draws by itself makes no one layer."""
    raise RuntimeError(f"a {type(part).__name__} is a part: reset the whole layer, then cut it")


class _ParallelLinear(nn.Linear):
    """A linear layer of which each rank holds its share of the outputs or of the inputs."""

    cut_dim: int  # of the weight, (out, in)
    cut_what: str
    reset_parameters = refuse_reset

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: ProcessGroup | None = None,
        **options: bool,
    ) -> None:
        own_part((out_features, in_features)[self.cut_dim], self.cut_what, group)
        whole = from_rank_0(nn.Linear(in_features, out_features, bias), group)
        self._take(whole, group, **options)

    @classmethod
    def of(
        cls, whole: nn.Linear, group: ProcessGroup | None = None, **options: bool
    ) -> "_ParallelLinear":
        """This rank's part of a layer that is the same on all ranks; it stays as it is."""
        cut = cls.__new__(cls)
        cut._take(whole, group, **options)
        return cut

    def _take(
        self, whole: nn.Linear, group: ProcessGroup | None, *, sequence: bool = False
    ) -> None:
        check_plain(whole, nn.Linear)
        part = own_part(whole.weight.shape[self.cut_dim], self.cut_what, group)
        rows, columns = (part, slice(None)) if self.cut_dim == 0 else (slice(None), part)
        nn.Module.__init__(self)  # nn.Linear's would draw another layer
        self.group, self.sequence, self.training = group, sequence, whole.training
        self.weight = taken(whole.weight, rows, columns)
        self.out_features, self.in_features = self.weight.shape
        self.register_parameter("bias", None if whole.bias is None else taken(whole.bias, rows))


class ColumnParallelLinear(_ParallelLinear):
    """Some of the outputs of a linear layer: (..., in) -> (..., out / n) on each of n ranks.

    Args:
        in_features: Of the whole layer; each rank takes the whole input.
        out_features: Of the whole layer, a multiple of n.
        bias: Whether it has one; it is cut like the outputs.
        group: The ranks; None is all of them.
        sequence: Whether the input's tokens come cut over the ranks, (..., T / n, in).
        enters: Whether the input is copied to the ranks here. Layers that share one do it once.

    The first rank draws the layer and sends it, so it has to be where the group sends from (for
    NCCL on a GPU).
    """

    cut_dim, cut_what = 0, "outputs"

    def _take(self, *args: Any, enters: bool = True, **options: Any) -> None:
        super()._take(*args, **options)
        self.enters = enters

    def forward(self, x: Tensor) -> Tensor:
        """Compute this rank's outputs; the gradient of the input is summed over the ranks."""
        if self.enters:
            x = copy_to_ranks(x, self.group, sequence=self.sequence)
        return super().forward(x)


class RowParallelLinear(_ParallelLinear):
    """A linear layer that takes some of its inputs: (..., in / n) on each rank -> (..., out).

    Its arguments are those of `ColumnParallelLinear`, but n divides `in_features`, and each rank
    gets the whole output, or with `sequence` that of its tokens, (..., T / n, out). The bias is
    whole on each rank and added once, after the sum.
    """

    cut_dim, cut_what = 1, "inputs"

    def forward(self, x: Tensor) -> Tensor:
        """Add up what the ranks compute from their inputs, then add the bias."""
        y = nn.functional.linear(x, self.weight)
        y = reduce_from_ranks(y, self.group, sequence=self.sequence)
        return y if self.bias is None else y + self.bias.to(y.dtype)  # another under autocast


class ParallelDropout(nn.Dropout):
    """Dropout that draws the same on all ranks, or with `sequence` something else on each.

    The seed is the same number on all ranks, and another one for each layer. It draws on the host,
    so that it can be moved to another device and saved with the draws it has come to.
    """

    def __init__(
        self, p: float, group: ProcessGroup | None = None, *, sequence: bool = False, seed: int = 0
    ) -> None:
        super().__init__(p)
        own = seed * size_of(group) + (rank_of(group) if sequence else 0)
        self.generator = torch.Generator("cpu").manual_seed(own)

    def forward(self, x: Tensor) -> Tensor:
        """Drop, in training, and scale what stays."""
        if not self.training or self.p == 0:
            return x
        refuse_other_draws()
        stays = torch.rand(x.shape, generator=self.generator, device="cpu") >= self.p
        return x * stays.to(x.device) / (1 - self.p or 1)  # p = 1: all zeros

    def get_extra_state(self) -> Tensor:
        """The generator's state, for the `state_dict`."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Draw on where the saved layer was."""
        self.generator.set_state(state)
