"""Tied embeddings when the first and the last stage sit on two devices (page `a_transformer`).

One tensor cannot be on two devices. Each end gets a copy, and the two stay one only if both take
the same step: with the sum of their gradients. Source: Megatron-LM's all-reduce between the first
and the last stage (Narayanan et al. 2021, arXiv:2104.04473).
"""

import copy

import torch
from torch import nn

from mpcourse.transformer.decoder import Decoder


def with_two_copies(model: Decoder) -> nn.Sequential:
    """A copy of the model in a row, whose output weights are a tensor of their own."""
    row = copy.deepcopy(model).as_sequential()
    tied = row[-1].output.weight
    row[-1].output.weight = nn.Parameter(tied.detach().clone(), tied.requires_grad)
    return row


@torch.no_grad()
def sum_tied_gradients(first: nn.Parameter, last: nn.Parameter) -> None:
    """Give both copies the sum of their gradients; call it between backward and optimizer step.

    Raises:
        ValueError: A copy has no gradient, or their shapes differ.
    """
    if first.shape != last.shape:
        raise ValueError(f"copies of one tensor have one shape; got {first.shape}, {last.shape}")
    for name, copied in (("first", first), ("last", last)):
        if copied.grad is None:
            raise ValueError(f"the {name} copy has no gradient: run the backward before")
    total = first.grad + last.grad.to(first.device)
    first.grad.copy_(total)
    last.grad.copy_(total)
