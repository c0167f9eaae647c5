"""Sharded state, gradients, parameters: equal to unsharded, counted in bytes, refused in words."""

import copy
import time

import pytest
import torch
from processes import printed_by
from sharded_kit import Kit, Module, averaged, close, same
from torch import nn
from torch.nn.functional import cross_entropy

from mpcourse.memory import ByteCounter
from mpcourse.multiprocess import (
    BucketedDataParallel,
    FullySharded,
    ShardedOptimizer,
    ranks_in_threads,
)
from mpcourse.multiprocess.shards import part_length
from mpcourse.transformer.messages import Counted

STEPS = 3
SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
OPTIMIZERS = [
    pytest.param(SGD, {"lr": 0.1}, id="sgd"),
    pytest.param(SGD, {"lr": 0.1, "momentum": 0.9}, id="momentum"),
    pytest.param(AdamW, {"lr": 1e-3, "eps": 1e-4}, id="adamw"),  # eps: no tiny root is divided by
]


class Odd(nn.Module):
    """Tied, frozen, unused and single numbers; an LSTM; a layer that reads another's weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.block = nn.TransformerEncoderLayer(6, 2, 7, dropout=0.0, batch_first=True)
        self.memory = nn.LSTM(6, 6, batch_first=True)
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.register_buffer("shift", torch.randn(6))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden, _ = self.memory(self.block(self.embedding(tokens)))
        return self.head(self.frozen(hidden) * self.scale + self.shift).flatten(0, 1)


torch.manual_seed(3)
ODD = Odd().double()
TOKENS = torch.randint(11, (12, 5), generator=torch.Generator().manual_seed(4))
TARGETS = torch.randint(11, (12, 5), generator=torch.Generator().manual_seed(5))


def loss_of(net):
    return lambda rows: cross_entropy(net(TOKENS[rows]), TARGETS[rows].flatten())


def trained(kit, optimizer_class, options, net=None):
    net = net or kit.net(ODD)
    optimizer = kit.optimizer(net.parameters(), optimizer_class, **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        kit.backward(net.parameters(), loss_of(net), torch.arange(12))
        optimizer.step()
    assert kit.stage < 2 or all(parameter.grad is None for parameter in net.parameters())
    return kit.ended(net, optimizer)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("optimizer_class", "options"), OPTIMIZERS)
@pytest.mark.parametrize(("kit", "stage"), [(Kit, 1), (Kit, 2), (Module, 0)])
def test_sharded_training_is_unsharded_training(kit, stage, optimizer_class, options, ranks):
    same(lambda kit: trained(kit, optimizer_class, options), kit, stage, ranks)


def test_weights_that_are_sent_alone_train_as_those_that_go_together(monkeypatch):
    monkeypatch.setattr("mpcourse.multiprocess.sharded_optimizer.ALONE_BYTES", 0)
    for ranks in (1, 2, 4):
        same(lambda kit: trained(kit, AdamW, {"lr": 1e-2}), stage=1, ranks=ranks)


SIZES = [(30, 50), (50, 70), (70, 10)]
NUMBERS = [n for rows, columns in SIZES for n in (rows * columns, columns)]


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(*size) for size in SIZES])


def held_by(counter):
    """What is held when gloo's threads have let go too, a little after a message has come."""
    time.sleep(0.1)
    return counter.live


def counted_step(stage, group):
    """Bytes after a backward and between two steps, and what one step sends."""
    torch.manual_seed(group.rank())
    rows = torch.randn(2, 30)
    with ByteCounter(rows) as counter:
        before = counter.live
        net = layers()
        if stage == 3:
            net = FullySharded(net, group=group)
            optimizer = AdamW(net.parameters())
        else:
            optimizer = ShardedOptimizer(net.parameters(), AdamW, group=group)
        if stage == 2:
            optimizer.shard_gradients()
        for _ in range(2):
            optimizer.zero_grad()
            between = held_by(counter) - before
            with Counted() as messages:
                net(rows).sum().backward()
                if stage == 3:
                    net.wait()
                if stage == 1:
                    averaged(net.parameters(), group)
                if stage == 2:
                    optimizer._averages.settle()
                after_backward = held_by(counter) - before
                optimizer.step()
    return between, after_backward, messages.sent(group.size())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bytes_of_a_rank_are_as_predicted(stage, ranks):
    whole, part = sum(NUMBERS), sum(part_length(n, ranks) for n in NUMBERS)
    steps = 4 * len(NUMBERS)  # Adam counts for each parameter
    weights, gradients = (whole if stage < 3 else part), (whole if stage < 2 else part)
    # out of a reduce-scatter come full parts; an all-reduce leaves the whole
    results = ranks_in_threads(lambda group: counted_step(stage, group), ranks)
    between, after_backward, _ = results[0]
    assert between == 4 * (weights + 2 * part) + steps
    assert after_backward == between + 4 * gradients


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_bytes_sent_are_as_predicted(ranks):
    part = 4 * sum(part_length(n, ranks) for n in NUMBERS)
    others = ranks - 1
    reduced = 2 * 4 * sum(NUMBERS) * others / ranks  # an all-reduce is not padded
    # in the backward: the weights that carry gradients on; not the first, and no biases
    again = 4 * sum(part_length(rows * columns, ranks) for rows, columns in SIZES[1:])
    wanted = {1: reduced + part * others, 2: 2 * part * others, 3: (2 * part + again) * others}
    for stage, bytes_sent in wanted.items():
        results = ranks_in_threads(lambda group, stage=stage: counted_step(stage, group), ranks)
        assert {sent for _, _, sent in results} == {bytes_sent}


