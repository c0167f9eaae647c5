"""An explorer of bits: the integers, errors and accuracy that so many leave."""

from collections.abc import Callable, Mapping

import ipywidgets
import torch
from torch import Tensor, nn

from mpcourse.figures import BitsStudy, Rounded, bits_picture
from mpcourse.figures.smaller_nets import SCALES
from mpcourse.quantization import dequantize, integer_range, linear_layers, to_int8
from mpcourse.quantization.affine import BITS
from mpcourse.widgets.explorer import Explorer, slider_over

BINS = 40


def bits_study(
    model: nn.Module,
    ranges: Mapping[str, tuple[float, float]],
    accuracy: Callable[[nn.Module], float],
) -> BitsStudy:
    """Quantize a net to 2 to 8 bits in both ways, so that choosing one later is quick.

    Args:
        model: Not masked, with Linear layers.
        ranges: Of the inputs of these layers, as `calibrate` finds them.
        accuracy: Takes a net, returns its accuracy.
    """
    weights = {name: layer.weight.detach() for name, layer in linear_layers(model).items()}
    return BitsStudy(
        weights=sum(weight.numel() for weight in weights.values()),
        accuracy=accuracy(model),
        rounded={
            (bits, scales): _rounded(
                to_int8(model, ranges, bits=bits, per_channel=scales == "per channel"),
                weights,
                bits,
                accuracy,
            )
            for bits in BITS
            for scales in SCALES
        },
    )


def _rounded(
    quantized: nn.Module,
    weights: Mapping[str, Tensor],
    bits: int,
    accuracy: Callable[[nn.Module], float],
) -> Rounded:
    integers, errors, half_steps = [], [], []
    for name, weight in weights.items():
        layer = quantized.get_submodule(name)
        scale = layer.weight_scale
        meant = dequantize(layer.weight, scale, torch.zeros_like(scale), axis=0)
        integers.append(layer.weight.flatten())
        errors.append(((meant - weight) / scale[:, None]).flatten())
        half_steps.append(scale.max().item() / 2)
    smallest, largest = integer_range(bits, symmetric=True)
    every = torch.cat(integers).long().cpu() - smallest
    off = torch.cat(errors).cpu().clamp(-0.5, 0.5)
    return Rounded(
        integers=torch.bincount(every, minlength=largest - smallest + 1).tolist(),
        errors=torch.histc(off, BINS, -0.5, 0.5).int().tolist(),
        half_step=max(half_steps),
        accuracy=accuracy(quantized),
    )


def bits_explorer(study: BitsStudy) -> Explorer:
    """Choose bits and scales; see integers, errors, bytes, and the accuracy that is left.

    Args:
        study: The net in several numbers of bits.
    """
    every = sorted({each for each, _ in study.rounded})
    controls = {
        "bits": slider_over("bits of a weight", every, 8),
        "scales": ipywidgets.Dropdown(options=list(SCALES), description="scales"),
    }
    return Explorer(
        lambda bits, scales: bits_picture(study, bits, scales),
        controls,
        about="integers, errors, bytes and accuracy by bits",
    )
