"""One model, pruned to several sparsities, and something measured of each."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from mpcourse.pruning.masked import apply_masks
from mpcourse.pruning.masks import global_masks


def over_sparsities(
    model: nn.Module,
    scores: Mapping[str, Tensor],
    sparsities: Iterable[float],
    measure: Callable[[nn.Module], Any],
) -> dict[float, Any]:
    """Mask copies of a model by one global threshold each, and measure them.

    Args:
        model: Not masked; it stays as it is.
        scores: Name of the layer -> scores; the lowest go first.
        sparsities: The share of the weights that goes, 0 to 1, for each copy.
        measure: Called with each masked copy: its accuracy, its bytes, whatever is wanted.

    Returns:
        Sparsity -> what `measure` returned, in the order of the sparsities.

    Raises:
        ValueError: As for `global_masks` and `apply_masks`.
    """
    found = {}
    for sparsity in sparsities:
        pruned = copy.deepcopy(model)
        apply_masks(pruned, global_masks(scores, sparsity))
        found[sparsity] = measure(pruned)
    return found
