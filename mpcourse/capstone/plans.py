"""A plan for a pruned pipeline on two devices: counted and simulated before it runs.

Page `capstone`.

Times are in millions of multiply-adds: one device does one of them after the other. They are
counted, so a plan has the same predicted step on every machine; `trials` measures seconds.
"""

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from mpcourse.memory import saved_for_backward
from mpcourse.pipeline.microbatch import microbatch_sizes
from mpcourse.pruning import (
    channel_links,
    channel_norms,
    layer_masks,
    multiply_adds,
    remove_channels,
)
from mpcourse.schedules.named import make_schedule
from mpcourse.schedules.simulation import Costs, recompute_flags, simulate
from mpcourse.schedules.timeline import Timeline
from mpcourse.splitting.cuts import cut_costs

NUM_DEVICES = 2
SCHEDULES = ("naive", "gpipe", "1f1b")
# What a block costs besides its samples, each way: starting its kernels. As measured on a CPU core,
# rounded, so that counts are the same everywhere; the page fits the lines of the reader's machine.
BLOCK_PRICE = 8.0
STATE_BYTES = 16  # a parameter: weight, gradient and Adam's two sums, 4 bytes each


@dataclass(frozen=True)
class Plan:
    """What to do with a net of blocks, on two devices.

    Attributes:
        cut: How many blocks the first device has.
        schedule: One of `SCHEDULES`.
        num_microbatches: Into how many a mini-batch is cut.
        keep: Name of a block -> the share of its convolution's channels that stays, above 0 and at
            most 1. Blocks that are not named stay whole.
        recompute: Which devices keep inputs only and run their forwards again, as in `Pipeline`:
            True, or a list with a flag for each of the two.
    """

    cut: int
    schedule: str = "1f1b"
    num_microbatches: int = 8
    keep: Mapping[str, float] = field(default_factory=dict)
    recompute: bool | Sequence[bool] = False

    def __post_init__(self) -> None:
        for name in ("cut", "num_microbatches"):  # numpy's whole numbers will do
            value = getattr(self, name)
            if not isinstance(value, bool) and hasattr(value, "__index__"):
                object.__setattr__(self, name, operator.index(value))


@dataclass(frozen=True)
class Forecast:
    """What is known of a plan before it runs."""

    timeline: Timeline  # the simulated step, in millions of multiply-adds
    state_bytes: list[int]  # per device, what it holds before the first sample
    held_bytes: list[int]  # per device, at most: state, activations, what a backward works with


def validate_plan(plan: Plan, net: nn.Sequential, batch_size: int) -> None:
    """Refuse a plan that cannot run.

    Raises:
        TypeError: It is no `Plan`, `keep` is no dictionary, or a flag is no bool.
        ValueError: A field is out of its range, which the message names.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"a plan is a Plan(cut=…, schedule=…, …); got {plan!r}")
    _check_whole("cut", plan.cut, len(net) - 1, "both devices need a block")
    if plan.schedule not in SCHEDULES:
        raise ValueError(f"schedule is one of {', '.join(SCHEDULES)}; got {plan.schedule!r}")
    why = "a micro-batch has at least one sample"
    _check_whole("num_microbatches", plan.num_microbatches, batch_size, why)
    if not isinstance(plan.keep, Mapping):
        raise TypeError(
            f"keep maps names of blocks to shares, as in {{'block1': 0.5}}; got {plan.keep!r}"
        )
    recompute_flags(plan.recompute, NUM_DEVICES)
    able = prunable_blocks(net)
    for name, share in plan.keep.items():
        if name not in able:
            raise ValueError(f"keep names blocks out of {', '.join(able)}; got {name!r}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"keep[{name!r}] is above 0 and at most 1; got {share!r}")


def _check_whole(name: str, value: int, most: int, why: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} is a whole number from 1 to {most} ({why}); got {value!r}")


def prunable_blocks(net: nn.Sequential) -> list[str]:
    """The blocks whose convolution can lose channels."""
    links = channel_links(net)
    return [name for name, _ in net.named_children() if f"{name}.conv" in links]


def pruned(net: nn.Sequential, keep: Mapping[str, float]) -> nn.Sequential:
    """A copy of the net, on the host, whose blocks have lost the channels with the smallest norms.

    Args:
        net: Blocks with a convolution called `conv` where channels may be pruned.
        keep: As in a `Plan`; of every block at least one channel stays.
    """
    slim = copy.deepcopy(net).cpu()
    convs = {f"{name}.conv": share for name, share in keep.items()}
    if not convs:
        return slim
    norms = channel_norms(slim, layers=list(convs))
    most = {name: 1 - 1 / len(norm) for name, norm in norms.items()}  # of which all but one go
    masks = layer_masks(norms, {name: min(1 - convs[name], most[name]) for name in norms})
    return remove_channels(slim, masks)


@torch.no_grad()
def block_work(net: nn.Sequential, image: Tensor) -> list[float]:
    """Millions of multiply-adds that each block's forward takes for one sample, (1, ...)."""
    work = []
    for block in net:
        work.append(multiply_adds(block, image)[0] / 1e6)
        image = block(image)
    return work


