"""Data parallel times pipeline: 2 x 2 processes on a device mesh (page 09).

Each row of the mesh is a pipeline with a part of the mini-batch; each column has copies of one
stage, which average their gradients.
"""

import argparse
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

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
    mesh = _mesh(rank, options)
    replica, place = mesh.get_coordinate()
    across, along = mesh["data"].get_group(), mesh["pipeline"].get_group()
    depth = mesh["pipeline"].size()
    per_rank = SCHEDULES[options.schedule][1]
    stages = cut(make_net(options), depth * per_rank)
    mine = stages_of(options.schedule, place, depth, per_rank)
    own = nn.ModuleDict({str(index): stages[index] for index in mine}).to(rank.device)
    optimizer = torch.optim.SGD(own.parameters(), lr=options.learning_rate)
    traced = [TracedStage(own[str(i)], i, len(stages), rank, group=along) for i in mine]
    step_once = make_step(traced, options)

    losses = []
    whole = argparse.Namespace(**vars(options))
    whole.batch_size *= options.replicas
    for step, (images, targets) in enumerate(make_batches(whole)):
        part = slice(replica * options.batch_size, (replica + 1) * options.batch_size)
        rank.at("step", step)
        optimizer.zero_grad()
        clock = new_clock(traced)
        loss = step_once(images[part].to(rank.device), targets[part].to(rank.device))
        check_gradients(own)
        rank.at("all-reduce")
        for parameter in own.parameters():
            distributed.all_reduce(parameter.grad, group=across)
            parameter.grad /= options.replicas
        if loss is not None:
            total = torch.tensor(loss, device=rank.device, dtype=torch.float64)
            distributed.all_reduce(total, group=across)
            losses.append(total.item() / options.replicas)
            if replica == 0:
                rank.say(f"step {step + 1} of {options.steps}: loss {losses[-1]:.3f}")
        optimizer.step()
    return {
        "replica": replica,
        "place": place,
        "losses": losses,
        "gradients": {i: [p.grad.cpu() for p in own[str(i)].parameters()] for i in mine},
        "events": [(event.action, event.start, event.end) for event in clock.events(rank.rank)],
    }


def _mesh(rank: Rank, options: argparse.Namespace) -> distributed.DeviceMesh:
    depth, rest = divmod(rank.world_size, options.replicas)
    if rest or not depth:
        raise ValueError(f"{rank.world_size} processes do not make {options.replicas} pipelines")
    shape, names = (options.replicas, depth), ("data", "pipeline")
    return init_device_mesh(rank.device.type, shape, mesh_dim_names=names)
