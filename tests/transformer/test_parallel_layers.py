"""Layers cut over ranks are the uncut ones, forward and backward; what does not fit is said."""

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from cut_decoders import Place
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from mpcourse.memory import recomputed
from mpcourse.multiprocess import ranks_in_threads
from mpcourse.pipeline import ReproducibleDropout
from mpcourse.transformer import (
    ColumnParallelLinear,
    ParallelDropout,
    RowParallelLinear,
    VocabParallelEmbedding,
    own_part,
    reduce_from_ranks,
)

N, T, WIDTH, INNER = 2, 8, 6, 12
RANKS = pytest.mark.parametrize("ranks", [1, 2, 4])
SEQUENCE = pytest.mark.parametrize("sequence", [False, True])


def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert wanted.abs().max() > 1e-3  # zeros agree with anything
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layer", [ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding])
def test_a_layer_that_is_drawn_is_the_first_ranks(layer: type, monkeypatch):
    whole = nn.Embedding if layer is VocabParallelEmbedding else nn.Linear
    torch.manual_seed(3)
    wanted = whole(INNER, INNER).weight
    torch.manual_seed(3)
    part = layer(INNER, INNER, group=Place(0, 1))
    assert torch.equal(part.weight, wanted)
    with pytest.raises(RuntimeError, match="is a part: reset the whole layer, then cut it"):
        part.reset_parameters()

    def draw(drawn: nn.Module) -> None:
        rank = int(threading.current_thread().name.removeprefix("rank "))
        for parameter in drawn.parameters():
            nn.init.constant_(parameter, 1 + rank)

    monkeypatch.setattr(whole, "reset_parameters", draw)
    parts = ranks_in_threads(lambda g: [*layer(INNER, INNER, group=g).parameters()], 2)
    assert all((parameter == 1).all() for part in parts for parameter in part)


def test_the_sum_does_not_write_into_what_it_is_given():
    def program(group):
        x = torch.ones(1, 2, 3)
        return reduce_from_ranks(x, group).sum().item(), x.sum().item()

    assert ranks_in_threads(program, 2) == [(12, 6), (12, 6)]


@pytest.mark.parametrize(
    ("layer", "sizes", "problem"),
    [
        (ColumnParallelLinear, (6, 8), "3 ranks do not divide 8 outputs"),
        (RowParallelLinear, (8, 6), "3 ranks do not divide 8 inputs"),
        (VocabParallelEmbedding, (8, 6), "3 ranks do not divide 8 tokens of the vocabulary"),
    ],
)
def test_ranks_that_do_not_divide_a_layer_are_refused(layer: type, sizes: tuple, problem: str):
    with pytest.raises(ValueError, match=problem):
        layer(*sizes, group=Place(0, 3))
    with pytest.raises(ValueError, match="2 ranks do not divide 5 tokens"):
        reduce_from_ranks(torch.ones(1, 5, 3), Place(0, 2), sequence=True)


def frozen(part: str) -> nn.Linear:
    whole = nn.Linear(INNER, INNER)
    getattr(whole, part).requires_grad_(False)
    return whole


LINEAR = {
    "a bias": (nn.Linear(INNER, INNER), (N, T, INNER)),
    "no bias": (nn.Linear(INNER, INNER, bias=False), (N, T, INNER)),
    "frozen weight": (frozen("weight"), (N, T, INNER)),
    "frozen bias": (frozen("bias"), (N, T, INNER)),
    "evaluation": (nn.Linear(INNER, INNER).eval(), (N, T, INNER)),
    "bfloat16": (nn.Linear(INNER, INNER).bfloat16(), (N, T, INNER)),
    "a token alone": (nn.Linear(INNER, INNER), (INNER,)),
    "no token": (nn.Linear(INNER, INNER), (0, INNER)),
    "four dimensions": (nn.Linear(INNER, INNER), (2, 1, 3, INNER)),
    "autocast": (nn.Linear(INNER, INNER), (N, T, INNER)),
}


@pytest.mark.parametrize("case", LINEAR)
def test_the_layers_do_what_a_linear_layer_does(case: str):
    whole, shape = LINEAR[case]
    coarse = case in ("bfloat16", "autocast")
    near = {"rtol": 0, "atol": 0.03 if coarse else 1e-6}
    x = torch.randn(shape, dtype=whole.weight.dtype)

    def run(layer: nn.Module, given: torch.Tensor) -> torch.Tensor:
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            output = layer(given)
        output.sum().backward()
        return output

    given = x.clone().requires_grad_()
    wanted = run(whole, given)

    def program(group):
        own = own_part(INNER, "numbers", group)
        for kind, rows in ((ColumnParallelLinear, True), (RowParallelLinear, False)):
            part = kind.of(whole, group)
            mine = (x if rows else x[..., own]).clone().requires_grad_()
            output = run(part, mine)
            torch.testing.assert_close(output, wanted[..., own] if rows else wanted, **near)
            right = given.grad if rows else given.grad[..., own]
            torch.testing.assert_close(mine.grad, right, **near)
            assert part.training == whole.training
            assert list(part.state_dict()) == list(whole.state_dict())
            for name, parameter in part.named_parameters():
                original = getattr(whole, name)
                assert parameter.requires_grad == original.requires_grad
                assert (parameter.grad is None) == (original.grad is None)

    ranks_in_threads(program, 2)


