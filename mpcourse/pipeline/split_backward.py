"""A backward in two parts: the gradients of the inputs now, those of the weights later.

Page `zero_bubble`.

Backward, the graph of a stage leads from its outputs to its inputs. At some nodes of this way a
weight joins: a linear layer's node makes the gradient of its input, on the way, and that of its
weight, beside it. The first part (I) runs the way only and keeps the gradient that enters each such
node; the second part (W) starts at these nodes and runs only what lies beside the way. Nothing is
computed twice, and the weights are those of the graph, whoever owns them.

Source: Qi et al., ICLR 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241. torch has its own
(torch/distributed/pipelining/_backward.py); it looks for weights in the module and loses those that
join nowhere, or in several places.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


class SplitBackward:
    """The two parts of one backward, from `roots` to the leaves `inputs`, whose gradients go first.

    `gradients` has one for each root; None for a loss, whose gradient is 1.
    """

    def __init__(
        self, roots: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]
    ) -> None:
        self._roots, self._gradients = list(roots), list(gradients)
        self._inputs = list(inputs)
        self._parts: list[tuple[list[Any], list[Any], list[Tensor]]] = []

    def run_inputs(self) -> None:
        """I: add to the `.grad` of the inputs.

        A weight that joins the way in several places (a layer used twice, a recurrent one) is done
        here, because its gradient is one sum; so each weight's hooks run once.
        """
        way, below = _follow(self._roots, self._inputs)
        beside = {edge.node for edge in map(get_gradient_edge, self._roots)} - way
        joins = Counter(weight for node in (*way, *beside) for weight in below[node])
        shared = [weight for weight, places in joins.items() if places > 1]

        def own(node: Node) -> list[Tensor]:
            return [weight.variable for weight in below[node] if joins[weight] == 1]

        entered: dict[Node, tuple[Tensor | None, ...]] = {}
        hooks = [node.register_prehook(_note(entered, node)) for node in way if own(node)]
        try:
            wanted = [*self._inputs, *(weight.variable for weight in shared)]
            torch.autograd.backward(self._roots, self._gradients, inputs=wanted, retain_graph=True)
        finally:
            for hook in hooks:
                hook.remove()
        for node, gradients in entered.items():
            pairs = [(GradientEdge(node, i), g) for i, g in enumerate(gradients) if g is not None]
            self._parts.append(([e for e, _ in pairs], [g for _, g in pairs], own(node)))
        self._add_roots_beside(beside, own)
        self._roots, self._gradients = [], []  # what only the way needed can go

    def _add_roots_beside(self, beside: set[Node], own: Callable[[Node], list[Tensor]]) -> None:
        """What is sent on but does not come from the inputs: all its work is W's."""
        for node in beside:
            pairs = [
                (root, gradient)
                for root, gradient in zip(self._roots, self._gradients, strict=True)
                if get_gradient_edge(root).node is node
            ]
            self._parts.append(([r for r, _ in pairs], [g for _, g in pairs], own(node)))

    def run_weights(self) -> None:
        """W: add to the `.grad` of the weights."""
        while self._parts:
            starts, gradients, weights = self._parts.pop()
            if starts and weights:
                torch.autograd.backward(starts, gradients, inputs=weights)


def _follow(
    roots: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[set[Node], dict[Node, set[Node]]]:
    """The nodes on the way to the inputs, and for each node the weights beside the way below it.

    A weight is named by the node that accumulates its gradient.
    """
    ends = {get_gradient_edge(leaf).node for leaf in inputs}
    way: set[Node] = set()
    below: dict[Node, set[Node]] = {}
    for node in _children_first([get_gradient_edge(root).node for root in roots]):
        children = [child for child, _ in node.next_functions if child is not None]
        if node in ends or any(child in way for child in children):
            way.add(node)
        if _accumulates(node):
            below[node] = set() if node in ends else {node}
        else:
            below[node] = set().union(*(below[c] for c in children if c not in way))
    return way, below


def _children_first(starts: Sequence[Node]) -> list[Node]:
    """All nodes that can be reached, each behind those that it leads to."""
    order: dict[Node, None] = {}
    opened: set[Node] = set()
    stack = list(starts)
    while stack:
        node = stack[-1]
        if node in opened:
            order.setdefault(stack.pop())
            continue
        opened.add(node)
        stack += [c for c, _ in node.next_functions if c is not None and c not in opened]
    return list(order)


def _accumulates(node: Node) -> bool:
    return node.name() == "torch::autograd::AccumulateGrad"


def _note(entered: dict[Node, tuple], node: Node) -> Callable[[tuple], None]:
    def hook(gradients: tuple[Tensor | None, ...]) -> None:
        entered[node] = gradients

    return hook
