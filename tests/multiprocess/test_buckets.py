"""Gradients averaged in buckets: the right averages, order and refusals."""

import copy

import pytest
import torch
from processes import printed_by
from torch import distributed, nn

from mpcourse.multiprocess import BucketedDataParallel, FullySharded, ShardedOptimizer


@pytest.fixture
def alone(tmp_path):
    """A process group of this process only: the hooks, without the waiting."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def small_net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def waits_for_the_same_gradients(wrapped):
    """As the mean over one process is."""
    wanted = [parameter.grad.clone() for parameter in wrapped.parameters()]
    wrapped.wait()
    torch.testing.assert_close([parameter.grad for parameter in wrapped.parameters()], wanted)


def test_the_last_layers_are_sent_first_and_a_bucket_holds_what_fits(alone):
    net = small_net()  # 12 + 4 and 8 + 2 numbers of 4 bytes
    names = {parameter: name for name, parameter in net.named_parameters()}
    wrapped = BucketedDataParallel(net, bucket_bytes=40)
    found = [[names[parameter] for parameter in bucket] for bucket in wrapped.buckets]
    assert found == [["2.bias", "2.weight"], ["0.bias"], ["0.weight"]]


def test_each_bucket_is_sent_while_gradients_are_still_to_come(alone, monkeypatch):
    net, happened, send = small_net(), [], distributed.all_reduce
    wrapped = BucketedDataParallel(net, bucket_bytes=40)
    for name, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: happened.append(name))

    def all_reduce(flat, **options):
        happened.append(flat.numel())
        return send(flat, **options)

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    wrapped(torch.randn(5, 3)).sum().backward()
    assert [sent for sent in happened if isinstance(sent, int)] == [10, 4, 12]
    assert happened.index(10) < happened.index("0.weight")
    assert happened.index(10) < happened.index("0.bias")
    waits_for_the_same_gradients(wrapped)


def test_a_frozen_parameter_is_neither_sent_nor_missed(alone):
    net = small_net()
    net[0].weight.requires_grad_(False)
    wrapped = BucketedDataParallel(net)
    with pytest.raises(RuntimeError, match=r"no gradient for 0\.bias, 2\.weight, 2\.bias:"):
        wrapped.wait()
    wrapped(torch.randn(5, 3)).sum().backward()
    wrapped.wait()
    assert net[0].weight.grad is None
    assert net[0].bias.grad is not None


def test_a_backward_after_a_backward_is_refused_and_the_next_step_goes_well(alone):
    wrapped = BucketedDataParallel(small_net())
    wrapped(torch.ones(1, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"a second backward before wait\(\)"):
        wrapped(torch.ones(1, 3)).sum().backward()
    wrapped.wait()
    wrapped.zero_grad()
    wrapped(torch.ones(1, 3)).sum().backward()
    waits_for_the_same_gradients(wrapped)


def wrapped(net, before=lambda net: None, after=lambda net: None):
    """The net, changed before and after it is wrapped."""
    before(net)
    made = BucketedDataParallel(net)
    after(net)
    return made


def freeze(net):
    net[0].requires_grad_(False)


def wrap_again(net):
    net.latest = [BucketedDataParallel(net)]


def shard(net):
    net.optimizer = ShardedOptimizer(net.parameters(), torch.optim.SGD)
    net.optimizer.shard_gradients()


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (
            lambda net: wrapped(net, freeze, nn.Module.requires_grad_),
            r"0\.weight, 0\.bias was not trained before: wrap the module again",
        ),
        (
            lambda net: wrapped(net, after=lambda net: net.__setitem__(2, nn.Linear(4, 2))),
            r"2\.weight, 2\.bias was not trained before",
        ),
        (lambda net: wrapped(net, after=freeze), r"no gradient for 0\.weight, 0\.bias"),
        (lambda net: copy.deepcopy(BucketedDataParallel(net)), r"no gradient for 0\.weight"),
        (lambda net: wrapped(net, after=wrap_again), r"no gradient for 0\.weight"),
        (lambda net: wrapped(net, after=shard), r"no gradient for 0\.weight"),
        (lambda net: wrapped(net, before=shard), r"no gradient for 0\.weight"),
        (lambda net: BucketedDataParallel(FullySharded(net)), "parts of a FullySharded module"),
    ],
)
def test_gradients_that_would_not_be_averaged_are_refused(alone, wrap, words):
    def step():
        wrapped = wrap(small_net())
        wrapped(torch.ones(1, 3)).sum().backward()
        wrapped.wait()

    with pytest.raises((RuntimeError, ValueError), match=words):
        step()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_gradient_with_a_graph_of_its_own_is_refused(alone):
    wrapped = BucketedDataParallel(small_net())
    with pytest.raises(RuntimeError, match="no second derivative"):
        wrapped(torch.ones(1, 3)).square().sum().backward(create_graph=True)


def test_a_module_that_is_wrapped_again_is_averaged_once(alone):
    net = nn.Sequential(nn.Embedding(5, 3, sparse=True), *small_net())
    BucketedDataParallel(net)
    types = [torch.float64, torch.bfloat16, torch.complex64]
    net[0].others = nn.ParameterList(torch.ones(n, dtype=t) for t in types for n in (0, 3))
    wrapped = BucketedDataParallel(net)
    assert [len({p.dtype for p in bucket}) for bucket in wrapped.buckets] == [1] * 5
    net.double()  # the weights' type changes, and with it that of the messages
    for _ in range(2):
        wrapped.zero_grad()
        others = sum((p * p.conj()).real.sum() for p in net[0].others)
        (wrapped(torch.tensor([1, 3])).sum() + others).backward()
        waits_for_the_same_gradients(wrapped)


SAME_AS_DDP = """
import copy, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from mpcourse.multiprocess import BucketedDataParallel
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(rank)
net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 16))
net[0].to(memory_format=torch.channels_last)
net.append(nn.Linear(16, 16))
net[4].weight = net[3].weight  # tied
net[4].bias.requires_grad_(False)
net.register_buffer("counted", torch.tensor(rank))
ours = BucketedDataParallel(copy.deepcopy(net), bucket_bytes=500)
theirs = DistributedDataParallel(copy.deepcopy(net), broadcast_buffers=False)
assert ours.module.counted == 0
both = [(m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)) for m in (ours, theirs)]
for step in range(4):
    rows = torch.randn(3 + rank, 2, 4, 4)
    for model, optimizer in both:
        optimizer.zero_grad()
        for part in rows.split(2):  # two backwards, so that gradients add up
            model(part).square().mean().backward()
            model.wait() if model is ours else None
        optimizer.step()
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    torch.testing.assert_close(*zip(*pairs))
print("equal", len(pairs))
distributed.barrier()
other = nn.Linear(2 + rank, 1)
try:
    BucketedDataParallel(other)
except ValueError as error:
    print(error)
distributed.barrier()
"""


@pytest.mark.slow
def test_buckets_of_our_own_train_as_ddp_does():
    lines = printed_by(SAME_AS_DDP, 2)
    assert lines[0] == lines[2] == "equal 7"
    assert lines[1] == lines[3]
    assert "rank 0 has ('weight', ((1, 2)" in lines[1]
    assert "where rank 1 has ('weight', ((1, 3)" in lines[1]


def test_a_bucket_of_no_bytes_is_refused(alone):
    with pytest.raises(ValueError, match="bucket_bytes is a whole number from 1; got 0"):
        BucketedDataParallel(small_net(), bucket_bytes=0)
