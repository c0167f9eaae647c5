"""A model of the time of a training step under a layout, from bytes and link speeds (no clock).

Page `choose_a_layout`. A layout is tensor x context x data x pipeline; tensor ranks are neighbours
in number, and how far apart the ranks of an axis stand decides about the link that their messages
take. Expert ranks are no further factor: they are taken out of context x data, nearest first, and
inside an expert the tensor ranks cut as everywhere (the groups of Megatron-Core: D. Liu et al.,
2025, arXiv:2504.14960). Nor are ranks that share states: they are the context x data ranks
(Rajbhandari et al., 2020, arXiv:1910.02054), whose messages do not overlap with work here either.

Left out: latencies, messages that overlap with other work, tokens that an expert gets beyond its
share, the optimizer's step. The scores that a causal mask hides are counted: with the zigzag order
all context ranks have equally many. Sources: Narayanan et al., 2021, arXiv:2104.04473, for work and
messages; Korthikanti et al., 2022, arXiv:2205.05198, for the bytes that the layers between the
matrix products move; H. Liu et al., 2023, arXiv:2310.01889, for the ring; Lepikhin et al., 2020,
arXiv:2006.16668, and Fedus et al., 2021, arXiv:2101.03961, for the experts.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from mpcourse.memory.per_rank import BLOCK, BLOCK_INPUT, GRADIENT, OPTIMIZER, WEIGHT
from mpcourse.transformer.messages import block_messages

AXES = ("tensor", "context", "data", "pipeline")  # first the ranks that are neighbours in number
NUMBER = 2  # bytes of a number between the layers
WHOLE = 10  # of BLOCK: norms, dropout and residuals, which every rank of a layer does whole
INNER = 16  # of BLOCK: the inner numbers of an MLP four times as wide
LOGIT = 12  # bytes of a logit while the loss runs backward: in float32 itself, two gradients


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a decoder."""

    width: int  # numbers between the blocks for each token
    layers: int
    heads: int
    vocabulary: int = 51200
    context: int = 2048  # tokens of a sample
    key_heads: int | None = None  # key heads and values; as many as `heads` when `None`
    mlp: float = 8  # trained numbers of an MLP (of an expert), over the squared width
    experts: int = 1  # MLPs of a layer
    k: int = 1  # of these, how many each token goes to
    fused: bool = False  # no score leaves the attention (FlashAttention, arXiv:2205.14135)

    @property
    def keys(self) -> int:
        """Numbers of a token's keys, and of its values."""
        return self.width * (self.key_heads or self.heads) // self.heads

    @property
    def in_experts(self) -> float:
        """How many of the trained numbers are shared out among expert ranks."""
        return (self.experts > 1) * self.experts * self.layers * self.mlp * self.width**2

    @property
    def embedding(self) -> int:
        """How many numbers the embedding has, and the output, which is taken to be the same."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> float:
        """How many numbers are trained, without norms, biases and routers."""
        block = 2 * self.width * (self.width + self.keys) + self.experts * self.mlp * self.width**2
        return self.layers * block + self.embedding

    @property
    def block_operations(self) -> float:
        """Operations of a block's forward for each token: products with weights, and scores."""
        used = 2 * self.width * (self.width + self.keys) + self.k * self.mlp * self.width**2
        return 2 * used + 4 * self.context * self.width

    @property
    def kept(self) -> float:
        """Bytes that a block keeps, for each token and number of its width, without scores."""
        return BLOCK + INNER * (self.k * self.mlp / 8 - 1)

    def stored(self, tensor: int) -> float:
        """These and the scores, on one of so many tensor ranks."""
        scores = 0 if self.fused else 5 * self.heads * self.context / self.width
        return WHOLE + (self.kept - WHOLE + scores) / tensor