def test_no_more_than_a_few_whole_weights_are_there_at_once():
    """Twenty layers, two ranks: half of everything, and wholes of the layers at work."""

    def program(group):
        torch.manual_seed(0)
        deep = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(20)])
        net, rows = FullySharded(deep, group=group), torch.randn(1, 100)
        with ByteCounter(list(net.parameters())) as counter:
            net(rows).sum().backward()
            net.wait()
        return counter.peak / 40_000  # in layers

    for peak in ranks_in_threads(program, 2):
        # 10 of weights, 10 of gradients; a weight, its gradient, two more on their way, a part
        assert 20 <= peak < 25


def test_parts_stay_in_float32_whatever_it_computes_in():
    def program(group):
        seen = []
        net = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
        net[0].register_forward_hook(lambda m, i, o: seen.append((i[0].dtype, o.dtype)))
        sharded = FullySharded(net, torch.bfloat16, group=group)
        sharded(torch.randn(4, 5)).float().sum().backward()
        sharded.wait()
        kept = {t.dtype for p in sharded.parameters() for t in (p, p.grad)}
        return seen, kept, {value.dtype for value in sharded.full_parameters().values()}

    narrow, wide = torch.bfloat16, torch.float32
    for result in ranks_in_threads(program, 2):
        assert result == ([(narrow, narrow)], {wide}, {wide})


def test_weights_and_buffers_are_those_of_rank_0_and_names_stay():
    nets = [copy.deepcopy(ODD) for _ in range(2)]
    with torch.no_grad():
        for tensor in [*nets[1].parameters(), *nets[1].buffers()]:
            tensor += 1

    def program(group):
        sharded = FullySharded(nets[group.rank()], group=group)
        return sharded.full_parameters(), dict(sharded.module.named_buffers())

    for parameters, buffers in ranks_in_threads(program, 2):
        close(parameters, dict(ODD.named_parameters()))
        close(buffers, dict(ODD.named_buffers()))


def test_one_rank_may_print_and_read_without_the_others():
    def program(group):
        sharded = FullySharded(nn.Linear(3, 2), group=group)
        if group.rank() == 0:
            assert "in_features=3" in repr(sharded)
            assert sharded.module.weight.shape == (3,)
        return True

    assert ranks_in_threads(program, 2, timeout_s=5) == [True, True]


def test_a_refused_group_leaves_the_optimizer_as_it_was():
    def program(group):
        optimizer = ShardedOptimizer([nn.Parameter(torch.ones(3))], SGD, group=group, lr=0.1)
        gaps = nn.Parameter(torch.ones(4, 4)[:, ::2])
        with pytest.raises(ValueError, match="has gaps in memory"):
            optimizer.add_param_group({"params": [gaps]})
        return len(optimizer.param_groups)

    assert ranks_in_threads(program, 2) == [1, 1]


def test_without_a_process_group_nothing_is_made():
    for make in (FullySharded, BucketedDataParallel, lambda net: ShardedOptimizer(net, SGD)):
        with pytest.raises(RuntimeError, match="init_process_group first"):
            make(nn.ParameterList([torch.ones(2)]))


def test_after_a_failed_forward_or_backward_training_goes_on():
    def program(group):
        kit = Module(group)
        sharded = kit.net(ODD)
        with pytest.raises(IndexError):
            sharded(torch.full((1, 2), 99))
        handle = sharded.module.memory.register_full_backward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(sharded)([0]).backward()
        handle.remove()
        with pytest.raises(RuntimeError, match=r"backward has failed: call wait\(\), and drop"):
            sharded(TOKENS)
        sharded.wait()
        return trained(kit, SGD, {"lr": 0.1}, sharded)

    for found in ranks_in_threads(program, 2, timeout_s=5):
        close(found, trained(Module(), SGD, {"lr": 0.1}))


IN_PROCESSES = """
import copy
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import AdamW
from mpcourse.multiprocess import FullySharded, ShardedOptimizer
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
net = nn.Sequential(*[part for _ in range(5) for part in (nn.Linear(33, 33), nn.Tanh())])
rows = torch.randn(16, 33)

def trained(net, optimizer, rows, finish=lambda: None):
    for _ in range(3):
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        finish()
        optimizer.step()

def averaged(net):
    for parameter in net.parameters():
        distributed.all_reduce(parameter.grad)
        parameter.grad /= 2

alone = copy.deepcopy(net)
trained(alone, AdamW(alone.parameters(), lr=1e-3), rows)
mine = rows[8 * rank : 8 * rank + 8]
found = {}
for name, shard in (
    ("sharded optimizer", ShardedOptimizer), ("ZeroRedundancyOptimizer", ZeroRedundancyOptimizer)
):
    copied = copy.deepcopy(net)
    optimizer = shard(copied.parameters(), AdamW, lr=1e-3)
    trained(copied, optimizer, mine, lambda: averaged(copied))
    found[name] = dict(copied.named_parameters())
sharded = FullySharded(copy.deepcopy(net))
trained(sharded, AdamW(sharded.parameters(), lr=1e-3), mine, sharded.wait)
found["fully sharded"] = sharded.full_parameters()
torchs = fully_shard(copy.deepcopy(net))
trained(torchs, AdamW(torchs.parameters(), lr=1e-3), mine)
found["fully_shard"] = {name: each.full_tensor() for name, each in torchs.named_parameters()}
for way, parameters in found.items():
    for name, wanted in alone.named_parameters():
        assert (parameters[name] - wanted).abs().max() < 1e-6, (way, name)
    print(way)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_in_processes_it_is_what_torch_shards():
    ways = ["sharded optimizer", "ZeroRedundancyOptimizer", "fully sharded", "fully_shard"]
    assert printed_by(IN_PROCESSES, 2) == 2 * ways
