"""All-reduce by hand, in buckets and by DDP: the right sums, bytes and gradients."""

import pytest
import torch
from torch import distributed, nn

from mpcourse.multiprocess import BucketedDataParallel, launch
from mpcourse.multiprocess.buckets import BucketedGradients
from mpcourse.multiprocess.collectives import all_reduce_ring
from mpcourse.multiprocess.ddp import digest
from mpcourse.multiprocess.scripts import Scripts
from mpcourse.training.nets import conv_net

SIZES = [0, 2, 7, 3000]  # fewer numbers than ranks, a rest, as many for each


@pytest.fixture
def alone(tmp_path):
    """A process group of this process only: the hooks, without the waiting."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def small_net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_the_last_layers_are_sent_first_and_a_bucket_holds_what_fits(alone):
    net = small_net()  # 12 + 4 and 8 + 2 numbers of 4 bytes
    names = {parameter: name for name, parameter in net.named_parameters()}
    bucketed = BucketedGradients(net, bucket_bytes=40)
    found = [[names[parameter] for parameter in bucket] for bucket in bucketed.buckets]
    assert found == [["2.bias", "2.weight"], ["0.bias"], ["0.weight"]]


def test_each_bucket_is_sent_while_gradients_are_still_to_come(alone):
    net = small_net()
    bucketed = BucketedGradients(net, bucket_bytes=40)
    net(torch.randn(5, 3)).sum().backward()
    wanted = [parameter.grad.clone() for parameter in net.parameters()]
    bucketed.wait()
    assert bucketed.missing[0] == 2
    assert bucketed.missing[-1] == 0
    torch.testing.assert_close([parameter.grad for parameter in net.parameters()], wanted)
    bucketed.remove()


def test_a_parameter_without_a_gradient_is_named(alone):
    net = small_net()
    bucketed = BucketedGradients(net, bucket_bytes=1)
    net[2](torch.randn(5, 4)).sum().backward()
    with pytest.raises(RuntimeError, match=r"no gradient for 0\.weight, 0\.bias"):
        bucketed.wait()


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
    wanted = [parameter.grad.clone() for parameter in wrapped.parameters()]
    wrapped.wait()
    torch.testing.assert_close([parameter.grad for parameter in wrapped.parameters()], wanted)


def test_without_a_process_group_nothing_is_wrapped():
    with pytest.raises(RuntimeError, match="init_process_group first"):
        BucketedDataParallel(small_net())


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
def test_buckets_of_our_own_train_as_ddp_does(capsys):
    scripts = Scripts()
    scripts.write("same.py", SAME_AS_DDP)
    scripts.run("torchrun --standalone --nproc-per-node 2 same.py")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[2] == "equal 7"
    assert lines[1] == lines[3]
    assert "rank 0 has ('weight', ((1, 2)" in lines[1]
    assert "where rank 1 has ('weight', ((1, 3)" in lines[1]


def test_wrong_sizes_and_forms_are_refused(alone):
    with pytest.raises(ValueError, match="bucket_bytes is a whole number from 1; got 0"):
        BucketedGradients(small_net(), bucket_bytes=0)
    with pytest.raises(ValueError, match="contiguous"):
        all_reduce_ring(torch.ones(2, 3).t())


def test_a_digest_tells_weights_apart():
    net = small_net()
    before = digest(net)
    assert digest(net) == before
    with torch.no_grad():
        net[0].bias[0] += 1e-6
    assert digest(net) != before


@pytest.fixture(scope="module")
def sums():
    return launch("all-reduce", processes=3, numbers=SIZES, repeats=1, on_line=None).results


@pytest.mark.slow
def test_every_way_gives_every_rank_the_sum(sums):
    rows = [row for result in sums for row in result["rows"]]
    assert len(rows) == 3 * 3 * len(SIZES)
    assert max(row["error"] for row in rows) < 1e-5


@pytest.mark.slow
def test_a_ring_spreads_the_bytes_that_a_star_puts_on_one_rank(sums):
    large = [[row for row in result["rows"] if row["bytes"] == 12000] for result in sums]
    sent = [{row["way"]: (row["sent"] or 0) / 12000 for row in rows} for rows in large]
    assert [row["star"] for row in sent] == [2, 1, 1]
    assert [row["ring"] for row in sent] == pytest.approx([4 / 3] * 3)


@pytest.mark.slow
def test_the_gradients_of_all_ways_are_those_of_one_process():
    results = launch("gradients", repeats=2, on_line=None).results
    before, after = zip(*(result["digests"] for result in results), strict=True)
    assert (len(set(before)), len(set(after))) == (2, 1)  # it is the broadcast that makes them one
    for result in results:
        assert set(result["differences"]) == {"star", "ring", "torch", "buckets", "ddp"}
        assert max(result["differences"].values()) < 1e-6 < result["largest"]
        assert result["missing"] == sorted(result["missing"], reverse=True)
        assert result["missing"][0] > 0
        assert result["missing"][-1] == 0


@pytest.mark.slow
def test_ranks_train_on_other_samples_and_end_with_the_same_weights():
    options = {"samples": 128, "batch_size": 16, "epochs": 1, "test_samples": 50}
    first, second = launch("ddp", on_line=None, **options).results
    assert sorted(first["seen"] + second["seen"]) == list(range(128))
    assert first["losses"] != second["losses"]
    assert first["digest"] == second["digest"] == digest_of(first["state"])
    assert 0 <= first["accuracy"] <= 1
    assert min(first["seconds"], second["seconds"]) > 0


def digest_of(state):
    net = conv_net()
    net.load_state_dict(state)
    return digest(net)
