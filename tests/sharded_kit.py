"""Torch's own way in one process and the sharded one on ranks, so that a call is written once."""

import copy

import torch
from torch import distributed, nn
from torch.optim import SGD
from torch.utils._pytree import tree_flatten_with_path

from mpcourse.multiprocess import FullySharded, ShardedOptimizer, ranks_in_threads

MOMENTUM = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.3}
ROWS = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
torch.manual_seed(0)
# parts of unequal length, an empty one
NET = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def averaged(parameters, group):
    for parameter in parameters:
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad, group=group)
            parameter.grad /= group.size()


def squares(net):
    return lambda rows: net(rows).square().mean()


class Kit:
    """What differs between torch's own way and a sharded one."""

    rows = ROWS

    def __init__(self, group=None, stage=0):
        self.group, self.stage = group, stage

    def net(self, like=NET):
        return copy.deepcopy(like)

    def optimizer(self, params, kind=SGD, **options):
        if not self.stage:
            return kind(params, **options)
        made = ShardedOptimizer(params, kind, group=self.group, **options)
        if self.stage == 2:
            made.shard_gradients()
        return made

    def begin(self):
        net = self.net()
        return net, self.optimizer(net.parameters(), **MOMENTUM)

    def backward(self, parameters, loss, rows=None):
        """The loss of all rows, or of this rank's, averaged."""
        rows = self.rows if rows is None else rows
        if self.group:
            rows = rows[self.group.rank() :: self.group.size()]
        loss(rows).backward()
        if self.stage == 1:
            averaged(parameters, self.group)

    def train(self, net, optimizer, steps=2, after=lambda: None, **how):
        for _ in range(steps):
            optimizer.zero_grad(**how)
            self.backward(net.parameters(), squares(net))
            optimizer.step()
            after()

    def clip(self, net, optimizer, max_norm):
        if self.stage:
            return optimizer.clip_grad_norm_(max_norm)
        return nn.utils.clip_grad_norm_(net.parameters(), max_norm)

    def ended(self, net, optimizer):
        return {name: p.detach() for name, p in net.named_parameters()}, optimizer.state_dict()


class Tied(nn.Module):
    """One weight under two names, buffers, and a parameter of one number."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens)) * self.scale)


TIED = Tied().double().eval()
TOKENS = torch.tensor([3, 0, 6, 3, 1, 2])


class Module(Kit):
    """The module itself, or `FullySharded` of it."""

    rows = TOKENS

    def net(self, like=TIED):
        net = copy.deepcopy(like)
        return FullySharded(net, group=self.group) if self.group else net

    def inner(self, net):
        return net.module if self.group else net

    def clip(self, net, optimizer, max_norm):
        if self.group:
            return net.clip_grad_norm_(max_norm)
        return nn.utils.clip_grad_norm_(net.parameters(), max_norm)

    def ended(self, net, optimizer):
        return self.inner(net).state_dict()


def same(call, kit=Kit, stage=0, ranks=2):
    """What a call gives with torch's class, each rank gives with ours."""
    wanted = call(kit())
    for found in ranks_in_threads(lambda group: call(kit(group, stage)), ranks, timeout_s=10):
        close(found, wanted)


def close(found, wanted):
    """Tensors and numbers nearly, all else exactly; dictionaries in any order."""
    found, wanted = (dict(tree_flatten_with_path(each)[0]) for each in (found, wanted))
    assert found.keys() == wanted.keys()
    for path, leaf in wanted.items():
        if isinstance(leaf, torch.Tensor | float):
            torch.testing.assert_close(found[path], leaf, rtol=1e-9, atol=1e-11)
        else:
            assert found[path] == leaf, path
