import itertools

import pytest
import torch
from cut_decoders import Place, check_gradients, gradients_as_weights, random_decoder
from torch import distributed
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from mpcourse.memory import ByteCounter, saved_for_backward
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.multiprocess.scripts import Scripts
from mpcourse.transformer import (
    Counted,
    cut_tokens,
    merge,
    own_places,
    ring_attention,
    sum_whole_gradients,
    ulysses_attention,
)
from mpcourse.transformer.ring_attention import _tiles


def drawn(tokens: int, heads: int = 2, key_heads: int = 2, columns: int = 5, scale: float = 1.0):
    """Query, key, value, and a gradient of the output."""
    draw = torch.Generator().manual_seed(tokens)
    sizes = heads, key_heads, key_heads, heads
    tensors = [torch.randn(2, n, tokens, columns, generator=draw).double() for n in sizes]
    return [scale * tensors[0], *tensors[1:]]


def differentiated(attention, leaves, gradient, **options):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    output = attention(*leaves, **options)
    output.backward(gradient)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def check_ring(ranks: int, tensors, attention=ring_attention, *, causal: bool, **options):
    """Output and gradients on each rank are its tokens of the whole ones."""
    *leaves, gradient = tensors
    given = {"is_causal": causal, "enable_gqa": True}
    whole = differentiated(scaled_dot_product_attention, leaves, gradient, **given)

    def program(group):
        own = own_places(leaves[0].shape[2], group, zigzag=options.get("zigzag", False))
        mine = [each[:, :, own] for each in tensors]
        given = {"group": group, "causal": causal, **options}
        found = differentiated(attention, mine[:-1], mine[-1], **given)
        for each, right in zip(found, whole, strict=True):
            torch.testing.assert_close(each, right[:, :, own], rtol=0, atol=1e-10)

    ranks_in_threads(program, ranks)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("zigzag", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_ring_is_whole_attention(ranks: int, zigzag: bool, causal: bool):
    pieces = 2 * ranks if zigzag else ranks
    for each, tile in itertools.product((1, 7), (1, 4, 256)):
        check_ring(ranks, drawn(each * pieces), causal=causal, zigzag=zigzag, tile=tile)
    for heads, key_heads in ((1, 1), (3, 1), (6, 3)):
        tensors = drawn(3 * pieces, heads, key_heads, columns=1, scale=60.0)
        check_ring(ranks, tensors, causal=causal, zigzag=zigzag, tile=2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("ranks", "heads", "key_heads"), [(1, 3, 3), (2, 4, 2), (3, 3, 3)])
def test_tokens_traded_for_heads_are_whole_attention(ranks, heads, key_heads, causal):
    tensors = drawn(5 * ranks, heads, key_heads)
    check_ring(ranks, tensors, ulysses_attention, causal=causal)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_ring_of_short_numbers_is_as_near_as_one_device(ranks: int, dtype: torch.dtype):
    short = [each.to(dtype) for each in drawn(512, columns=16)]
    exact = differentiated(
        scaled_dot_product_attention,
        [each.double() for each in short[:-1]],
        short[-1].double(),
        is_causal=True,
    )
    one = differentiated(scaled_dot_product_attention, short[:-1], short[-1], is_causal=True)

    def program(group):
        own = own_places(512, group, zigzag=True)
        mine = [each[:, :, own] for each in short]
        return own, differentiated(
            ring_attention, mine[:-1], mine[-1], group=group, zigzag=True, tile=32
        )

    found = [torch.empty_like(each) for each in one]
    for own, parts in ranks_in_threads(program, ranks):
        for whole, part in zip(found, parts, strict=True):
            assert part.dtype == dtype
            whole[:, :, own] = part
    for ring, alone, right in zip(found, one, exact, strict=True):
        assert (ring - right).norm() <= 1.2 * (alone - right).norm()


def test_parts_merge_to_the_whole_in_any_order():
    query, key, value, _ = drawn(12, scale=300.0)
    whole = scaled_dot_product_attention(query, key, value)

    def part(places):
        scores = query @ key[:, :, places].mT / 5**0.5
        return scores.softmax(-1) @ value[:, :, places], scores.logsumexp(-1, keepdim=True)

    for order in itertools.permutations([slice(0, 1), slice(1, 7), slice(7, 12)]):
        first, second, third = map(part, order)
        for found, _ in (merge(merge(first, second), third), merge(first, merge(second, third))):
            torch.testing.assert_close(found, whole, rtol=0, atol=1e-10)


def test_in_zigzag_order_all_ranks_make_as_many_products():
    for ranks in (1, 2, 3, 5):
        for zigzag in (True, False):
            pieces = 2 * ranks
            places = [
                own_places(4 * pieces, Place(rank, ranks), zigzag=zigzag) for rank in range(ranks)
            ]
            made = [
                sum(len([*_tiles(places, rank, rank - step, True, 4)]) for step in range(ranks))
                for rank in range(ranks)
            ]
            plain = [4 * rank + 3 for rank in range(ranks)]
            assert made == ([pieces + 1] * ranks if zigzag else plain)


def test_what_cannot_be_right_is_refused_before_a_message_is_sent():
    """`Place` is no group: whoever sends to it fails in another way."""
    three, two = Place(1, 3), Place(1, 2)
    refused = [
        (lambda: own_places(7, three), "3 ranks cut 3 equal pieces; got 7 tokens"),
        (lambda: own_places(9, three, zigzag=True), "3 ranks in zigzag order cut 6 equal pieces"),
        (lambda: own_places(0, three), "got 0 tokens"),
        (lambda: ring_attention(*drawn(3)[:3], two, zigzag=True), "cut 4 equal pieces; got 6"),
        (lambda: ring_attention(*drawn(4)[:3], two, tile=0), "tile is 0"),
        (lambda: ring_attention(*drawn(4, 3, 2)[:3], two), "key heads divide heads"),
        (lambda: ring_attention(drawn(4)[0], *drawn(5)[1:3], two), "key heads divide heads"),
        (lambda: ulysses_attention(*drawn(4, 4, 4)[:3], three), "3 ranks do not divide 4 heads"),
        (lambda: ulysses_attention(*drawn(4, 4, 1)[:3], two), "do not divide 1 heads of keys"),
        (lambda: cut_tokens(random_decoder(), three)(torch.zeros(1, 4).long()), "context"),
    ]
    for refuse, words in refused:
        with pytest.raises(ValueError, match=words):
            refuse()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("zigzag", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_decoder_of_cut_tokens_has_the_loss_and_gradients_of_the_whole(ranks, zigzag, tied):
    model = random_decoder(tied=tied)
    tokens, targets = torch.randint(24, (2, 3, 8))
    targets[0, :5] = -100  # ignored, on some ranks more than on others
    options = {"ignore_index": -100, "reduction": "sum"}
    whole = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    whole.backward()

    def program(group):
        own, part = own_places(8, group, zigzag=zigzag), cut_tokens(model, group, zigzag=zigzag)
        logits = part(tokens[:, own]).flatten(0, 1)
        loss = cross_entropy(logits, targets[:, own].flatten(), **options)
        loss = loss / (targets >= 0).sum()
        loss.backward()
        sum_whole_gradients(part, group)
        total = loss.detach().clone()
        distributed.all_reduce(total, group=group)
        torch.testing.assert_close(total, whole.detach(), rtol=0, atol=1e-12)
        check_gradients(part, gradients_as_weights(model))

    ranks_in_threads(program, ranks)


def test_bytes_sent_and_held():
    """A ring sends (n - 1) / n of keys and values forward, that and all gradients backward."""
    tokens, tensors = 48, drawn(48, key_heads=1)
    pair = 2 * tensors[1].nbytes

    def program(group):
        n, own = group.size(), own_places(tokens, group)
        mine = [each[:, :, own].clone() for each in tensors]
        leaves = [each.requires_grad_() for each in mine[:3]]
        with Counted() as counted, ByteCounter(mine) as live, saved_for_backward() as saved:
            output = ring_attention(*leaves, group, tile=2)
            forward = counted.sent(n)
            output.backward(mine[3])
        assert (forward, counted.sent(n)) == pytest.approx(
            (pair * (n - 1) / n, pair * (3 * n - 2) / n if n > 1 else 0)
        )
        return live.peak, saved.total

    one = ranks_in_threads(program, 1)[0]
    for ranks in (2, 4):
        for peak, saved in ranks_in_threads(program, ranks):
            assert saved * ranks == one[1]
            assert peak * ranks < 1.7 * one[0]  # with what is arriving

    def traded(group):
        with Counted() as counted:
            ulysses_attention(*(t[:, :, own_places(tokens, group)] for t in tensors[:3]), group)
        return counted.sent(2)

    tensors = drawn(48)
    assert ranks_in_threads(traded, 2) == [4 * tensors[0].nbytes / 2 / 2] * 2


DIES = """
import os, sys, time, torch, traceback
from torch import distributed
from mpcourse.transformer import ring_attention

distributed.init_process_group("gloo")
query, key, value = (t.requires_grad_() for t in torch.randn(3, 1, 2, 4, 5).unbind())
output = ring_attention(query, key, value)
if distributed.get_rank() == 2:
    print("ArithmeticError: rank 2, on purpose", file=sys.stderr)
    os._exit(1)
try:
    output.sum().backward()
except RuntimeError:  # the connection is closed: this came later, and is not the cause
    traceback.print_exc()
    time.sleep(100)
"""


@pytest.mark.slow
def test_a_process_that_dies_ends_the_others_and_is_named():
    """They wait for its block; the group's own timeout would be half an hour."""
    scripts = Scripts()
    scripts.write("dies.py", DIES)
    # torchrun looks late, when the others have raised, too
    line = "torchrun --standalone --monitor-interval 3 --nproc-per-node 3 dies.py"
    with pytest.raises(RuntimeError, match=r"^ArithmeticError: rank 2, on purpose"):
        scripts.run(line, time_limit_s=60)
