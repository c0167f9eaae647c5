"""Layers cut over ranks are the uncut ones, forward and backward; what does not fit is said."""

import pytest
import torch
from torch import nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import (
    ColumnParallelLinear,
    Counted,
    Message,
    ParallelDropout,
    RowParallelLinear,
    copy_to_ranks,
    own_part,
    reduce_from_ranks,
)

N, T, WIDTH, INNER = 2, 8, 6, 12
RANKS = pytest.mark.parametrize("ranks", [1, 2, 4])
SEQUENCE = pytest.mark.parametrize("sequence", [False, True])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert wanted.abs().max() > 1e-3  # zeros agree with anything
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@SEQUENCE
@RANKS
def test_an_mlp_of_a_column_and_a_row_layer_is_the_uncut_one(ranks: int, sequence: bool):
    up, down = nn.Linear(WIDTH, INNER).double(), nn.Linear(INNER, WIDTH).double()
    x = torch.randn(N, T, WIDTH).double().requires_grad_()
    seed_gradient = torch.randn(N, T, WIDTH).double()
    wanted = down(nn.functional.gelu(up(x)))
    wanted.backward(seed_gradient)

    def program(group):
        mine = own_part(T, "tokens", group) if sequence else slice(T)
        given = x.detach()[:, mine].clone().requires_grad_()
        first = ColumnParallelLinear.of(up, group, sequence=sequence)
        second = RowParallelLinear.of(down, group, sequence=sequence)
        with Counted() as counted:
            output = second(nn.functional.gelu(first(given)))
            output.backward(seed_gradient[:, mine])
        near(output, wanted[:, mine])
        near(given.grad, x.grad[:, mine])
        rows = own_part(INNER, "inner", group)
        near(first.weight.grad, up.weight.grad[rows])
        near(first.bias.grad, up.bias.grad[rows])
        near(second.weight.grad, down.weight.grad[:, rows])
        return second.bias.grad, counted.messages

    results = ranks_in_threads(program, ranks)
    biases = [bias for bias, _ in results]
    for bias in [sum(biases)] if sequence else biases:
        near(bias, down.bias.grad)
    kinds = ["all-gather", "reduce-scatter"] if sequence else ["all-reduce"]
    messages = 2 * [Message(kind, N * T * WIDTH * 8) for kind in kinds] if ranks > 1 else []
    assert all(sent == messages for _, sent in results)


@RANKS
def test_layers_made_from_one_seed_are_parts_of_one_layer(ranks: int):
    torch.manual_seed(3)
    whole = nn.Linear(WIDTH, INNER)
    made = []
    for rank in range(ranks):  # in turn: threads share the random numbers
        group = _Place(rank, ranks)
        torch.manual_seed(3)
        made.append(ColumnParallelLinear(WIDTH, INNER, group=group))
    assert torch.equal(torch.cat([part.weight for part in made]), whole.weight)
    assert torch.equal(torch.cat([part.bias for part in made]), whole.bias)
    torch.manual_seed(3)
    whole, made = nn.Linear(INNER, WIDTH), []
    for rank in range(ranks):
        torch.manual_seed(3)
        made.append(RowParallelLinear(INNER, WIDTH, group=_Place(rank, ranks)))
    assert torch.equal(torch.cat([part.weight for part in made], dim=1), whole.weight)
    assert all(torch.equal(part.bias, whole.bias) for part in made)


class _Place:
    """A place among ranks that send nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = lambda: rank, lambda: size


@SEQUENCE
def test_the_ways_in_and_out_are_each_others_backward(sequence: bool):
    """<f(x), y>, summed over ranks, equals <x, g(y)>."""

    def program(group):
        draw = torch.Generator().manual_seed(group.rank() if sequence else 0)
        own = T // group.size() if sequence else T
        x = torch.randn(N, own, WIDTH, generator=draw).double().requires_grad_()
        draw = torch.Generator().manual_seed(10 + group.rank())
        y = torch.randn(N, T, WIDTH, generator=draw).double()
        entered = copy_to_ranks(x, group, sequence=sequence)
        (back,) = torch.autograd.grad(entered, x, y)
        assert torch.equal(back, reduce_from_ranks(y, group, sequence=sequence))
        z = torch.randn(N, own, WIDTH, generator=draw).double()
        y.requires_grad_()
        (back,) = torch.autograd.grad(reduce_from_ranks(y, group, sequence=sequence), y, z)
        assert torch.equal(back, copy_to_ranks(z, group, sequence=sequence))
        summed = reduce_from_ranks(y, group, sequence=sequence)
        return (entered * y).sum().item(), (x * summed).sum().item()

    left, right = zip(*ranks_in_threads(program, 2), strict=True)
    assert sum(left) == pytest.approx(sum(right) if sequence else right[0], rel=1e-12)


def test_the_sum_does_not_write_into_what_it_is_given():
    def program(group):
        x = torch.ones(1, 2, 3)
        return reduce_from_ranks(x, group).sum().item(), x.sum().item()

    assert ranks_in_threads(program, 2) == [(12, 6), (12, 6)]


@pytest.mark.parametrize("layer", [ColumnParallelLinear, RowParallelLinear])
def test_ranks_that_do_not_divide_a_layer_are_refused(layer: type):
    sizes = (6, 8) if layer is ColumnParallelLinear else (8, 6)
    what = "outputs" if layer is ColumnParallelLinear else "inputs"
    with pytest.raises(ValueError, match=f"3 ranks do not divide 8 {what}"):
        layer(*sizes, group=_Place(0, 3))
    with pytest.raises(ValueError, match="2 ranks do not divide 5 tokens"):
        reduce_from_ranks(torch.ones(1, 5, 3), _Place(0, 2), sequence=True)


def test_dropout_is_the_same_where_the_tensor_is_and_else_each_rank_s_own():
    def drawn(sequence: bool) -> list[torch.Tensor]:
        places = [_Place(rank, 2) for rank in range(2)]
        layers = [ParallelDropout(0.5, place, sequence=sequence, seed=1) for place in places]
        return [layer(torch.ones(4, 64)) for layer in layers]

    same, own = drawn(False), drawn(True)
    assert torch.equal(*same)
    assert not torch.equal(*own)
    assert set(same[0].unique().tolist()) == {0.0, 2.0}
    layer = ParallelDropout(0.5, _Place(0, 2), seed=1)
    assert not torch.equal(layer(torch.ones(99)), layer(torch.ones(99)))  # anew in each step
    assert torch.equal(layer.eval()(torch.ones(99)), torch.ones(99))
    assert not torch.equal(same[0], ParallelDropout(0.5, _Place(0, 2), seed=2)(torch.ones(4, 64)))
