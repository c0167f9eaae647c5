"""Bytes on disk of the same pruned weights in several formats; each can be loaded again.

In bytes per non-zero float32 weight of a matrix, beside 4 for every weight of the dense format:
COO 4 + 2 * 8 (two int64 positions), CSR 4 + 4 (an int32 column), bit mask 4 (and 1/8 for every
weight). So COO pays above 80% zeros, CSR above 50%, a bit mask above about 3%.
"""

import gzip
import io
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.pruning.layers import prunable_layers
from mpcourse.pruning.masked import permanent_copy, refuse_masked

FORMATS = ("dense", "gzip", "COO", "CSR", "bit mask")


def bytes_in_formats(model: nn.Module) -> dict[str, int]:
    """The size of the file that holds the state of a model, in bytes, for each format.

    Biases and norms stay dense in all of them; convolution weights count as matrices with one row
    per output channel. First comes "as it is": a masked model stores its weights and its masks.
    """
    sizes = {"as it is": len(saved(model.state_dict()))}
    return sizes | {name: len(in_format(model, name)) for name in FORMATS}


def saved(value: Any) -> bytes:
    """What `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def in_format(model: nn.Module, name: str) -> bytes:
    """The file that holds the state of a model, without masks, in one of the `FORMATS`.

    Raises:
        ValueError: Another name.
    """
    if name not in FORMATS:
        raise ValueError(f"formats are {', '.join(FORMATS)}; got {name!r}")
    state = permanent_copy(model).state_dict()
    if name in ("dense", "gzip"):
        # level 9 would take ten times as long, for a file that is a tenth smaller
        return saved(state) if name == "dense" else gzip.compress(saved(state), 6, mtime=0)
    for layer in prunable_layers(model):
        key = f"{layer}.weight".removeprefix(".")
        if key in state:  # not where it is computed from other parameters
            state[key] = ENCODERS[name](state[key].flatten(1))
    return saved(state)


def load_format(model: nn.Module, content: bytes) -> None:
    """Load what `in_format` wrote into a model of the same architecture, in place.

    Raises:
        ValueError: The model is masked, or the file is that of another model. Nothing has changed.
    """
    refuse_masked(model, "a file is loaded")
    if content[:2] == b"\x1f\x8b":  # how every gzip file begins
        content = gzip.decompress(content)
    with warnings.catch_warnings():  # torch warns about sparse tensors in files
        warnings.simplefilter("ignore", UserWarning)
        found = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    own = model.state_dict()
    if set(found) != set(own):
        raise ValueError(f"the file is another model's: it has {', '.join(found)}")
    state = {}
    for name, stored in found.items():
        value = stored.to_dense() if isinstance(stored, Tensor) else unpack_bits(stored)
        is_matrix = value is not stored  # of a layer's weight, whatever shape that has
        if value.shape != (own[name].flatten(1) if is_matrix else own[name]).shape:
            shapes = f"the shape {tuple(value.shape)}, not {tuple(own[name].shape)}"
            raise ValueError(f"the file is another model's: {name} has {shapes}")
        state[name] = value.view(own[name].shape)
    model.load_state_dict(state)


def to_csr(matrix: Tensor) -> Tensor:
    """A matrix as CSR with int32 positions; torch's `to_sparse_csr` has int64, twice as large."""
    with warnings.catch_warnings():  # torch says that CSR is in beta, once per process
        warnings.simplefilter("ignore", UserWarning)
        wide = matrix.detach().to_sparse_csr()
        starts, columns = wide.crow_indices().int(), wide.col_indices().int()
        return torch.sparse_csr_tensor(
            starts, columns, wide.values(), matrix.shape, check_invariants=True
        )


def pack_bits(weight: Tensor) -> dict[str, Tensor]:
    """One bit per weight, eight to a byte, says whether it is kept; then the kept values."""
    kept = weight.flatten() != 0
    bytes_ = nn.functional.pad(kept.byte(), (0, -len(kept) % 8)).view(-1, 8)
    bits = (bytes_ << torch.arange(8, device=weight.device)).sum(1).byte()
    return {"bits": bits, "values": weight.flatten()[kept], "shape": torch.tensor(weight.shape)}


def unpack_bits(packed: dict[str, Tensor]) -> Tensor:
    """The inverse of `pack_bits`."""
    bits, values, shape = packed["bits"], packed["values"], packed["shape"].tolist()
    kept = (bits[:, None] >> torch.arange(8, device=bits.device)).bitwise_and(1).flatten()
    weight = values.new_zeros(len(kept))
    weight[kept.bool()] = values
    return weight[: torch.Size(shape).numel()].view(shape)


ENCODERS = {"COO": Tensor.to_sparse, "CSR": to_csr, "bit mask": pack_bits}
