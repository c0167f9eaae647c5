"""A mixture is the sum that it says, and spread over ranks it is the same mixture."""

import copy

import pytest
import torch
from cut_decoders import Place, check_gradients, gradients_as_weights
from processes import printed_by
from torch import Tensor, nn

from mpcourse.multiprocess import ranks_in_threads
from mpcourse.transformer import (
    Counted,
    Decoder,
    Message,
    Mixture,
    ParallelMixture,
    average_gradients,
    balance_loss,
    with_experts,
    within_capacity,
)

WIDTH, EXPERTS = 5, 6


def spread(model: nn.Module, group) -> nn.Module:
    """A copy of a model whose mixtures keep this rank's experts."""
    part = copy.deepcopy(model)
    for name, module in model.named_modules():
        if isinstance(module, Mixture):
            part.set_submodule(name, ParallelMixture.of(module, group))
    return part


def random_mixture(**options) -> Mixture:
    torch.manual_seed(0)
    mixture = Mixture(WIDTH, 7, EXPERTS, **options).double()
    for parameter in mixture.parameters():
        nn.init.normal_(parameter)
    return mixture


def tokens_like(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(1)).double()


def one_by_one(mixture: Mixture, x: Tensor) -> Tensor:
    """Each token through its experts alone."""
    said = []
    for token in x.flatten(0, -2):
        probabilities = mixture.router(token).softmax(-1)
        best = probabilities.sort(descending=True, stable=True).indices[: mixture.k].tolist()
        total = sum(probabilities[e] for e in best) if mixture.k > 1 else 1
        said.append(sum(probabilities[e] / total * mixture.experts[e](token) for e in best))
    return torch.stack(said).view(x.shape)


