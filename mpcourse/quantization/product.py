"""The product of two int8 matrices, added up in int32.

`a @ b` of two int8 tensors is an int8 tensor: the sums wrap round. `torch._int_mm` has int32 sums,
on CPUs and on NVIDIA GPUs; its name begins with an underscore, so it may change. On GPUs it takes
more than 16 rows and multiples of 8 elsewhere: zeros fill up what is missing. And most GPUs want
the rows of the first matrix and the columns of the second each in one piece.
Source: `_int_mm_out_cuda` in aten/src/ATen/native/cuda/Blas.cpp, and the tests of it in torch.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

LONGEST_SUM = (2**31 - 1) // 128**2  # int32 holds so many products of two int8 numbers


def int8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices of 8-bit integers, with sums of 32 bits: exact.

    Args:
        a: int8, of shape (m, k), k at most 131,071.
        b: int8, of shape (k, n), on the same device.

    Returns:
        int32, of shape (m, n).

    Raises:
        TypeError: They are not int8.
        ValueError: Shapes that do not fit, or a sum too long for int32.
    """
    if a.dtype != torch.int8 or b.dtype != torch.int8:
        raise TypeError(f"both matrices are int8; got {a.dtype} and {b.dtype}")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"shapes (m, k) and (k, n) multiply; got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.shape[1] > LONGEST_SUM:
        raise ValueError(f"int32 holds sums of {LONGEST_SUM:,} products; got {a.shape[1]:,}")
    if a.device.type == "cuda":
        return _padded_matmul(a, b)
    return torch._int_mm(a, b)


def _padded_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product with zeros appended, in the sizes and the layout that NVIDIA's kernel takes.

    17 rows are added whatever there are: a traced program meets other numbers of rows later.
    """
    (m, k), n = a.shape, b.shape[1]
    wider, longer = (-size % 8 if size else 8 for size in (n, k))  # a size of 0 is refused, too
    columns = b.t()
    if wider or longer:  # weights that fit are not copied
        columns = pad(columns, (0, longer, 0, wider))
    return torch._int_mm(pad(a, (0, longer, 0, 17)), columns.contiguous().t())[:m, :n]
