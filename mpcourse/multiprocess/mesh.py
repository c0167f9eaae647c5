"""Data parallel times pipeline: 2 x 2 processes on a device mesh (page `torch_pipelining`).

Each row of the mesh is a pipeline with a part of the mini-batch; each column has copies of one
stage, which average their gradients.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mpcourse.multiprocess.pipeline_work import add_work_options, cut, make_batches, make_net
from mpcourse.multiprocess.pipelining import (
    SCHEDULES,
    TracedStage,
    check_gradients,
    make_step,
    new_clock,
    stages_of,
)
from mpcourse.multiprocess.rank import Rank


def add_options(parser: argparse.ArgumentParser) -> None:
    """The work, and how the processes are arranged."""
    add_work_options(parser)
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="1f1b")
    parser.add_argument("--replicas", type=int, default=2, help="pipelines beside each other")


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Train, and return this rank's part.

    `--batch-size` is what each replica gets; a step takes `replicas` times that.

    Returns:
        replica and place (the coordinates on the mesh), losses (means over the replicas, where the
        last stage is), gradients (stage -> averaged, of the last step), events (of the last step).
    """
    mesh = make_mesh(rank, options)
    replica, place = mesh.get_coordinate()
    stages = own_stages(rank, options, mesh["pipeline"])
    own = nn.ModuleList([stage.submod for stage in stages])
    optimizer = torch.optim.SGD(own.parameters(), lr=options.learning_rate)
    step_once = make_step(stages, options)

    losses = []
    whole = argparse.Namespace(**vars(options))
    whole.batch_size *= options.replicas
    for step, (images, targets) in enumerate(make_batches(whole)):
        part = slice(replica * options.batch_size, (replica + 1) * options.batch_size)
        rank.at("step", step)
        optimizer.zero_grad()
        clock = new_clock(stages)
        loss = step_once(images[part].to(rank.device), targets[part].to(rank.device))
        check_gradients(own)
        rank.at("all-reduce")
        for parameter in own.parameters():
            average(parameter.grad, mesh["data"])
        if loss is not None:
            shared = torch.tensor(loss, device=rank.device, dtype=torch.float64)
            average(shared, mesh["data"])
            losses.append(shared.item())
            if replica == 0:
                rank.say(f"step {step + 1} of {options.steps}: loss {losses[-1]:.3f}")
        optimizer.step()
    return {
        "replica": replica,
        "place": place,
        "losses": losses,
        "gradients": {
            stage.stage_index: [p.grad.cpu() for p in stage.submod.parameters()] for stage in stages
        },
        "events": [(event.action, event.start, event.end) for event in clock.events(rank.rank)],
    }


def make_mesh(rank: Rank, options: argparse.Namespace) -> DeviceMesh:
    """All ranks in rows and columns: a row is a pipeline, a column has copies of one stage."""
    depth, rest = divmod(rank.world_size, options.replicas)
    if rest or not depth:
        raise ValueError(f"{rank.world_size} processes do not make {options.replicas} pipelines")
    shape, names = (options.replicas, depth), ("data", "pipeline")
    return init_device_mesh(rank.device.type, shape, mesh_dim_names=names)


def own_stages(rank: Rank, options: argparse.Namespace, row: DeviceMesh) -> list[TracedStage]:
    """This rank's part of the pipeline that is its row of the mesh."""
    per_rank = SCHEDULES[options.schedule][1]
    parts = cut(make_net(options), row.size() * per_rank)
    mine = stages_of(options.schedule, row.get_local_rank(), row.size(), per_rank)
    group = row.get_group()  # its neighbours are in the row, not among all ranks
    return [TracedStage(parts[i].to(rank.device), i, len(parts), rank, group) for i in mine]


def average(tensor: Tensor, column: DeviceMesh) -> None:
    """Put the mean over the ranks of a column in place of each rank's own."""
    distributed.all_reduce(tensor, group=column.get_group())  # a sum: gloo has no average
    tensor /= column.size()
