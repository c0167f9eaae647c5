"""A mixture of experts spread over ranks: each holds some of the experts (page `experts`).

Rows of tokens go to the ranks of their experts and come back, by two all-to-alls forward and two
backward. Sources: Lepikhin et al. 2020, arXiv:2006.16668; Fedus et al. 2021, arXiv:2101.03961.
"""

import copy
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from mpcourse.transformer.experts import Mixture, balance_loss
from mpcourse.transformer.parallel_layers import check_plain, own_part
from mpcourse.transformer.tensor_parallel_functions import size_of, sum_in_one_message


class Exchange(Function):
    """Rows (sum(send), width) to their ranks: an all-to-all; backward, their gradients go home."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
        """Send the first `send[0]` rows to rank 0, the next to rank 1; join what comes, by rank."""
        ctx.back = receive, send, group
        arrived = rows.new_empty(sum(receive), *rows.shape[1:])
        distributed.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The same message the other way."""
        return Exchange.apply(gradient, *ctx.back), None, None, None


class ParallelMixture(Mixture):
    """Of a mixture, the router and this rank's experts; each rank brings tokens of its own.

    The numbers of tokens may differ, and be 0. Each rank drops by the capacity for its own tokens.
    `load` is that of all ranks, and the mean of their `balance` is the whole's. A rank sends the
    counts of its rows first, then the rows. All ranks call forward and backward equally often.
    """

    def __init__(self) -> None:
        raise TypeError("a ParallelMixture is made of a whole one: ParallelMixture.of(mixture)")

    @classmethod
    def of(cls, whole: Mixture, group: ProcessGroup | None = None) -> "ParallelMixture":
        """This rank's part of a mixture that is the same on all ranks; it stays as it is.

        Raises:
            ValueError: The ranks do not divide the experts, or it is no plain `Mixture`.
        """
        check_plain(whole, Mixture)
        own = own_part(len(whole.experts), "experts", group)
        part = cls.__new__(cls)
        nn.Module.__init__(part)
        part.k, part.capacity, part.group = whole.k, whole.capacity, group
        part.training = whole.training
        part.router = copy.deepcopy(whole.router)
        part.experts = copy.deepcopy(whole.experts[own])
        return part

    def _balance(self, probabilities: Tensor) -> Tensor:
        distributed.all_reduce(self.load, group=self.group)
        a_rank = self.load.sum().item() / self.k / size_of(self.group)  # tokens, in the mean
        return balance_loss(probabilities, self.load, a_rank)

    def _computed(self, rows: Tensor, counts: Tensor) -> Tensor:
        ranks, experts = size_of(self.group), len(self.experts)
        coming = torch.empty_like(counts)
        distributed.all_to_all_single(coming, counts, group=self.group)
        send, receive = (c.view(ranks, experts).sum(1).tolist() for c in (counts, coming))
        arrived = Exchange.apply(rows, send, receive, self.group)  # by rank, then by expert
        names = torch.arange(experts, device=rows.device).repeat(ranks).repeat_interleave(coming)
        order = names.argsort(stable=True)
        done = super()._computed(arrived[order], coming.view(ranks, experts).sum(0))
        return Exchange.apply(done[order.argsort()], receive, send, self.group)


@torch.no_grad()
def average_gradients(
    model: nn.Module, group: ProcessGroup | None = None, copies: ProcessGroup | None = None
) -> None:
    """Make the gradients those of the mean of all ranks' losses; call it once after the backward.

    An expert's have come from all ranks of `group` with the all-to-alls: they are divided by the
    number of ranks, and not sent. All others are averaged, in one message. Copies take one more.

    Args:
        model: A `ParallelMixture`, or a model that has some.
        group: The ranks that the experts are spread over; None is all.
        copies: The ranks that hold the same experts, one each group: there all are averaged.
    """
    own = {
        parameter
        for module in model.modules()
        if isinstance(module, ParallelMixture)
        for parameter in module.experts.parameters()
    }
    # an idle expert's are 0; without one is what is frozen, on all ranks alike
    given = [parameter for parameter in model.parameters() if parameter.grad is not None]
    for parameter in given:
        parameter.grad /= size_of(group) * (1 if copies is None else size_of(copies))
    sum_in_one_message([parameter.grad for parameter in given if parameter not in own], group)
    if copies is not None:
        sum_in_one_message([parameter.grad for parameter in given], copies)