def assert_near(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("k", [1, 2, EXPERTS])
def test_a_mixture_is_the_weighted_sum_of_the_chosen_experts(k: int):
    mixture, x = random_mixture(k=k), tokens_like(3, 7).requires_grad_()
    direction = torch.randn_like(x)
    output, oracle = mixture(x), one_by_one(mixture, x)
    assert_near(output, oracle)
    wanted = torch.autograd.grad((oracle * direction).sum(), [x, *mixture.parameters()])
    found = torch.autograd.grad((output * direction).sum(), [x, *mixture.parameters()])
    for pair in zip(found, wanted, strict=True):
        assert_near(*pair)
    assert found[1].abs().max() > 1e-3  # the router's


@pytest.mark.parametrize(("sizes", "k"), [((4,), 1), ((5, 3), 1), ((5, 3), 2), ((7, 0, 4), 2)])
@pytest.mark.parametrize("skewed", [False, True])
def test_ranks_find_what_one_process_finds(sizes: tuple[int, ...], k: int, skewed: bool):
    """Also with uneven tokens, none on a rank, and experts that nobody asks for."""
    whole, x, ranks = random_mixture(k=k), tokens_like(sum(sizes)), len(sizes)
    if skewed:  # all to the first k
        x = x + 5
        whole.router.weight.data = (
            torch.linspace(0.1, -0.1, EXPERTS)[:, None].expand(-1, WIDTH).double()
        )
    direction = torch.randn_like(x)
    given = x.clone().requires_grad_()
    output = whole(given)
    ((output * direction).sum() + whole.balance).backward()
    if skewed:
        assert whole.load.count_nonzero() == k

    def program(group):
        own = slice(sum(sizes[: group.rank()]), sum(sizes[: group.rank() + 1]))
        part, mine = ParallelMixture.of(whole, group), x[own].clone().requires_grad_()
        found = part(mine)
        assert_near(found, output[own])
        (ranks * (found * direction[own]).sum() + part.balance).backward()
        average_gradients(part, group)
        assert_near(mine.grad / ranks, given.grad[own])
        assert_near(part.router.weight.grad, whole.router.weight.grad)
        experts = whole.experts[group.rank() * EXPERTS // ranks :]
        for part_of, right in zip(part.experts.parameters(), experts.parameters(), strict=False):
            wanted = torch.zeros_like(right) if right.grad is None else right.grad
            assert_near(part_of.grad, wanted)
        assert part.load.tolist() == whole.load.tolist()
        return part.balance.item()

    balances = ranks_in_threads(program, ranks)
    assert sum(balances) / ranks == pytest.approx(whole.balance.item(), abs=1e-10)


def test_with_a_capacity_each_rank_drops_as_one_process_does_with_its_tokens():
    whole, x = random_mixture(k=2, capacity=1.0), tokens_like(2, 9)
    wanted = [(whole(own), whole.dropped) for own in x]
    assert any(dropped for _, dropped in wanted)

    def program(group):
        part = ParallelMixture.of(whole, group)
        assert_near(part(x[group.rank()]), wanted[group.rank()][0])
        return part.dropped

    assert ranks_in_threads(program, 2) == [dropped for _, dropped in wanted]


def test_a_decoder_on_a_mesh_of_experts_and_copies_steps_as_in_one_process():
    torch.manual_seed(0)
    decoder = Decoder(11, 8, 2, layers=2, context=6).double()
    whole = with_experts(decoder, 12, 4, k=2)
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.3)
    inputs, targets = torch.randint(11, (2, 4, 6))

    def loss_of(model: nn.Module, own: slice) -> Tensor:
        logits = model(inputs[own]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, targets[own].flatten())

    def balance(model: nn.Module) -> Tensor:
        return 0.1 * sum(block.mlp.balance for block in model.blocks)

    loads = []
    for own in (slice(0, 2), slice(2, 4)):  # a balance loss is of one group of expert ranks
        ((loss_of(whole, own) + balance(whole)) / 2).backward()
        loads.append([block.mlp.load.tolist() for block in whole.blocks])

    def program(copies, group):
        part = spread(whole, group)
        place = 2 * copies.rank() + group.rank()
        (loss_of(part, slice(place, place + 1)) + balance(part)).backward()
        with Counted() as counted:
            average_gradients(part, group, copies)
        assert len(counted.messages) == 2  # among the ranks with other experts, among the copies
        assert [block.mlp.load.tolist() for block in part.blocks] == loads[copies.rank()]
        expected = spread(gradients_as_weights(whole), group)
        check_gradients(part, expected)
        return sum(p.numel() for p in part.parameters())

    held = ranks_in_threads(program, (2, 2))
    experts = sum(p.numel() for block in whole.blocks for p in block.mlp.experts.parameters())
    assert held == 4 * [sum(p.numel() for p in whole.parameters()) - experts // 2]


def test_messages_are_counts_and_rows_there_and_back():
    whole, x = random_mixture(k=2), tokens_like(2, 7)

    def program(group):
        part = ParallelMixture.of(whole, group)
        with Counted() as counted:
            part(x[group.rank()].requires_grad_()).sum().backward()
        return counted.messages

    rows = Message("all-to-all", 2 * 7 * WIDTH * 8)
    forward = [Message("all-reduce", EXPERTS * 8), Message("all-to-all", EXPERTS * 8), rows]
    by_rank = ranks_in_threads(program, 2)
    for messages in by_rank:
        home = messages[3]
        assert messages == [*forward, home, rows, home]
    assert sum(messages[3].bytes for messages in by_rank) == 2 * rows.bytes


def test_which_choices_have_room():
    chosen = torch.tensor([[0, 1], [1, 0], [0, 2], [0, 1]])
    first_before_second = [[1, 1], [1, 0], [1, 1], [0, 0]]
    assert within_capacity(chosen, 3, 2).int().tolist() == first_before_second
    assert within_capacity(chosen, 3, 4).all()


def test_the_balance_loss_is_least_where_all_experts_have_as_much():
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], requires_grad=True)
    even = torch.full((6, 3), 1 / 3)
    assert balance_loss(even, torch.tensor([2, 2, 2])).item() == pytest.approx(1)
    loss = balance_loss(probabilities, torch.tensor([1, 0, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(3 * (0.5 * 0.3 + 0.5 * 0.5))
    assert probabilities.grad[0].tolist() == pytest.approx([0.75, 0, 0.75])


def test_the_router_computes_in_float32_when_tokens_are_narrower():
    mixture = random_mixture(k=2).bfloat16()
    x = tokens_like(999).bfloat16()
    assert mixture(x).dtype == torch.bfloat16
    scores = x.float() @ mixture.router.weight.float().T
    assert mixture.load.tolist() == scores.topk(2).indices.flatten().bincount(minlength=6).tolist()
    assert mixture.balance.dtype == torch.float32


def test_what_cannot_be_right_is_refused_before_a_message_is_sent():
    mixture, narrow = random_mixture(), torch.ones(2, 4)
    part = ParallelMixture.of(mixture, Place(0, 2))  # a place that cannot send
    refused = {
        "k at most the experts; got .* k 3": lambda: Mixture(4, 4, 2, k=3),
        "capacity is 0.0; it has to be more than 0": lambda: Mixture(4, 4, 2, capacity=0.0),
        r"5 numbers here; got the shape \(2, 4\)": lambda: mixture(narrow),
        "tokens have 5 numbers here": lambda: part(narrow),
        "4 ranks do not divide 6 experts": lambda: ParallelMixture.of(mixture, Place(0, 4)),
        "only a plain Mixture": lambda: ParallelMixture.of(nn.Linear(4, 4), Place(0, 2)),
    }
    for words, wrong in refused.items():
        with pytest.raises(ValueError, match=words):
            wrong()


DIES = """
import os
import torch
from torch import distributed
from mpcourse.transformer import Mixture, ParallelMixture
distributed.init_process_group("gloo")
part = ParallelMixture.of(Mixture(5, 7, 6))
part(torch.randn(3, 5))
if distributed.get_rank() == 1:
    os._exit(0)  # with this code torchrun lets the others run on
try:
    part(torch.randn(3, 5))
except RuntimeError:
    print("told")
"""


@pytest.mark.slow
def test_in_processes_too_the_others_do_not_wait_for_a_rank_that_is_gone():
    assert printed_by(DIES, 3) == ["told", "told"]
