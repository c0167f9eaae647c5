"""Train the decoder on windows of a text, and evaluate it (page `a_transformer`)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

WARM_UP = 20  # steps in which the rate grows


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log(probability of the next token), in nats, from logits (N, T, vocabulary)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


next_token_loss.reduction = "mean"  # for `Pipeline`: over samples, since all have T places


def windows(tokens: Tensor, context: int, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets (N, context) from N positions of a text: the target is the next token."""
    places = starts[:, None] + torch.arange(context)
    return tokens[places], tokens[places + 1]


def train_decoder(
    step: Callable[[Tensor, Tensor], Tensor],
    parameters: list[nn.Parameter],
    tokens: Tensor,
    *,
    steps: int,
    context: int,
    batch_size: int = 32,
    rate: float = 3e-3,
    seed: int = 0,
) -> list[float]:
    """Train with AdamW on windows from random places; the rate warms up and falls to 0.

    Args:
        step: Forward and backward of inputs and targets, (batch_size, context); returns the loss.
            `Pipeline.step` with its loss function is one.
        parameters: What is trained.
        tokens: The text.
        steps: How many.
        context: Tokens in a row.
        batch_size: Windows in a step.
        rate: The highest learning rate.
        seed: Fixes which windows are taken.

    Returns:
        The loss of each step.

    Raises:
        ValueError: The text is shorter than a window and the token that follows it.
    """
    _check_length(tokens, context)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1, betas=(0.9, 0.98))
    losses = []
    for index in range(steps):
        fall = 0.5 + 0.5 * math.cos(math.pi * index / steps)
        [group] = optimizer.param_groups
        group["lr"] = rate * min(1.0, (index + 1) / WARM_UP) * fall
        starts = torch.randint(len(tokens) - context, (batch_size,), generator=generator)
        optimizer.zero_grad()
        losses.append(step(*windows(tokens, context, starts)).item())
        optimizer.step()
    return losses


def _check_length(tokens: Tensor, context: int) -> None:
    if len(tokens) <= context:
        raise ValueError(f"{len(tokens)} tokens hold no window of {context} and the next token")


def unsplit_step(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The `step` of a model in one piece."""

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        return loss.detach()

    return step


@torch.no_grad()
def text_loss(model: nn.Module, tokens: Tensor, context: int) -> float:
    """The loss over a text, in windows side by side; an incomplete last one is left out."""
    from mpcourse.training.loop import evaluation_mode  # here, for it brings torchvision

    _check_length(tokens, context)
    starts = torch.arange(0, len(tokens) - context, context)
    inputs, targets = windows(tokens, context, starts)
    with evaluation_mode(model):
        return next_token_loss(model(inputs), targets).item()
