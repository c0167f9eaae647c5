"""Copies fit, are counted by hand, and none that the page leaves out would be faster."""

import pytest
import torch

from mpcourse.capstone import copies
from mpcourse.capstone.copies import count_copies
from mpcourse.capstone.plans import (
    BLOCK_PRICE,
    block_work,
    fresh_bytes,
    gradient_bytes,
    pruned,
    saved_bytes,
)
from mpcourse.training.nets import deep_conv_net

IMAGE = torch.zeros(1, 1, 28, 28)
MIB = 2**20


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return pruned(deep_conv_net(), {f"block{number}": 0.5 for number in range(1, 5)})


def test_a_copy_is_counted_as_by_hand(net):
    [plain] = [c for c in count_copies(net, IMAGE, 1.7 * MIB) if (c.cuts, c.zero) == ((), 3)]
    numbers = sum(each.numel() for each in net.parameters())
    assert plain.size == 1  # 64 pieces
    one = saved_bytes(net, IMAGE) + gradient_bytes(net, IMAGE)
    assert plain.held_bytes == 8 * numbers + 3 * fresh_bytes(net) + one
    work = block_work(net, IMAGE)
    assert plain.step == pytest.approx(64 * (3 * sum(work) - work[0] + 18 * BLOCK_PRICE))
    assert plain.messages == 64 * 27


def test_segments_keep_inputs_and_do_forwards_twice(net):
    [again] = [c for c in count_copies(net, IMAGE, 1.75 * MIB) if (c.cuts, c.zero) == ((4, 6), 3)]
    with torch.no_grad():
        inputs = [IMAGE, net[:4](IMAGE), net[:6](IMAGE)]
    kept = inputs[0].nbytes + inputs[1].nbytes + saved_bytes(net[6:], inputs[2])
    kept += gradient_bytes(net[6:], inputs[2])
    numbers = sum(each.numel() for each in net.parameters())
    assert again.size == 4
    assert again.held_bytes == 8 * numbers + 3 * fresh_bytes(net) + 4 * kept
    work = block_work(net, IMAGE)
    twice = 64 * sum(work[:6]) + 16 * 6 * BLOCK_PRICE
    once = 64 * (3 * sum(work) - work[0]) + 16 * 18 * BLOCK_PRICE
    assert again.step == pytest.approx(once + twice)
    assert again.messages == 16 * (27 + 6)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_does_not_fit_is_not_there(net, zero):
    found = count_copies(net, IMAGE, 2.2 * MIB)
    assert {each.zero for each in found} == {1, 2, 3}
    assert all(each.held_bytes <= 2.2 * MIB for each in found)
    numbers = sum(each.numel() for each in net.parameters())
    room = 16 * numbers * copies.KEPT_STATE[zero]
    assert not [each for each in count_copies(net, IMAGE, room) if each.zero == zero]


def test_a_single_micro_batch_makes_no_gradient_beside_a_whole_one(net):
    numbers = sum(each.numel() for each in net.parameters())
    kept = saved_bytes(net, IMAGE) + gradient_bytes(net, IMAGE)
    for zero, bytes_each, whole in ((1, 12, 1), (2, 10, 2), (3, 8, 3)):
        need = bytes_each * numbers + 64 * kept + whole * fresh_bytes(net)
        for room, size in ((need, 64), (need - 1, 32)):
            found = count_copies(net, IMAGE, room)
            [plain] = [c for c in found if (c.cuts, c.zero) == ((), zero)]
            assert plain.size == size


def test_a_price_is_paid_by_every_block_of_every_piece(net):
    for priced, free in zip(
        *(count_copies(net, IMAGE, 1.5 * MIB, price=price) for price in (5.0, 0.0)), strict=True
    ):
        ways = 18 + max(priced.cuts, default=0)
        assert priced.step - free.step == pytest.approx(5.0 * ways * -(-64 // priced.size))


@pytest.mark.parametrize("mib", [1.65, 1.7, 1.75, 1.9, 2.4])
def test_more_segments_are_not_faster_in_the_rooms_of_the_page(net, mib, monkeypatch):
    def fastest():
        found = count_copies(net, IMAGE, mib * MIB)
        return [min(c.step + price * c.messages for c in found) for price in (0, 1, 8)]

    three = fastest()
    monkeypatch.setattr(copies, "MOST_CUTS", 4)
    assert fastest() == three
