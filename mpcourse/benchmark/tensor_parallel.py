"""A decoder's block cut inside its layers over two ranks: ours, beside torch's."""

import copy
import statistics
import sys
from functools import partial

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from mpcourse.benchmark.two_ranks import (
    Row,
    from_all_ranks,
    in_turns,
    paired,
    rows_of,
    run_program,
    slowest,
)
from mpcourse.transformer.decoder import Decoder
from mpcourse.transformer.tensor_parallel import cut_inside

TORCH = "torch's parallelize_module"
PLAN = {
    **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    **{"attention.output": RowwiseParallel(), "mlp.up": ColwiseParallel()},
    "mlp.down": RowwiseParallel(),
}


def cut_block(width: int, tokens: int, repeats: int) -> list[Row]:
    """A step of one block, uncut and cut both ways in the same two processes, in turns."""
    return rows_of(__name__, width, tokens, repeats)


def step(block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Forward and backward: the output, and the gradient of the input."""
    given = x.clone().requires_grad_()
    output = block(given)
    output.square().mean().backward()
    return output.detach(), given.grad


def measure(device: torch.device, width: int, tokens: int, repeats: int) -> list[Row]:
    """In a rank: both must compute what the uncut block does; then their times."""
    torch.manual_seed(0)  # the same weights and tokens on all ranks
    decoder = Decoder(vocabulary=8, width=width, heads=8, layers=1, context=8).to(device)
    x = torch.randn(8, tokens // 8, width, device=device)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    blocks = {
        "uncut": decoder.blocks[0],
        "ours": cut_inside(decoder).blocks[0],
        "torch's": parallelize_module(copy.deepcopy(decoder.blocks[0]), mesh, PLAN),
    }
    for block in blocks.values():
        torch.testing.assert_close(step(block, x), step(blocks["uncut"], x), rtol=0, atol=1e-4)
    steps = {name: partial(step, block, x) for name, block in blocks.items()}
    times = slowest(from_all_ranks(in_turns(steps, repeats, device)))
    ratios = paired(times, "torch's")
    return [
        (
            f"a block of width {width}, {tokens} tokens, on two ranks: {name}",
            f"{statistics.median(turns) * 1e3:.1f} ms a step",
            f"{ratios[name]:.2f} x {TORCH}",
        )
        for name, turns in times.items()
    ]


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
