"""Ways of training for tables: done to a model alone and to a split one, each has one effect.

`step(rows)` goes forward and backward through `net` with that many rows, and returns the loss.
"""

import torch
from torch import nn
from torch.nn.utils import prune


def clipped_groups(net, step):
    first, *others = net.parameters()
    groups = [{"params": [first], "lr": 0.5}, {"params": others, "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, foreach=False)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    norms = []
    for rows in (7, 4, 1):
        optimizer.zero_grad()
        step(rows)
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1))
        optimizer.step()
        scheduler.step()
    return norms


def zeros_kept(net, step):
    step(7)
    net.zero_grad(set_to_none=False)
    step(5)


def frozen_and_thawed(net, step):
    seen = []
    for parameter in net.parameters():
        parameter.requires_grad_(False)
        seen.append((step(5), parameter.grad is None))
        parameter.requires_grad_(True)
    return seen


def hooks_that_change_what_goes_through(net, step):
    inner = [module for module in net.modules() if isinstance(module, nn.Tanh)]
    inner[0].register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],))
    inner[-1].register_forward_hook(lambda _, inputs, output: 3 * output)
    inner[-1].register_full_backward_hook(lambda _, into, out_of: (5 * into[0],))
    return step(7)


def weight_normed(net, step):
    layer = next(module for module in net.modules() if isinstance(module, nn.Linear))
    nn.utils.parametrizations.weight_norm(layer)
    return step(7)


def pruned(net, step):
    layer = next(module for module in net.modules() if isinstance(module, nn.Linear))
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return step(7)


WAYS = [
    *(clipped_groups, zeros_kept, frozen_and_thawed, weight_normed, pruned),
    hooks_that_change_what_goes_through,
]
