"""The checks accept right answers however they are written and explain wrong ones."""

import pytest
import torch
from solutions import train_mnist as solutions
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpcourse.checks import check_drift, check_evaluate, check_merged
from mpcourse.checks.placed import place_on
from mpcourse.training.loop import evaluate

HOST, OTHER = torch.device("cpu"), torch.device("cuda", 1)


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_evaluate(lambda model, batches, loss_fn: ...).state == "not attempted"
    assert check_drift(lambda momentum, num_microbatches: ...).state == "not attempted"
    assert check_merged(lambda counts, means, variances: ...).state == "not attempted"
    assert check_evaluate(...).state == "not attempted"


def test_solutions_are_correct():
    assert check_evaluate(solutions.my_evaluate).state == "correct"
    assert check_drift(solutions.my_drift).state == "correct"
    assert check_merged(solutions.my_merged).state == "correct"


def all_at_once(model, batches, loss_fn):
    """Outputs of all batches joined on the host; tensors returned, not numbers."""
    modes = {name: module.training for name, module in model.named_modules()}
    with torch.inference_mode():
        outputs = torch.cat([model.eval()(inputs).cpu() for inputs, _ in batches])
    for name, mode in modes.items():
        model.get_submodule(name).training = mode
    targets = torch.cat([targets.cpu() for _, targets in batches])
    return loss_fn(outputs, targets), outputs.max(1).indices.eq(targets).float().mean()


def drift_by_moving(momentum, num_microbatches):
    cut = whole = 0.0
    whole += momentum * (1 - whole)
    for _ in range(num_microbatches):
        cut += momentum * (1 - cut)
    return cut - whole


def merged_two_by_two(counts, means, variances):
    count, mean, squares = 0, 0.0, 0.0
    for n, m, v in zip(counts, means, variances, strict=True):
        squares += (n - 1) * v + (m - mean) ** 2 * count * n / (count + n)
        mean += (m - mean) * n / (count + n)
        count += n
    return [torch.tensor(mean), torch.tensor(squares / (count - 1))]


def test_other_right_answers_are_correct():
    assert check_evaluate(all_at_once).state == "correct"
    assert check_drift(drift_by_moving).state == "correct"
    assert check_merged(merged_two_by_two).state == "correct"
    assert check_merged(lambda *given: torch.stack(merged_two_by_two(*given))).state == "correct"


def test_the_course_s_own_evaluation_agrees_with_the_solution():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    loader = DataLoader(TensorDataset(torch.randn(7, 4), torch.randint(0, 3, (7,))), batch_size=4)
    found = solutions.my_evaluate(net, loader, nn.CrossEntropyLoss())
    assert found == pytest.approx(evaluate(net, loader, nn.CrossEntropyLoss())[:2])


def evaluating(*, mode=True, move=True, restore=True, gradients=False, divide=None):
    """An evaluation with one thing done as people do it."""

    def attempt(model, batches, loss_fn):
        training = model.training
        if mode:
            model.eval()
        losses, rights, sizes = [], [], []
        with torch.set_grad_enabled(gradients):
            for inputs, targets in batches:
                outputs = model(inputs)
                targets = targets.to(outputs.device) if move else targets
                losses.append(loss_fn(outputs, targets).item())
                rights.append((outputs.argmax(1) == targets).sum().item())
                sizes.append(len(targets))
        if restore:
            model.train(training)
        weighted = sum(loss * size for loss, size in zip(losses, sizes, strict=True))
        right = sum(rights) / sum(sizes)
        if divide is None:
            return weighted / sum(sizes), right
        return divide(losses, rights, sizes, weighted, right)

    return attempt


def answering(**along):
    """An evaluation that takes the largest output along another dimension, or none."""

    def attempt(model, batches, loss_fn):
        loss, _ = solutions.my_evaluate(model, batches, loss_fn)
        modes = [module.training for module in model.modules()]
        model.eval()
        with torch.no_grad():
            right = [(model(x).cpu().argmax(**along) == y.cpu()).sum() for x, y in batches]
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
        return loss, sum(right) / sum(len(y) for _, y in batches)

    return attempt


def always_training_after(model, batches, loss_fn):
    result = solutions.my_evaluate(model, batches, loss_fn)
    model.train()
    return result