@SEQUENCE
@RANKS
def test_second_derivatives_are_those_of_the_uncut_layers(ranks: int, sequence: bool):
    up, down = nn.Linear(WIDTH, INNER).double(), nn.Linear(INNER, WIDTH).double()
    x = torch.randn(N, T, WIDTH).double()

    def penalised(layers: nn.Sequential, given: torch.Tensor) -> None:
        loss = layers(given.requires_grad_()).square().sum()
        (gradient,) = torch.autograd.grad(loss, given, create_graph=True)
        (loss + gradient.square().sum()).backward()

    whole = x.clone()
    penalised(nn.Sequential(up, nn.Tanh(), down), whole)

    def program(group):
        mine = own_part(T, "tokens", group) if sequence else slice(T)
        given = x[:, mine].clone()
        first = ColumnParallelLinear.of(up, group, sequence=sequence)
        second = RowParallelLinear.of(down, group, sequence=sequence)
        penalised(nn.Sequential(first, nn.Tanh(), second), given)
        rows = own_part(INNER, "inner", group)
        near(given.grad, whole.grad[:, mine])
        near(first.weight.grad, up.weight.grad[rows])
        near(first.bias.grad, up.bias.grad[rows])
        near(second.weight.grad, down.weight.grad[:, rows])

    ranks_in_threads(program, ranks)


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def with_call(name: str, target: str = "") -> nn.Linear:
    whole = nn.Linear(INNER, INNER)
    getattr(getattr(whole, target) if target else whole, name)(lambda *_: None)
    return whole


ALTERED = [
    (Doubled(INNER, INNER), "got Doubled$"),
    (nn.Conv1d(INNER, INNER, 1), "got Conv1d$"),
    (parametrizations.weight_norm(nn.Linear(INNER, INNER)), "got ParametrizedLinear$"),
    (prune.random_unstructured(nn.Linear(INNER, INNER), "weight", 0.5), "with hooks"),
    (with_call("register_forward_hook"), "got Linear with hooks"),
    (with_call("register_forward_pre_hook"), "got Linear with hooks"),
    (with_call("register_full_backward_hook"), "got Linear with hooks"),
    (with_call("register_hook", "weight"), "got Linear with hooks"),
    (with_call("register_post_accumulate_grad_hook", "bias"), "got Linear with hooks"),
]


@pytest.mark.parametrize("layer", [ColumnParallelLinear, RowParallelLinear])
@pytest.mark.parametrize(("whole", "problem"), ALTERED)
def test_what_a_part_would_do_without_is_refused(whole: nn.Module, problem: str, layer: type):
    with pytest.raises(
        ValueError, match=f"only a plain Linear without hooks can be cut.*{problem}"
    ):
        layer.of(whole, Place(0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout_does_what_torchs_does(p: float, dtype: torch.dtype):
    x = torch.ones(4000, dtype=dtype, requires_grad=True)
    ours, theirs = ParallelDropout(p, Place(0, 2)), nn.Dropout(p)
    outputs = [layer(x) for layer in (ours, theirs)]
    for output in outputs:
        assert output.dtype == dtype
        assert sorted(output.unique().tolist()) == sorted(outputs[1].unique().tolist())
        assert (output == 0).double().mean() == pytest.approx(p, abs=0.03)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        assert torch.equal(gradient, output)
    assert torch.equal(ours(x), ours(x)) == (p in (0, 1))  # anew in each step
    assert ours(torch.ones(0, 3)).shape == (0, 3)
    assert ours(torch.ones(3, device="meta")).device.type == "meta"
    with pytest.raises(ValueError, match="has to be between 0 and 1"):
        ParallelDropout(p + 1.5, Place(0, 2))


@pytest.mark.parametrize("copied", [True, False])
def test_saved_or_copied_dropout_draws_on(copied: bool):
    layer = ParallelDropout(0.5, Place(0, 2), seed=3)
    layer(torch.ones(99))
    other = copy.deepcopy(layer) if copied else ParallelDropout(0.5, Place(1, 2))
    if not copied:
        other.load_state_dict(layer.state_dict())
    wanted = layer(torch.ones(99))
    assert torch.equal(other(torch.ones(99)), wanted)
    state = layer.generator.get_state()
    layer.eval()(torch.ones(9))
    assert torch.equal(layer.generator.get_state(), state)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    "make", [lambda: ParallelDropout(0.5, Place(0, 2)), lambda: ReproducibleDropout(0.5, seed=0)]
)
def test_a_second_run_draws_the_same_mask_or_is_refused(make: Callable, reentrant: bool):
    part = nn.Sequential(nn.Linear(8, 8, bias=False), make()).double()
    x = torch.randn(4, 8).double()
    output = recomputed(part, x)
    output.sum().backward()
    near(part[0].weight.grad, ((output != 0).double() * 2).T @ x)
    output = checkpoint(part, x.requires_grad_(), use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="without the random numbers that its own"):
        output.sum().backward()
