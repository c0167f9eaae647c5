"""A mixture of experts in the place of a decoder's MLP (page `experts`).

A router sends each token to a few of many small networks; only these compute. Sources: Shazeer et
al. 2017, arXiv:1701.06538 (router); Lepikhin et al. 2020, arXiv:2006.16668 (capacity); Fedus et al.
2021, arXiv:2101.03961 (one expert a token, balance loss).
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.transformer.decoder import Decoder


def choose(probabilities: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest experts of each token (N, experts): weights (N, k) and which, (N, k) int64.

    The weights of several sum to 1; one alone keeps its probability: divided by itself it would be
    1, and the router would get no gradient.
    """
    weights, chosen = probabilities.topk(k, dim=-1)
    return (weights if k == 1 else weights / weights.sum(-1, keepdim=True)), chosen


def within_capacity(chosen: Tensor, experts: int, capacity: int) -> Tensor:
    """Which of the choices (N, k) an expert has room for, bool: at most `capacity` each.

    All first choices come before all second ones; in each, tokens come in their order.
    """
    asked = nn.functional.one_hot(chosen.T.flatten(), experts)
    before = (asked.cumsum(0) * asked).sum(-1)  # its place in its expert's queue, from 1
    return (before <= capacity).view(chosen.T.shape).T


def balance_loss(probabilities: Tensor, load: Tensor, tokens: float | None = None) -> Tensor:
    """How uneven the load is: experts * sum of (share of choices * mean probability); 1 if even.

    Args:
        probabilities: (N, experts), of this rank's tokens; the gradient flows through them alone.
        load: (experts,): how many choices each expert has got, on all ranks if there are several.
        tokens: What the sum of the probabilities is divided by; N if it is left out.
    """
    mean = probabilities.sum(0) / (len(probabilities) if tokens is None else tokens)
    return len(load) * (load / load.sum() * mean).sum()


class Mixture(nn.Module):
    """A mixture of experts in place of a decoder's MLP, (..., width) -> (..., width).

    Args:
        width: Numbers per token.
        hidden: Numbers inside each expert.
        experts: How many, at least 1.
        k: How many of them each token goes to.
        capacity: An expert takes at most so many times its even share of the choices, and never
            less than one; what is over is dropped, it adds nothing. None: all that come.

    The router's probabilities are float32 at least, whatever the tokens are.

    Attributes:
        balance: Of the last forward, `balance_loss` a 0-d tensor: add a little of it to the loss.
        load: Of the last forward, the choices of each expert, dropped ones too, (experts,) int64.
        dropped: Of the last forward, how many choices found no room.

    Raises:
        ValueError: A size is out of its range, or tokens come with another width.
    """

    def __init__(
        self, width: int, hidden: int, experts: int, k: int = 1, capacity: float | None = None
    ) -> None:
        super().__init__()
        if min(width, hidden, experts) < 1 or not 1 <= k <= experts:
            sizes = f"width {width}, hidden {hidden}, experts {experts}, k {k}"
            raise ValueError(f"sizes are at least 1, and k at most the experts; got {sizes}")
        if capacity is not None and not 0 < capacity < float("inf"):
            raise ValueError(f"capacity is {capacity}; it has to be more than 0, finite, or None")
        self.k, self.capacity = k, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Send each token to its experts; add what they say, weighted."""
        if x.shape[-1] != (width := self.router.in_features):
            raise ValueError(f"tokens have {width} numbers here; got the shape {tuple(x.shape)}")
        tokens, count = x.flatten(0, -2), self.router.out_features
        precise = torch.promote_types(x.dtype, torch.float32)
        scores = nn.functional.linear(tokens.to(precise), self.router.weight.to(precise))
        probabilities = scores.softmax(-1)
        weights, chosen = choose(probabilities, self.k)
        self.load = chosen.flatten().bincount(minlength=count)
        self.balance = self._balance(probabilities)
        kept = torch.ones_like(chosen, dtype=torch.bool)
        if self.capacity is not None:
            room = max(1, int(self.capacity * chosen.numel() / count))
            kept = within_capacity(chosen, count, room)
        self.dropped = chosen.numel() - int(kept.sum())
        places = kept.flatten().nonzero().squeeze(1)
        experts = chosen.flatten()[places]
        order = experts.argsort(stable=True)
        places = places[order]  # expert by expert; a token's number is its place // k
        rows = self._computed(tokens[places // self.k], experts.bincount(minlength=count))
        rows = rows * weights.flatten()[places, None].to(rows.dtype)
        return torch.zeros_like(tokens).index_add(0, places // self.k, rows).view(x.shape)

    def __getstate__(self) -> dict[str, Any]:  # for copies: torch copies no tensor with a history
        return {name: value for name, value in vars(self).items() if name != "balance"}

    def _balance(self, probabilities: Tensor) -> Tensor:
        return balance_loss(probabilities, self.load)

    def _computed(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Each expert's rows through it: the first counts[0] are the first expert's, and so on."""
        parts = zip(self.experts, rows.split(counts.tolist()), strict=True)
        return torch.cat([expert(part) for expert, part in parts])


def with_experts(model: Decoder, hidden: int, experts: int, **options: Any) -> Decoder:
    """A copy of a decoder with a `Mixture` in place of each MLP, drawn as the decoder's layers."""
    mixed = copy.deepcopy(model)
    for block in mixed.blocks:
        weight = block.mlp.up.weight
        block.mlp = Mixture(weight.shape[1], hidden, experts, **options).to(weight)
        for parameter in block.mlp.parameters():  # weights have two dimensions, biases one
            nn.init.normal_(parameter, std=0.02 * (parameter.dim() > 1))
    return mixed
