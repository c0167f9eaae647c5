"""LEGACY: quantization with `torch.ao`, which posts still show. torchao has taken its place.

For comparison only: torch announces its removal.
"""

import warnings

import torch
from torch import nn

from mpcourse.pruning.masked import permanent_copy
from mpcourse.quantization.calibration import linear_layers


def to_int8_by_torch_ao(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """A copy of a model, without masks, by `torch.ao.quantization.quantize_dynamic`; CPU only.

    Args:
        model: Any module with Linear layers, on the CPU.

    Returns:
        The copy, and what torch warns of: "DeprecationWarning: …", each once.

    Raises:
        ValueError: No Linear layer, not on the CPU, or this torch has no kernels for it.
    """
    places = {layer.weight.device.type for layer in linear_layers(model).values()}
    if places != {"cpu"}:
        raise ValueError(f"torch.ao quantizes for the CPU only; the model is on {sorted(places)}")
    if torch.backends.quantized.engine == "none":
        raise ValueError("this torch was built without kernels for torch.ao's quantization")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quantized = torch.ao.quantization.quantize_dynamic(
            permanent_copy(model), {nn.Linear}, dtype=torch.qint8
        )
    said = [f"{each.category.__name__}: {str(each.message).splitlines()[0]}" for each in caught]
    return quantized, list(dict.fromkeys(said))
