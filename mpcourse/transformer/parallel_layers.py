"""Linear layers cut over ranks: by columns of y = xW, or by its rows (page `cut_inside_a_layer`).

`nn.Linear` stores W transposed, (out, in): a cut by columns keeps some of the stored rows. Source:
Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

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


class _ParallelLinear(nn.Linear):
    """A linear layer of which each rank holds its share of the outputs or of the inputs."""

    cut_dim: int  # of the weight, (out, in)
    cut_what: str

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: ProcessGroup | None = None,
        *,
        sequence: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.group, self.sequence = group, sequence
        self._take(self)

    def _take(self, whole: nn.Linear) -> None:
        part = own_part(whole.weight.shape[self.cut_dim], self.cut_what, self.group)
        rows, columns = (part, slice(None)) if self.cut_dim == 0 else (slice(None), part)
        self.weight = nn.Parameter(whole.weight.detach()[rows, columns].clone())
        self.out_features, self.in_features = self.weight.shape
        if whole.bias is not None:
            self.bias = nn.Parameter(whole.bias.detach()[rows].clone())

    @classmethod
    def of(
        cls, whole: nn.Linear, group: ProcessGroup | None = None, **options: bool
    ) -> "_ParallelLinear":
        """This rank's part of a layer that is the same on all ranks; it stays as it is."""
        cut = cls(whole.in_features, whole.out_features, whole.bias is not None, group, **options)
        cut._take(whole)
        return cut


class ColumnParallelLinear(_ParallelLinear):
    """Some of the outputs of a linear layer: (..., in) -> (..., out / n) on each of n ranks.

    Args:
        in_features: Of the whole layer; each rank takes the whole input.
        out_features: Of the whole layer, a multiple of n.
        bias: Whether it has one; it is cut like the outputs.
        group: The ranks; None is all of them.
        sequence: Whether the input's tokens come cut over the ranks, (..., T / n, in).
        enters: Whether the input is copied to the ranks here. Layers that share one do it once.

    All ranks have to draw the same random numbers here (one seed): then the parts make one layer.
    """

    cut_dim, cut_what = 0, "outputs"

    def __init__(self, *args: Any, enters: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
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
        return y if self.bias is None else y + self.bias


class ParallelDropout(nn.Dropout):
    """Dropout that draws the same on all ranks, or with `sequence` something else on each.

    The seed is the same number on all ranks, and another one for each layer.
    """

    def __init__(
        self, p: float, group: ProcessGroup | None = None, *, sequence: bool = False, seed: int = 0
    ) -> None:
        super().__init__(p)
        self.seed = seed * size_of(group) + (rank_of(group) if sequence else 0)
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop, in training, and scale what stays."""
        if not self.training or self.p == 0:
            return x
        if self.generator is None:
            self.generator = torch.Generator(x.device).manual_seed(self.seed)
        stays = torch.rand(x.shape, generator=self.generator, device=x.device) >= self.p
        return x * stays / (1 - self.p)