def only_the_loss(model, batches, loss_fn):
    targets = torch.cat([targets for _, targets in batches])
    outputs = torch.cat([model.eval()(inputs) for inputs, _ in batches])
    return loss_fn(outputs, targets)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (evaluating(divide=lambda L, r, n, w, a: (sum(L) / len(L), a)), "weight by samples"),
        (
            evaluating(
                divide=lambda L, r, n, w, a: (
                    sum(L) / len(L),
                    sum(x / y for x, y in zip(r, n, strict=True)) / len(n),
                )
            ),
            "weight by samples",
        ),
        (
            evaluating(
                divide=lambda L, r, n, w, a: (
                    w / sum(n),
                    sum(x / y for x, y in zip(r, n, strict=True)) / len(n),
                )
            ),
            "then divide once",
        ),
        (evaluating(mode=False), "call model.eval()"),
        (evaluating(move=False), "bring the targets to output.device"),
        (only_the_loss, "bring the targets to output.device"),
        (evaluating(), "the norm's own mode has changed: its memory would move again"),
        (answering(), "argmax(dim=1) per row"),
        (answering(dim=0), "One answer per row of outputs"),
        (evaluating(restore=False), "left in evaluation mode"),
        (always_training_after, "left in training mode"),
        (evaluating(gradients=True), "torch.no_grad()"),
        (evaluating(divide=lambda L, r, n, w, a: (sum(L), a)), "never divided"),
        (evaluating(divide=lambda L, r, n, w, a: (sum(L) / sum(n), a)), "loss is a mean"),
        (evaluating(divide=lambda L, r, n, w, a: (w, a)), "not divided by their number"),
        (evaluating(divide=lambda L, r, n, w, a: (w / sum(n), sum(r))), "the share is asked for"),
        (evaluating(divide=lambda L, r, n, w, a: (w / sum(n), 100 * a)), "no percentage"),
        (evaluating(divide=lambda L, r, n, w, a: (a, w / sum(n))), "the pair (loss, accuracy)"),
        (lambda model, batches: None, "TypeError"),
        (7, "takes a function"),
    ],
)
def test_wrong_evaluations_are_explained(attempt, words):
    assert words in said(check_evaluate(attempt))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda a, m: (m - 1) * a, "the moves get smaller"),
        (lambda a, m: 1 - (1 - a) ** m, "the unsplit one moves too"),
        (lambda a, m: (1 - a) ** m, "not from the other layer"),
        (lambda a, m: 0.0, "moves more than once"),
        (lambda a, m: (1 - a) ** m - (1 - a), "The sign"),
        (lambda a, m: 1 - (1 - a) ** (m - 1), "a part of the way already"),
        (lambda a, m: m * a, "the moves get smaller"),
        (lambda a, m: a, "1 - momentum is left"),
    ],
)
def test_wrong_drifts_are_explained(attempt, words):
    assert words in said(check_drift(attempt))


def rows(counts, means, variances):
    return list(zip(counts, means, variances, strict=True))


def mean_of(counts, means):
    return sum(n * m for n, m in zip(counts, means, strict=True)) / sum(counts)


def right_mean(variance):
    return lambda n, m, v: (mean_of(n, m), variance(n, m, v))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (right_mean(lambda n, m, v: sum(v) / len(v)), "spread between the micro-batches' means"),
        (right_mean(lambda n, m, v: mean_of(n, v)), "spread between the micro-batches' means"),
        (
            right_mean(lambda n, m, v: mean_of([k - 1 for k in n], v)),
            "spread between the micro-batches' means",
        ),
        (
            right_mean(lambda n, m, v: solutions.my_merged(n, m, v)[1] * (sum(n) - 1) / sum(n)),
            "less one",
        ),
        (
            right_mean(
                lambda n, m, v: (
                    sum(k * (x + (y - mean_of(n, m)) ** 2) for k, y, x in rows(n, m, v)) / sum(n)
                )
            ),
            "These variances are unbiased",
        ),
        (
            right_mean(lambda n, m, v: solutions.my_merged(n, m, v)[1] ** 0.5),
            "standard deviation",
        ),
        (
            lambda n, m, v: (sum(m) / len(m), solutions.my_merged(n, m, v)[1]),
            "each mean counts by",
        ),
        (
            lambda n, m, v: solutions.my_merged([10] * len(n), m, v),
            "Add up the squares around the common mean",
        ),
        (lambda n, m, v: None, "without return"),
    ],
)
def test_wrong_mergings_are_explained(attempt, words):
    assert words in said(check_merged(attempt))


# Tensors that pretend


def test_two_places_do_not_mix_and_one_does():
    outputs, targets = place_on(torch.eye(3), OTHER), place_on(torch.arange(3), HOST)
    for mix in (
        lambda: outputs.argmax(1) == targets,
        lambda: nn.functional.cross_entropy(outputs, targets),
        lambda: outputs.argmax(1).eq(torch.arange(3)),
    ):
        with pytest.raises(RuntimeError, match=r"same device, but found .* cuda:1 and cpu"):
            mix()
    assert (outputs.argmax(1) == targets.to(outputs.device)).all().item()
    assert (outputs.argmax(1) == targets.to(outputs)).sum().item() == 3
    assert (outputs.argmax(1).cpu() == targets).sum().item() == 3


def test_a_place_goes_on_to_results_and_a_number_may_lie_anywhere():
    value = place_on(torch.ones(4), OTHER)
    assert (value * 2).device == value.sum().device == OTHER
    assert value.to("cpu").device == value.cpu().device == HOST
    assert value.double().device == value.to(torch.float64).device == OTHER
    assert (value * torch.tensor(2.0)).tolist() == [2.0] * 4
    assert (value.sum() + place_on(torch.tensor(1.0), HOST)).item() == 5
