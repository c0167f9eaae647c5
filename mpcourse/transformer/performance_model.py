"""A model of the time of a training step under a layout, from bytes and link speeds (no clock).

Page `cut_inside_a_layer`. A layout is tensor x pipeline x data; which of them has its ranks as
neighbours inside a host decides about the link that its messages take.

Every block's forward runs again in the backward. Left out: latencies, several rings at once over
the links of one host, messages that overlap with other work, the optimizer's step. Sources:
Narayanan et al., 2021, arXiv:2104.04473, for work and messages; Korthikanti et al., 2022,
arXiv:2205.05198, for the bytes that the layers between the matrix products move.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mpcourse.memory.per_rank import BLOCK, BLOCK_INPUT, GRADIENT, OPTIMIZER, WEIGHT
from mpcourse.transformer.messages import block_messages

AXES = ("tensor", "data", "pipeline")
NUMBER = 2  # bytes of a number between the layers
WHOLE = 10  # of BLOCK: norms, dropout and residuals, which every rank of a layer does whole
PASSES = 4  # forward, backward twice that, forward again


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a decoder."""

    width: int  # numbers between the blocks for each token
    layers: int
    heads: int
    vocabulary: int = 51200
    context: int = 2048  # tokens of a sample

    @property
    def parameters(self) -> int:
        """How many numbers are trained, without norms and biases."""
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width


@dataclass(frozen=True)
class Cluster:
    """Equal hosts; the defaults are those of DGX A100 hosts with 80 GB.

    `reached`, the share of the peak that matrix products reach, is set once, by the first row of
    the first published table, in which nothing is cut; all other rows are predicted.
    """

    flops: float = 312e12  # of one rank, per second, at its peak
    reached: float = 0.7
    moved: float = 2.0e12  # bytes per second between a rank and its memory
    inside: float = 300e9  # bytes per second each way between ranks of a host
    between: float = 25e9  # bytes per second each way of a rank's own link out of its host
    host: int = 8  # ranks of a host
    memory: float = 80e9  # bytes of a rank


@dataclass(frozen=True)
class Layout:
    """How many ranks share what."""

    tensor: int = 1  # ranks that share each layer
    data: int = 1  # shares of the batch
    pipeline: int = 1  # stages
    chunks: int = 1  # stages in a row that each rank has (interleaved schedule)
    order: tuple[str, ...] = AXES  # first the axis whose ranks are neighbours in number

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.tensor * self.data * self.pipeline

    def speed(self, axis: str, cluster: Cluster) -> float:
        """Bytes per second of the slowest link between ranks that differ in `axis` alone."""
        inner = self.order[: self.order.index(axis) + 1]
        reach = math.prod(getattr(self, name) for name in inner)
        return cluster.between if cluster.host % reach else cluster.inside


def step_seconds(
    model: DecoderSizes, batch: int, layout: Layout, cluster: Cluster
) -> dict[str, float]:
    """Predict the seconds of a step, by what they are spent on.

    Args:
        model: Its sizes.
        batch: Samples of a step, on all ranks together.
        layout: Who shares what.
        cluster: Speeds.

    Returns:
        Seconds of: products, memory, layer sums, hand-overs, gradient sums, waiting.

    Raises:
        ValueError: The layout does not divide model and batch.
    """
    check_layout(model, batch, layout)
    tensor, tokens = layout.tensor, batch * model.context // layout.data
    layers = model.layers / layout.pipeline

    work = PASSES * layers * (24 * model.width**2 + 4 * model.context * model.width)
    work += 6 * model.vocabulary * model.width / layout.pipeline
    attention = 5 * model.heads * model.context / model.width
    stored = WHOLE + (BLOCK - WHOLE + attention) / tensor
    moved = 2 * PASSES * layers * tokens * model.width * stored  # written once, read once
    messages = block_messages(tokens, model.width, NUMBER, sequence=False)
    sent = 1.5 * layers * sum(message.sent(tensor) for message in messages)  # forward's sums again
    handed = 2 * layout.chunks * tokens * model.width * NUMBER / tensor  # each sends its share
    in_turn = {
        "products": tokens * work / tensor / (cluster.reached * cluster.flops),
        "memory": moved / cluster.moved,
        "layer sums": sent / layout.speed("tensor", cluster),
        "hand-overs": (layout.pipeline > 1) * handed / layout.speed("pipeline", cluster),
    }
    own = model.parameters / tensor / layout.pipeline
    gradients = 2 * (layout.data - 1) / layout.data * own * GRADIENT
    idle = (layout.pipeline - 1) / layout.chunks / (batch / layout.data)  # over busy
    return {
        **in_turn,
        "gradient sums": gradients / layout.speed("data", cluster),
        "waiting": idle * sum(in_turn.values()),
    }


def held_bytes(model: DecoderSizes, batch: int, layout: Layout) -> float:
    """Predict what the fullest rank holds: states, and inputs of the blocks that run again."""
    check_layout(model, batch, layout)
    states = (WEIGHT + GRADIENT + OPTIMIZER) * model.parameters / layout.tensor / layout.pipeline
    in_flight = min(layout.pipeline, batch // layout.data)  # 1F1B, first stage; single samples
    hidden = model.context * model.width
    inputs = in_flight * model.layers / layout.pipeline * BLOCK_INPUT * hidden
    return states + inputs + BLOCK * hidden / layout.tensor  # and the block that is computed


def check_layout(model: DecoderSizes, batch: int, layout: Layout) -> None:
    """Refuse heads, layers or samples that cannot be shared out equally, and an order of others."""
    if sorted(layout.order) != sorted(AXES):
        raise ValueError(f"order has each of {AXES} once; got {layout.order}")
    for what, number, shares in (
        ("heads", model.heads, layout.tensor),
        ("layers", model.layers, layout.pipeline * layout.chunks),
        ("samples", batch, layout.data),
    ):
        if shares < 1 or number < 1 or number % shares:
            raise ValueError(f"{number} {what} cannot be cut into {shares} equal shares")


def layouts(
    model: DecoderSizes, batch: int, ranks: int, order: tuple[str, ...] = AXES
) -> Iterator[Layout]:
    """All layouts of so many ranks that divide the model, with micro-batches of one sample."""
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    for tensor in sizes:
        for pipeline in sizes:
            if ranks % (tensor * pipeline):
                continue
            layout = Layout(tensor, ranks // tensor // pipeline, pipeline, order=order)
            try:
                check_layout(model, batch, layout)
            except ValueError:
                continue
            yield layout
