"""The shortest pipeline with torch's engine: one step of GPipe, a stage per process.

Page `torch_pipelining`.
"""

import argparse
from typing import Any

from torch.distributed.pipelining import ScheduleGPipe

from mpcourse.multiprocess.pipeline_work import LOSS, add_work_options, cut, make_batches, make_net
from mpcourse.multiprocess.rank import Rank
from mpcourse.multiprocess.torch_stage import PipelineStage


def add_options(parser: argparse.ArgumentParser) -> None:
    """The work; one step of it is done."""
    add_work_options(parser)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Return losses (the mini-batch's, where the last stage is) and this stage's gradients."""
    layers = cut(make_net(options), rank.world_size)[rank.rank].to(rank.device)  # its own part
    stage = PipelineStage(layers, rank.rank, rank.world_size, rank.device)
    schedule = ScheduleGPipe(stage, options.microbatches, loss_fn=LOSS)

    images, targets = (tensor.to(rank.device) for tensor in make_batches(options)[0])
    losses = []  # of the micro-batches
    inputs = [images] if stage.is_first else []
    wanted = {"target": targets, "losses": losses} if stage.is_last else {}
    schedule.step(*inputs, **wanted)
    return {
        "losses": [sum(losses).item() / len(losses)] if stage.is_last else [],
        "gradients": [parameter.grad.cpu() for parameter in layers.parameters()],
    }