def counted_costs(work: Sequence[float], size: int, price: float = BLOCK_PRICE) -> Costs:
    """What each block costs for a micro-batch, in millions of multiply-adds.

    The backward does the forward's work twice: for the gradient of the input, and for that of the
    weights. The gradient of the images is not needed, so the first block's does it once.
    Each way of a block costs `price` besides, however small the micro-batch.

    Args:
        work: One number per block, as `block_work` counts them.
        size: Samples of the micro-batch.
        price: Of a block, each way.
    """
    forward = [each * size for each in work]
    backward = [forward[0], *(2 * each for each in forward[1:])]
    return Costs(*([price + time for time in row] for row in (forward, backward)))


def simulate_plan(
    plan: Plan, work: Sequence[float], batch_size: int, price: float = BLOCK_PRICE
) -> Timeline:
    """The step of a plan, from the work of the blocks that its pruning leaves."""
    sizes = microbatch_sizes(batch_size, num_microbatches=plan.num_microbatches)
    cut = [cut_costs(counted_costs(work, size, price), plan.cut) for size in sizes]
    costs = [replace(each, recompute=plan.recompute) for each in cut]
    return simulate(make_schedule(plan.schedule, NUM_DEVICES, NUM_DEVICES, len(sizes)), costs)


def saved_bytes(stage: nn.Module, inputs: Tensor) -> int:
    """Bytes that autograd keeps of a forward on the host, its inputs counted, its weights not."""
    with torch.enable_grad(), saved_for_backward(list(stage.parameters())) as saved:
        stage(inputs.detach().clone().requires_grad_())
    return saved.total


def state_bytes(net: nn.Sequential, cut: int) -> list[int]:
    """Bytes of each of two stages for weights, gradients and Adam's two sums."""
    return [STATE_BYTES * sum(p.numel() for p in part.parameters()) for part in _cut(net, cut)]


def fresh_bytes(blocks: nn.Sequential) -> int:
    """Bytes of the largest block's gradient: a backward makes it beside the one that it adds to.

    While it does, torch's library works on a copy of it, as large (measured for convolutions on
    CPU cores).
    """
    return max(4 * sum(p.numel() for p in block.parameters()) for block in blocks)


@torch.no_grad()
def gradient_bytes(blocks: nn.Sequential, image: Tensor) -> int:
    """What a backward holds for a sample: gradients of the largest block's output and input."""
    sizes = [image.nbytes]
    for block in blocks:
        image = block(image)
        sizes.append(image.nbytes)
    return 2 * max(sizes)


def bytes_per_sample(net: nn.Sequential, cut: int, image: Tensor) -> list[int]:
    """What each of two stages keeps of a sample from its forward to the end of its backward."""
    front, back = _cut(net, cut)
    with torch.no_grad():
        between = front(image)
    return [saved_bytes(front, image), saved_bytes(back, between)]


def _cut(net: nn.Sequential, cut: int) -> tuple[nn.Sequential, nn.Sequential]:
    if not 1 <= cut < len(net):
        raise ValueError(f"{len(net)} blocks can be cut after 1 to {len(net) - 1}; got {cut}")
    return net[:cut], net[cut:]


def forecast(
    plan: Plan, net: nn.Sequential, image: Tensor, batch_size: int, price: float = BLOCK_PRICE
) -> Forecast:
    """Count and simulate a plan for a net before its pruning; nothing is trained or timed."""
    validate_plan(plan, net, batch_size)
    slim, image = pruned(net, plan.keep), image.cpu()
    timeline = simulate_plan(plan, block_work(slim, image), batch_size, price)
    per_sample = bytes_per_sample(slim, plan.cut, image)
    stages = _cut(slim, plan.cut)
    with torch.no_grad():
        inputs = [image, stages[0](image)]
    states = state_bytes(slim, plan.cut)
    # the library's copy, too; the first micro-batch's gradient is the one that is kept
    copies = 2 if plan.num_microbatches > 1 else 1
    largest = max(microbatch_sizes(batch_size, num_microbatches=plan.num_microbatches))
    held = []
    for device in range(NUM_DEVICES):
        whole = min(timeline.peak_activations[device] * largest, batch_size)
        # of the micro-batches whose forward will run again, only what they came as is there
        bare = min(timeline.peak_inputs[device] * largest, batch_size) - whole
        kept = whole * per_sample[device] + max(bare, 0) * inputs[device].nbytes
        kept += largest * gradient_bytes(stages[device], inputs[device])
        held.append(states[device] + kept + copies * fresh_bytes(stages[device]))
    return Forecast(timeline, states, held)
