"""A program for torchrun: a decoder cut inside its layers, beside the uncut one and beside torch's.

`launch("mpcourse.transformer.in_processes")` (page `cut_inside_a_layer`).
"""

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from mpcourse.multiprocess.rank import Rank
from mpcourse.transformer.decoder import Decoder
from mpcourse.transformer.messages import Counted, step_messages
from mpcourse.transformer.parallel_vocabulary import vocab_parallel_cross_entropy
from mpcourse.transformer.tensor_parallel import cut_inside, sum_whole_gradients

SIZES = {"vocabulary": 64, "width": 32, "heads": 4, "layers": 2, "context": 16}
BATCH = 4
PLAN = {
    **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    **{"attention.output": RowwiseParallel(), "mlp.up": ColwiseParallel()},
    "mlp.down": RowwiseParallel(),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The block that is timed."""
    parser.add_argument("--width", type=int, default=256, help="of the block that is timed")
    parser.add_argument("--tokens", type=int, default=512, help="of the block that is timed")
    parser.add_argument("--repeats", type=int, default=0, help="timed steps; 0 for none")


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return largest differences to the uncut decoder and block, bytes sent, and seconds."""
    found = {f"sequence={cut}": _decoder(rank, cut) for cut in (False, True)}
    return {**found, **_block(rank, options)}


def _decoder(rank: Rank, sequence: bool) -> dict[str, Any]:
    """One step in double precision, cut and uncut."""
    whole = _random(Decoder(**SIZES)).to(rank.device, torch.float64)
    tokens = torch.randint(SIZES["vocabulary"], (BATCH, SIZES["context"]), device=rank.device)
    targets = tokens.roll(1)
    cut = cut_inside(whole, sequence=sequence)
    rank.at("cut decoder", 0)
    with Counted() as counted:
        loss = vocab_parallel_cross_entropy(cut(tokens), targets)
        loss.backward()
    if sequence:
        sum_whole_gradients(cut)
    right = nn.functional.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten())
    right.backward()
    wanted = cut_inside(_with_gradients_as_weights(whole))
    sizes = (tokens.numel(), SIZES["width"], SIZES["layers"], right.element_size())
    predicted = step_messages(*sizes, sequence=sequence)
    return {
        "loss_error": (loss - right).abs().item(),
        "gradient_error": max(
            (own.grad - part).abs().max().item()
            for own, part in zip(cut.parameters(), wanted.parameters(), strict=True)
        ),
        "gradient": max(p.grad.abs().max().item() for p in cut.parameters()),
        "sent": counted.sent(rank.world_size),
        "predicted": sum(message.sent(rank.world_size) for message in predicted),
    }


def _block(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """One block: uncut, ours and torch's `parallelize_module`, equal; then their times."""
    decoder = _random(Decoder(vocabulary=8, width=options.width, heads=8, layers=1, context=8))
    decoder = decoder.to(rank.device)
    mesh = init_device_mesh(rank.device.type, (rank.world_size,))
    theirs = parallelize_module(copy.deepcopy(decoder.blocks[0]), mesh, PLAN)
    ours = cut_inside(decoder).blocks[0]
    blocks = {"uncut": decoder.blocks[0], "ours": ours, "torch's": theirs}
    x = torch.randn(8, options.tokens // 8, options.width, device=rank.device)

    def step(block: nn.Module) -> tuple[Tensor, Tensor]:
        given = x.clone().requires_grad_()
        output = block(given)
        output.square().mean().backward()
        return output.detach(), given.grad

    rank.at("block", 0)
    results = {name: step(block) for name, block in blocks.items()}
    with CommDebugMode() as messages:
        step(theirs)
    with Counted() as counted:
        step(ours)
    return {
        "block_error": {
            name: max((found[i] - results["uncut"][i]).abs().max().item() for i in range(2))
            for name, found in results.items()
        },
        "gradients_differ_from_torchs_by": max(
            (own.grad - _local(other.grad)).abs().max().item()
            for own, other in zip(ours.parameters(), theirs.parameters(), strict=True)
        ),
        "all_reduces": {"ours": len(counted.messages), "torch's": messages.get_total_counts()},
        "seconds": _timed({name: lambda b=b: step(b) for name, b in blocks.items()}, rank, options),
    }


def _timed(
    steps: dict[str, Callable[[], Any]], rank: Rank, options: argparse.Namespace
) -> dict[str, list[float]]:
    """The time of each step; they take turns, so that a busy moment strikes all alike."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats):
        for name, step in steps.items():
            distributed.barrier()  # nobody waits inside a step for a rank that is late from before
            start = rank.seconds()
            step()
            taken[name].append(rank.seconds() - start)
    return taken


def _random(model: nn.Module) -> nn.Module:
    """Norms and biases too: what starts at 0 or 1 hides a slip."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


@torch.no_grad()
def _with_gradients_as_weights(model: nn.Module) -> nn.Module:
    """A copy whose weights are the model's gradients: cut like the model, they are the parts'."""
    copied = copy.deepcopy(model)
    for parameter, original in zip(copied.parameters(), model.parameters(), strict=True):
        parameter.copy_(original.grad)
    return copied


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
