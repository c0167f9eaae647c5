"""Solutions of page `scatter_and_gather`: scatter, nests, gather, the mean over uneven chunks."""

import torch


def my_scatter(batch: torch.Tensor, num_devices: int) -> list[torch.Tensor]:
    """A full chunk has `ceil(rows / devices)` rows, and the slices begin that many rows apart.

    The range ends with the batch: so the last slice may be short, and a device for which no row is
    left gets no chunk. Rounding down instead drops rows or makes the last chunk the longest. One
    slice per device, however many rows there are, adds empty chunks at the end. Sizes that are as
    even as possible, such as 3, 2, 2, are those of `tensor_split`.
    """
    size = -(-len(batch) // num_devices)
    return [batch[start : start + size] for start in range(0, len(batch), size)]


def my_scatter_nest(inputs: object, num_devices: int) -> list:
    """A tensor is cut, a nest is taken apart and built again, anything else is repeated.

    Scattering each value of a nest gives one list for each value; `zip` turns them around, into one
    row for each device, and stops where the chunks end. Without the call to itself, a list inside a
    dict would go to every device whole. A text can be iterated like a list, so ask for the types
    that are nests, not for what can be iterated. An empty nest has no columns, and `zip` over none
    gives no row: it is repeated like anything else without a tensor.
    """
    if isinstance(inputs, torch.Tensor):
        return list(inputs.chunk(num_devices))
    if isinstance(inputs, dict) and inputs:
        columns = [my_scatter_nest(value, num_devices) for value in inputs.values()]
        return [dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=False)]
    if isinstance(inputs, tuple | list) and inputs:
        columns = [my_scatter_nest(value, num_devices) for value in inputs]
        return [type(inputs)(row) for row in zip(*columns, strict=False)]
    return [inputs] * num_devices


def my_gather(outputs: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Rows are joined end to end, key by key; a loss first gets the dimension to join along.

    `torch.stack` would add a dimension to the rows too, and fails where a chunk is shorter. Adding
    the losses up, or averaging them, decides what only the caller can decide. `item()` and
    `torch.tensor` give the right numbers, but cut the way back for the gradient.
    """
    joined = {}
    for key in outputs[0]:
        tensors = [output[key] for output in outputs]
        joined[key] = torch.cat([t.unsqueeze(0) if t.dim() == 0 else t for t in tensors])
    return joined


def my_mean(chunk_means: torch.Tensor, chunk_sizes: torch.Tensor) -> torch.Tensor:
    """A chunk's mean times its rows is the chunk's sum; the sum over all rows, divided by them.

    The mean of the means gives a chunk of one row as much weight as one of three. Dividing the sum
    by the number of chunks, or not at all, depends on how the batch was cut, and a mean must not.
    """
    return (chunk_means * chunk_sizes).sum() / chunk_sizes.sum()