@dataclass(frozen=True)
class Cluster:
    """Equal hosts; the defaults are those of DGX A100 hosts with 80 GB.

    `reached`, the share of the peak that matrix products reach, is set once, by the first row of
    the first published table, in which nothing is cut; all other rows are predicted.
    """

    flops: float = 312e12  # of one rank, per second, at its peak
    reached: float = 0.63
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
    context: int = 1  # ranks that share the tokens of each sample
    expert: int = 1  # of context x data, ranks that share the experts of each layer
    recompute: bool = True  # every block's forward runs again in the backward
    sharded: int = 0  # what context x data ranks share: 0 nothing, 1 Adam's numbers, 3 all states

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.tensor * self.context * self.data * self.pipeline

    def speed(self, axis: str, cluster: Cluster) -> float:
        """Bytes per second at which a rank sends to those that differ in `axis` alone.

        A message between two ranks takes one link. Rings that sum leave a host on the links of all
        their members there (NCCL starts its rings at different ones): two of 25 GB/s let 50 pass.

        Args:
            axis: One of `AXES`, "expert", or of what has the same part of the model: "replica"
                outside of experts, "expert replica" in them.
            cluster: Speeds.

        Raises:
            ValueError: There is no such axis.
        """
        replicas = self.ranks // self.pipeline
        spans = {  # how far apart in number the nearest two stand, and how far the group reaches
            "tensor": (1, self.tensor),
            "context": (self.tensor, self.tensor * self.context),
            "data": (self.tensor * self.context, replicas),
            "pipeline": (replicas, self.ranks),
            "expert": (self.tensor, self.tensor * self.expert),
            "replica": (self.tensor, replicas),
            "expert replica": (self.tensor * self.expert, replicas),
        }
        if axis not in spans:
            raise ValueError(f"axis is one of {tuple(spans)}; got {axis!r}")
        apart, reach = spans[axis]
        if cluster.host % reach == 0:
            return cluster.inside
        sums = axis not in ("context", "pipeline", "expert")
        links = max(math.gcd(cluster.host, reach) // apart, 1) if sums else 1
        return min(links * cluster.between, cluster.inside)

    def all_to_all_seconds(self, rows: float, cluster: Cluster) -> float:
        """Seconds for which a rank sends its rows to expert ranks, equally many to each.

        Its own stay; those for ranks of its host take the fast link, and only the rest leaves.

        Args:
            rows: Bytes of all its rows.
            cluster: Speeds.
        """
        in_host = math.gcd(cluster.host, self.tensor * self.expert)
        near = max(in_host // self.tensor, 1)  # expert ranks in a host, at least itself
        there = (near - 1) / cluster.inside + (self.expert - near) / cluster.between
        return rows / self.expert * there


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
        Seconds of: products, memory, layer sums, ring (if there are context ranks), all-to-alls (if
        there are expert ranks), hand-overs, gradient sums, waiting.

    Raises:
        ValueError: The layout does not divide model and batch.
    """
    check_layout(model, batch, layout)
    tensor, replicas = layout.tensor, layout.data * layout.context
    tokens = batch * model.context // replicas
    layers, hidden = model.layers / layout.pipeline, tokens * model.width * NUMBER
    forwards = 1 + layout.recompute  # and a backward, which is twice the work of one

    work = (2 + forwards) * layers * model.block_operations
    work += 6 * model.vocabulary * model.width / layout.pipeline
    moved = 2 * (2 + forwards) * layers * tokens * model.width * model.stored(tensor)
    messages = block_messages(tokens, model.width, NUMBER, sequence=False)
    sent = layers * sum(message.sent(tensor) for message in messages) * (1 + forwards) / 2
    sent *= (1 + model.k) / 2  # half of them are an MLP's: of all tokens that its experts get
    keys = 2 * tokens * model.keys * NUMBER / tensor  # and values
    # round the ring: both in each forward and in the backward, there with gradients that come home
    ring = layers * ((2 + forwards) * (layout.context - 1) + 1) * keys
    there_and_back = 2 * (1 + forwards) * layers * model.k * hidden / tensor  # dispatch, combine
    handed = 2 * layout.chunks * hidden / tensor  # each sends its share
    in_turn = {
        "products": tokens * work / tensor / (cluster.reached * cluster.flops),
        "memory": moved / cluster.moved,
        "layer sums": sent / layout.speed("tensor", cluster),
        "ring": ring / layout.speed("context", cluster),
        "all-to-alls": layout.all_to_all_seconds(there_and_back, cluster),
        "hand-overs": (layout.pipeline > 1) * handed / layout.speed("pipeline", cluster),
    }
    for name, ranks in (("ring", layout.context), ("all-to-alls", layout.expert)):
        if ranks == 1:
            del in_turn[name]
    # a reduce-scatter of gradients, an all-gather of weights; a second one if none keeps them
    rounds = 3 if layout.sharded == 3 else 2
    speeds = (layout.speed(axis, cluster) for axis in ("replica", "expert replica"))
    gradients = sum(
        rounds * (n - 1) / n * own * GRADIENT / speed
        for (own, n), speed in zip(own_parameters(model, layout), speeds, strict=True)
    )
    idle = (layout.pipeline - 1) / layout.chunks / (batch / layout.data)  # over busy
    return {
        **in_turn,
        "gradient sums": gradients,
        "waiting": idle * sum(in_turn.values()),
    }


def own_parameters(model: DecoderSizes, layout: Layout) -> list[tuple[float, int]]:
    """Trained numbers of a rank of the first stage, and on how many ranks the same ones are.

    Those outside of experts come first, then those in them. The embedding is on the first stage,
    and on the last, too, where it makes the logits.
    """
    replicas = layout.data * layout.context
    blocks = (model.parameters - model.in_experts - model.embedding) / layout.pipeline
    in_experts = model.in_experts / layout.expert / layout.pipeline
    return [
        ((model.embedding + blocks) / layout.tensor, replicas),
        (in_experts / layout.tensor, replicas // layout.expert),
    ]


def state_bytes(model: DecoderSizes, layout: Layout) -> float:
    """Predict the bytes of a rank's weights, gradients and Adam's numbers."""
    shared = {0: 0, 1: OPTIMIZER, 3: WEIGHT + GRADIENT + OPTIMIZER}[layout.sharded]
    whole = WEIGHT + GRADIENT + OPTIMIZER - shared
    return sum((whole + shared / ranks) * own for own, ranks in own_parameters(model, layout))


def held_bytes(model: DecoderSizes, batch: int, layout: Layout, sequence: bool = False) -> float:
    """Predict what the fullest rank holds, of the first stage or of the last.

    That is states, and what its blocks keep for the backward. Then the first stage runs a block,
    or the last stage the loss. Tensor ranks hold what stands between their products whole, but
    with `sequence` parallelism: then they share its tokens.
    """
    check_layout(model, batch, layout)
    once = layout.sharded == 3  # then all samples are one micro-batch, else each is one
    samples, in_flight = batch // layout.data, 1
    if not once:
        samples, in_flight = 1, min(layout.pipeline, samples)  # 1F1B, first stage
    tokens = samples * model.context / layout.context
    shares = layout.tensor if sequence else 1  # of what stands between the products
    stored = model.stored(1) / shares if sequence else model.stored(layout.tensor)
    block = stored * tokens * model.width
    kept = BLOCK_INPUT * tokens * model.width / shares if layout.recompute else block
    kept *= model.layers / layout.pipeline
    if once:  # weights and gradients of the block that runs are whole
        parameters = sum(own for own, _ in own_parameters(model, layout))
        parameters -= model.embedding / layout.tensor
        block += (WEIGHT + GRADIENT) * parameters / model.layers
    logits = LOGIT * tokens * model.vocabulary / layout.tensor
    return state_bytes(model, layout) + max(in_flight * kept + block, kept + logits)


def check_layout(model: DecoderSizes, batch: int, layout: Layout) -> None:
    """Refuse what cannot be shared out equally."""
    if layout.sharded not in (0, 1, 3):
        raise ValueError(f"sharded has to be 0, 1 or 3; got {layout.sharded!r}")
    if layout.sharded == 3 and layout.pipeline > 1:
        raise ValueError("all states sharded: stages would gather them for each micro-batch anew")
    if not 1 <= model.k <= model.experts:
        raise ValueError(f"a token cannot go to {model.k} of {model.experts} experts")
    pieces = layout.context if layout.context < 2 else 2 * layout.context  # zigzag: two a rank
    for what, number, shares in (
        ("heads", model.heads, layout.tensor),
        ("key heads", model.key_heads or model.heads, layout.tensor),
        ("layers", model.layers, layout.pipeline * layout.chunks),
        ("samples", batch, layout.data),
        ("tokens", model.context, pieces),
        ("experts", model.experts, layout.expert),
        ("context x data ranks", layout.context * layout.data, layout.expert),
    ):
        if shares < 1 or number < 1 or number % shares:
            raise ValueError(f"{number} {what} cannot be cut into {shares} equal shares")


def layouts(
    model: DecoderSizes,
    batch: int,
    ranks: int,
    contexts: Iterable[int] = (1,),
    experts: Iterable[int] = (1,),
    sharded: Iterable[int] = (0,),
) -> Iterator[Layout]:
    """All layouts of so many ranks that divide the model, each number among those given."""
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    for tensor, pipeline, context in product(sizes, sizes, contexts):
        data, left = divmod(ranks, tensor * pipeline * context)
        if left:
            continue
        for expert, states in product(experts, sharded):
            axes = {"context": context, "expert": expert, "sharded": states}
            layout = Layout(tensor, data, pipeline, **axes)
            try:
                check_layout(model, batch, layout)
            except ValueError:
                continue
            yield layout
