"""An explorer of sparsities: the weights, mask, accuracy and bytes that each leaves."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mpcourse.figures import SparsityStudy, sparsity_picture
from mpcourse.pruning import global_masks, prunable_layers, weight_of
from mpcourse.widgets.explorer import Explorer, slider_over

BINS = 60


def sparsity_study(
    model: nn.Module,
    scores: Mapping[str, Tensor],
    accuracies: Mapping[float, float],
    random: Mapping[float, float],
    sizes: Mapping[float, Mapping[str, int]],
) -> SparsityStudy:
    """Count what the picture needs, for each sparsity, so that choosing one is quick.

    Args:
        model: Not masked; its first layer has a square number of inputs.
        scores: Name of the layer -> scores; one global threshold prunes the lowest.
        accuracies: Sparsity -> accuracy; these are the sparsities to choose from.
        random: The same with weights pruned at random.
        sizes: Sparsity -> format -> bytes on disk.
    """
    weights = {n: weight_of(layer).cpu() for n, layer in prunable_layers(model).items()}
    together = torch.cat([weight.flatten() for weight in weights.values()])
    reach = float(together.abs().sort().values[int(0.999 * (len(together) - 1))])
    first = next(iter(weights))
    kept, inputs = {}, {}
    for sparsity in accuracies:
        masks = {n: mask.cpu() for n, mask in global_masks(scores, sparsity).items()}
        left = [weight[masks[name]] for name, weight in weights.items()]
        kept[sparsity] = _histogram(torch.cat(left), reach)
        inputs[sparsity] = masks[first].sum(0).tolist()
    return SparsityStudy(
        weights=len(together),
        reach=reach,
        every=_histogram(together, reach),
        kept=kept,
        inputs=inputs,
        outputs=len(weights[first]),
        accuracies=accuracies,
        random=random,
        sizes=sizes,
    )


def _histogram(values: Tensor, reach: float) -> list[int]:
    return torch.histc(values.float(), BINS, -reach, reach).int().tolist()


def sparsity_explorer(study: SparsityStudy, sparsity: float) -> Explorer:
    """Choose a sparsity; see weights, mask, bytes, and the accuracy that is left.

    Args:
        study: The net at the sparsities to choose from.
        sparsity: The one to begin with.
    """
    options = [(f"{each:.0%}", each) for each in study.accuracies]
    control = slider_over("weights that are zero", options, sparsity)
    return Explorer(
        lambda sparsity: sparsity_picture(study, sparsity),
        {"sparsity": control},
        about="weights, mask, accuracy and bytes by sparsity",
        stored=True,
    )
