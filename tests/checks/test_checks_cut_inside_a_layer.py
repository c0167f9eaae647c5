"""The checks accept right answers however they are written and explain wrong ones."""

import pytest
import torch
from solutions import cut_inside_a_layer as solutions
from torch import distributed

from mpcourse.checks import (
    attempted_losses,
    attempted_meters,
    check_block_bytes,
    check_cut_loss,
    check_mlp_parts,
    check_same,
    check_scores,
)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(attempted_losses, "WAIT_S", 1.0)
    monkeypatch.setattr(attempted_meters, "WAIT_S", 1.0)


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


CHECKS = {
    "my_parts": check_mlp_parts,
    "my_same": check_same,
    "my_block_bytes": check_block_bytes,
    "my_cut_loss": check_cut_loss,
    "my_scores": check_scores,
}


@pytest.mark.parametrize("name", CHECKS)
def test_stubs_solutions_and_other_things(name: str):
    check = CHECKS[name]
    assert check(lambda *arguments: ...).state == "not attempted"
    assert check(...).state == "not attempted"
    assert check(getattr(solutions, name)).state == "correct"
    assert "takes a function" in said(check(5))
    assert "TypeError" in said(check(lambda a, b, c, d, e, f: 1))
    assert said(check(lambda *arguments: None))


def parts_by_chunks(up, bias, down, rank, ranks):
    return [t.chunk(ranks, d)[rank].clone() for t, d in ((up, 0), (bias, 0), (down, 1))]


def same_by_gathering(tensor, group):
    whole = tensor.new_empty(group.size() * len(tensor))
    distributed.all_gather_into_tensor(whole, tensor, group=group)
    rows = whole.reshape(group.size(), -1)
    return (rows == rows[0]).all()


def bytes_by_rounds(tokens, width, itemsize, ranks):
    chunk = tokens * width * itemsize / ranks
    return sum(2 * chunk * (ranks - 1) for _ in range(4))


def loss_in_one_sum(logits, targets, first, all_max, all_sum):
    highest = all_max(logits.max(dim=-1).values)
    sums = []
    for row, top, target in zip(logits, highest, targets - first, strict=True):
        right = row[target] if 0 <= target < len(row) else 0.0
        sums.append(torch.stack([(row - top).exp().sum(), torch.as_tensor(right).double()]))
    total, right = all_sum(torch.stack(sums)).T
    return float((total.log() + highest - right).mean())


def test_other_right_answers_are_correct():
    assert check_mlp_parts(parts_by_chunks).state == "correct"
    assert check_same(same_by_gathering).state == "correct"
    assert check_block_bytes(bytes_by_rounds).state == "correct"
    assert check_cut_loss(loss_in_one_sum).state == "correct"
    assert check_scores(lambda: (torch.zeros(4), torch.arange(4.0))).state == "correct"


def halves(of_up, of_bias, of_down):
    def parts(up, bias, down, rank, ranks):
        def own(tensor, dim):
            return tensor if dim is None else tensor.chunk(ranks, dim)[rank]

        return own(up, of_up), own(bias, of_bias), own(down, of_down)

    return parts


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (halves(1, 0, 0), "stores W transposed"),
        (halves(1, None, 0), "stores W transposed"),
        (halves(0, 0, 0), "Down is cut by rows of W"),
        (halves(0, None, 1), "its own number of the bias"),
        (halves(0, 0, None), "Down is cut, too"),
        (lambda u, b, d, r, n: (u[r::n], b[r::n], d[:, r::n]), "neighbours belong together"),
        (lambda u, b, d, r, n: halves(0, 0, 1)(u, b / n, d, r, n), "its own number|tensors"),
        (lambda u, b, d, r, n: halves(0, 0, 1)(u, b, d, 0, n), "rank 1 of 2"),
        (lambda u, b, d, r, n: u, "Return three tensors"),
    ],
)
def test_wrong_parts_are_explained(attempt, words: str):
    found = said(check_mlp_parts(attempt))
    assert any(word in found for word in words.split("|"))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda t, w, i, n: 4 * (n - 1) / n * t * w * i, "each forward and backward"),
        (lambda t, w, i, n: 2 * (n - 1) / n * t * w * i, "the backward of each"),
        (lambda t, w, i, n: 4 * t * w * i, "a ring sends 2"),
        (lambda t, w, i, n: 12 * (n - 1) / n * t * w * i, "share one way in"),
        (lambda t, w, i, n: 20 * (n - 1) / n * t * w * i, "the width between the layers"),
        (lambda t, w, i, n: 32 * (n - 1) / n * t * w * i, "the width between the layers"),
        (lambda t, w, i, n: 4 * (n - 1) * t * w * i, "not n - 1"),
        (lambda t, w, i, n: 8 * (n - 1) / n * t * w, "Count bytes"),
        (lambda t, w, i, n: 8 * (n - 1) * t * w * i, "over all ranks"),
        (lambda t, w, i, n: 8 * max(1, n - 1) / max(2, n) * t * w * i, "1 rank"),
    ],
)
def test_wrong_bytes_are_explained(attempt, words: str):
    found = said(check_block_bytes(attempt))
    assert any(word in found for word in words.split("|"))


