"""A backward in two parts: the gradients of the inputs now, the products of the weights put off.

Page `zero_bubble`.

The first part (I) is one backward over the stage's graph that leaves out the weights of linear
layers, convolutions and matrix products whose input has a gradient. Of each it puts two factors
into a queue: what the forward has multiplied by the weight, and the gradient that arrives. The rest
of the graph can go. The second part (W) makes the products; autograd brings them to the weights.
All else is done in I: biases, norms, embeddings, what is compiled, a weight made of several, and
one that is used in other ways too, because its gradient is one sum.

The layers are found in the graph, so none is written for it and the forward is left alone. (A mode
that takes over `F.linear` slows every call in it, and does not see into nn.MultiheadAttention.)
Source: Qi et al., ICLR 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Product = tuple[GradientEdge, Callable[[Any], Tensor]]  # where it enters the graph, what makes it
FACTORS = {  # which child of a product is the input's, before the weight's; as what it is saved
    "AddmmBackward0": (1, "mat1"),
    "MmBackward0": (0, "self"),
    "ConvolutionBackward0": (0, "input"),
}
LEAF = "torch::autograd::AccumulateGrad"


def run_inputs(
    roots: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> dict[Node, list[Product]]:
    """I: add to the `.grad` of the leaves `inputs` and of all that is not put off.

    `gradients` has one for each root; None for a loss, whose gradient is 1. Returned is the queue,
    by the leaves of the weights.
    """
    starts = [get_gradient_edge(root).node for root in roots]
    graph = _reached(starts)
    found = _find_products(graph, starts, {get_gradient_edge(leaf).node for leaf in inputs})
    queue: dict[Node, list[Product]] = {}
    kept: set[int] = set()

    def put(leaf: Node, edge: GradientEdge, make: Callable, arrived: tuple[Tensor | None]) -> None:
        if (gradient := arrived[0]) is not None:
            queue.setdefault(leaf, []).append((edge, partial(make, gradient)))
            kept.add(gradient.untyped_storage()._cdata)

    for node, (leaf, edge, make) in found.items():
        node.register_prehook(partial(put, leaf, edge, make))
    later = {leaf for leaf, *_ in found.values()}
    now = [node.variable for node in graph if node.name() == LEAF and node not in later]
    torch.autograd.backward(roots, gradients, inputs=now)
    for leaf in now:  # a .grad in memory that is kept would be added to before W reads it
        if leaf.grad is not None and leaf.grad.layout is torch.strided:
            if leaf.grad.untyped_storage()._cdata in kept:
                leaf.grad = leaf.grad.clone()
    return queue


def run_weights(queue: dict[Node, list[Product]]) -> None:
    """W: add to the `.grad` of the weights, and empty the queue.

    Small products go to autograd together, for a call of it would cost more than they do.
    """
    while queue:
        parts: list[tuple[GradientEdge, Tensor]] = []
        while queue and sum(product.numel() for _, product in parts) < 2**20:
            # all of a weight's at once: its gradient is one sum, and its hooks run once
            parts += [(edge, make()) for edge, make in queue.pop(next(iter(queue)))]
        torch.autograd.backward(*zip(*parts, strict=True))


def _find_products(
    graph: dict[Node, list[Node]], starts: Sequence[Node], ends: set[Node]
) -> dict[Node, tuple[Node, GradientEdge, Callable]]:
    """The nodes whose product can be put off: the weight's leaf, where it enters, what makes it."""
    products = {n: p for n in graph if n.name() in FACTORS and (p := _product(n))}
    users = Counter(chain(starts, *graph.values()))
    taken: Counter[Node] = Counter()
    entered = [edge.node for edge, _ in products.values()]
    for node in entered:  # a cast or view that nothing but products enters is theirs, and so on
        taken[node] += 1
        if taken[node] == users[node] and len(graph[node]) == 1:
            entered += graph[node]
    found = {}
    for node, (edge, make) in products.items():
        leaf = edge.node
        while len(graph[leaf]) == 1:
            leaf = graph[leaf][0]
        if leaf.name() == LEAF and taken[leaf] == users[leaf] and leaf not in ends:
            found[node] = leaf, edge, make
    return found


def _product(node: Any) -> Product | None:
    child, name = FACTORS[node.name()]
    (before, _), (weight, index) = node.next_functions[child : child + 2]
    # nothing behind the input: only for the weight does autograd come here
    if before is None or weight is None or getattr(node, "_saved_alpha", 1) != 1:
        return None
    # what hooks keep may be asked for once (a checkpoint makes it again), and autograd will ask
    if getattr(getattr(node, f"_raw_saved_{name}"), "unpack_hook", None) is not None:
        return None
    x = getattr(node, f"_saved_{name}").detach()
    multiply = _convolution(node) if name == "input" else lambda x, g: (g.mT @ x.conj()).mT
    make = partial(_make, multiply, x, x._version)
    return (GradientEdge(weight, index), make) if x.layout is torch.strided else None


def _make(multiply: Callable, x: Tensor, version: int, gradient: Tensor) -> Tensor:
    if x._version != version:
        raise RuntimeError("an input of a layer with weights was changed in place before W")
    return multiply(x, gradient)


def _convolution(node: Any) -> Callable[[Tensor, Tensor], Tensor]:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    how = [getattr(node, f"_saved_{name}") for name in names]
    weight, its_alone = node._saved_weight.detach(), [False, True, False]
    backward = torch.ops.aten.convolution_backward
    return lambda x, g: backward(g, x, weight, None, *how, its_alone)[1]


def _reached(starts: Sequence[Node]) -> dict[Node, list[Node]]:
    """The children of each node that can be reached."""
    graph, nodes = {}, list(starts)
    for node in nodes:
        if node not in graph:
            graph[node] = [child for child, _ in node.next_functions if child is not None]
            nodes += graph[node]
    return graph