def pick(logits, targets, first, masked=True):
    row = targets - first
    here = (row >= 0) & (row < logits.shape[1])
    right = logits.gather(1, row.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return right.where(here, 0.0) if masked else right


def variant(*, top="all", in_score=True, log=True, masked=True, mean=True, total="all"):
    def loss(logits, targets, first, all_max, all_sum):
        own = logits.amax(dim=1)
        highest = {"all": all_max(own), "own": own, "none": 0 * own}[top]
        shifted = logits - highest.unsqueeze(1)
        right = all_sum(pick(shifted if in_score else logits, targets, first, masked))
        sums = shifted.exp().sum(dim=1)
        summed = all_sum(sums)
        summed = summed if total == "all" else sums
        losses = (summed.log() if log else 0) - right
        return losses.mean() if mean else losses.sum()

    return loss


def whole_logits(logits, targets, first, all_max, all_sum):
    ranks = int(all_sum(torch.ones(1)))
    whole = logits.new_zeros(len(logits), ranks * logits.shape[1])
    whole[:, first : first + logits.shape[1]] = logits
    return torch.nn.functional.cross_entropy(all_sum(whole), targets)


def not_asked_who_has_it(logits, targets, first, all_max, all_sum):
    right = logits.gather(1, (targets - first).unsqueeze(1)).squeeze(1)
    return (all_sum(logits.exp().sum(dim=1)).log() - all_sum(right)).mean()


def only_where_it_is(logits, targets, first, all_max, all_sum):
    return variant()(logits, targets, first, all_max, all_sum) if first == 0 else 0.0


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (variant(top="own"), "take that of all ranks"),
        (variant(top="none"), "too large to be written down"),
        (variant(in_score=False), "but not from the right score"),
        (variant(log=False), "the exponentials is missing"),
        (variant(masked=False), "adds 0 to the right score"),
        (variant(mean=False), "take the mean"),
        (variant(total="own"), "This rank's exponentials only|log"),
        (whole_logits, "numbers were sent for each token"),
        (not_asked_who_has_it, "which place do the others read?"),
        (only_where_it_is, "RuntimeError|DistError|imed out"),
        (lambda logits, *rest: logits, "Return one number"),
    ],
)
def test_wrong_losses_are_explained(attempt, words: str):
    found = said(check_cut_loss(attempt))
    assert any(word in found for word in words.split("|")), found


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: ([0, 0, 0, 1], [0, 1, 2, 3]), "noticed in the first list"),
        (lambda: ([0, 1, 1, 0], [1, 0, 0, 1]), "The second list does not show it"),
        (lambda: ([0, 1, 1, 0], [0, 1, 2]), "four finite numbers"),
        (lambda: ([0, 1, 1, 0], [0, 1, 2, float("inf")]), "four finite numbers"),
        (lambda: 7, "two lists of four numbers"),
        (lambda: ([[0, 1], [2, 3]], [[0, 1], [1, 0]]), "noticed in the first list"),
        (lambda: ("a", "b"), "two lists of four numbers"),
    ],
)
def test_wrong_scores_are_explained(attempt, words: str):
    assert words in said(check_scores(attempt))


def by_mean(tensor, group):
    total = tensor.clone()
    distributed.all_reduce(total, group=group)
    return torch.equal(total / group.size(), tensor)


def with_rank_0(tensor, group):
    total = tensor.clone() if group.rank() == 0 else torch.zeros_like(tensor)
    distributed.all_reduce(total, group=group)
    return torch.equal(total, tensor)


def by_sum(tensor, group):
    low, high = tensor.sum(), tensor.sum()
    distributed.all_reduce(low, distributed.ReduceOp.MIN, group)
    distributed.all_reduce(high, distributed.ReduceOp.MAX, group)
    return bool(low == high)


def nearly(tensor, group):
    low, high = tensor.clone(), tensor.clone()
    distributed.all_reduce(low, distributed.ReduceOp.MIN, group)
    distributed.all_reduce(high, distributed.ReduceOp.MAX, group)
    return torch.allclose(low, high)


def in_place(tensor, group):
    high = tensor.clone()
    distributed.all_reduce(tensor, distributed.ReduceOp.MIN, group)
    distributed.all_reduce(high, distributed.ReduceOp.MAX, group)
    return torch.equal(tensor, high)


def on_rank_0_alone(tensor, group):
    return with_rank_0(tensor, group) if group.rank() == 0 else True


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (by_sum, "Differences can cancel"),
        (by_mean, "Every rank has to give the same answer"),
        (with_rank_0, "expected False on every rank|Every rank"),
        (nearly, "A small drift is a drift"),
        (in_place, "give it a copy"),
        (on_rank_0_alone, "the same messages"),
        (lambda tensor, group: True, "expected False on every rank"),
        (lambda tensor, group: tensor, "expected True or False"),
    ],
)
def test_wrong_meters_are_explained(attempt, words: str):
    found = said(check_same(attempt))
    assert any(word in found for word in words.split("|")), found
