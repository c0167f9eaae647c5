"""The checks accept right answers however they are written and explain wrong ones."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from solutions import scatter_and_gather as solutions
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from mpcourse.checks import check_gather, check_mean, check_scatter, check_scatter_nest, verdict
from mpcourse.commands.pages import find_pages, read
from mpcourse.data_parallel.scatter_gather import gather, scatter
from mpcourse.devices import results

CHECKS = {
    check_scatter: solutions.my_scatter,
    check_scatter_nest: solutions.my_scatter_nest,
    check_gather: solutions.my_gather,
    check_mean: solutions.my_mean,
}
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


def rejected(check: Callable, attempt: Any, *lines: str) -> None:
    """The attempt is not yet right, and a line of the verdict holds each of `lines`, in order."""
    found = check(attempt)
    assert found.state == "not yet", found
    said = iter(found.lines)
    for words in lines:
        assert any(words in line for line in said), f"{words!r} is not (in this place) in\n{found}"
    assert found.lines[-1].startswith("Read again: ")


# Right answers


@each_check
def test_the_stub_is_not_attempted(check: Callable):
    assert check(lambda *given: ...).state == "not attempted"
    assert check(...).state == "not attempted"


@each_check
def test_the_solution_is_correct(check: Callable):
    assert check(CHECKS[check]).state == "correct"


def scatter_by_split(batch: Tensor, num_devices: int) -> tuple[Tensor, ...]:
    return batch.split((len(batch) + num_devices - 1) // num_devices)


def scatter_by_loop(batch: Tensor, num_devices: int) -> list[Tensor]:
    size, chunks = -(-batch.shape[0] // num_devices), []
    while len(batch):
        chunks.append(batch[:size])
        batch = batch[size:]
    return chunks


def scatter_by_indices(batch: Tensor, num_devices: int) -> list[Tensor]:
    size = int(torch.tensor(len(batch) / num_devices).ceil())
    rows = torch.arange(len(batch))
    chunks = [batch[(rows // size) == device] for device in range(num_devices)]
    return [chunk for chunk in chunks if len(chunk)]


class Scatter:
    def __call__(self, batch: Tensor, num_devices: int) -> list[Tensor]:
        return solutions.my_scatter(batch, num_devices)


def nest_by_tree_map(inputs: Any, n: int) -> list[Any]:
    counts = [len(leaf.chunk(n)) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]

    def part(leaf: Any, index: int) -> Any:
        return leaf.chunk(n)[index] if isinstance(leaf, Tensor) else leaf

    return [tree_map(partial(part, index=i), inputs) for i in range(min(counts, default=n))]


def nest_by_index(inputs: Any, n: int) -> tuple[Any, ...]:
    if isinstance(inputs, Tensor):
        return inputs.chunk(n)
    if not isinstance(inputs, dict | list | tuple) or not inputs:
        return (inputs,) * n
    keys = list(inputs) if isinstance(inputs, dict) else range(len(inputs))
    parts = {key: nest_by_index(inputs[key], n) for key in keys}
    count = min(len(part) for part in parts.values())
    rows = [{key: parts[key][i] for key in keys} for i in range(count)]
    if isinstance(inputs, dict):
        return tuple(rows)
    return tuple(type(inputs)(row.values()) for row in rows)


def gather_by_hstack(outputs: list[dict]) -> dict:
    return {
        key: torch.hstack([o[key] for o in outputs])
        if outputs[0][key].dim() == 0
        else torch.vstack([o[key] for o in outputs])
        for key in outputs[0]
    }


def gather_by_growing(outputs: list[dict]) -> dict:
    joined: dict = {}
    for output in outputs:
        for key, value in output.items():
            rows = value.reshape(1) if value.dim() == 0 else value
            joined[key] = torch.cat([joined[key], rows]) if key in joined else rows
    return joined


def gather_in_place(outputs: list[dict]) -> dict:
    first = outputs[0]
    for key in first:
        values = [output[key] for output in outputs]
        first[key] = torch.stack(values) if first[key].dim() == 0 else torch.cat(values)
    return first


def mean_by_loop(means: Tensor, sizes: Tensor) -> float:
    total = rows = 0
    for mean, size in zip(means, sizes, strict=True):
        total += mean * size
        rows += size
    return float(total / rows)


@pytest.mark.parametrize(
    ("check", "attempt"),
    [
        (check_scatter, scatter_by_split),
        (check_scatter, scatter_by_loop),
        (check_scatter, scatter_by_indices),
        (check_scatter, Scatter()),
        (check_scatter, partial(solutions.my_scatter)),
        (check_scatter, lambda batch, n: (c for c in solutions.my_scatter(batch, n))),
        (check_scatter_nest, nest_by_tree_map),
        (check_scatter_nest, nest_by_index),
        (check_gather, gather_by_hstack),
        (check_gather, gather_by_growing),
        (check_gather, gather_in_place),
        (check_mean, mean_by_loop),
        (check_mean, lambda m, n: torch.dot(m, n.float()).item() / n.sum().item()),
        (check_mean, lambda m, n: (m * (n / n.sum())).sum()),
        (check_mean, lambda m, n: torch.repeat_interleave(m, n).mean()),
        (check_mean, lambda m, n: (m.double() @ n.double() / n.sum()).reshape(1)),
    ],
)
def test_another_way_to_write_it_is_correct_too(check: Callable, attempt: Callable):
    assert check(attempt).state == "correct", check(attempt)


# Wrong answers: scatter


def sized(size: Callable[[int, int], int]) -> Callable:
    """Cut every so many rows."""
    return lambda batch, n: [
        batch[start : start + size(len(batch), n)]
        for start in range(0, len(batch), size(len(batch), n))
    ]


def one_slice_each(batch: Tensor, n: int) -> list[Tensor]:
    size = -(-len(batch) // n)
    return [batch[i * size : (i + 1) * size] for i in range(n)]


def rounded_down(batch: Tensor, n: int) -> list[Tensor]:
    size = max(len(batch) // n, 1)
    return [batch[i * size : (i + 1) * size] for i in range(n)]


def rest_to_the_last(batch: Tensor, n: int) -> list[Tensor]:
    size = max(len(batch) // n, 1)
    return [*(batch[i * size : (i + 1) * size] for i in range(n - 1)), batch[(n - 1) * size :]]


def reversed_rows(batch: Tensor, n: int) -> list[Tensor]:
    return [chunk.flip(0) for chunk in solutions.my_scatter(batch, n)]


def flattened(batch: Tensor, n: int) -> list[Tensor]:
    return [chunk.flatten() for chunk in solutions.my_scatter(batch, n)]


@pytest.mark.parametrize(
    ("attempt", "given", "meant"),
    [
        (lambda b, n: b.tensor_split(n), "shape (7,) and 3", "tensor_split's sizes: as even as"),
        (one_slice_each, "shape (5,) and 4", "no chunk at all: do not add empty ones"),
        (rounded_down, "shape (7,) and 3", "That drops rows: 7 rows went in, 6 came out"),
        (lambda b, n: [b[i::n] for i in range(n)], "shape (6,) and 2", "deals the rows out like"),
        (lambda b, n: b.split(n), "shape (6,) and 2", "number of pieces for the size of a piece"),
        (lambda b, n: [len(c) for c in b.chunk(n)], "(6,) and 2", "the sizes; return the chunks"),
        (rest_to_the_last, "shape (7,) and 3", "A full chunk has ceil(7 / 3) = 3 rows"),
        (sized(lambda rows, n: max(rows // n, 1)), "(7,) and 3", "ceil(7 / 3) = 3 rows"),
        (sized(lambda rows, n: max(round(rows / n), 1)), "(7,) and 3", "ceil(7 / 3) = 3 rows"),
        (sized(lambda rows, n: rows // n + 1), "(6,) and 2", "ceil(6 / 2) = 3 rows"),
        (reversed_rows, "shape (6,) and 2", "rows of each chunk are in the wrong order"),
        (lambda b, n: b.chunk(n)[::-1], "(6,) and 2", "The chunks are in the wrong order"),
        (flattened, "shape (9, 2) and 4", "ceil(9 / 4) = 3 rows"),
        (lambda b, n: [c.tolist() for c in b.chunk(n)], "(6,) and 2", "ceil(6 / 2) = 3 rows"),
        (lambda b, n: b.reshape(n, -1), "(6,) and 2", "ceil(6 / 2) = 3 rows"),
        (lambda b, n: b, "(6,) and 2", "ceil(6 / 2) = 3 rows"),
        (lambda b, n: b[: len(b) // n], "(6,) and 2", "ceil(6 / 2) = 3 rows"),
        (lambda b, n: print(end=""), "(6,) and 2", "None is what a function without return"),
    ],
)
def test_wrong_answers_to_scatter_are_explained(attempt: Callable, given: str, meant: str):
    rejected(check_scatter, attempt, given, "expected ", "got ", meant, "Seven rows, three devices")


def scatter_with_torch(batch: Tensor, n: int) -> list[Tensor]:
    return list(torch.chunk(batch, n))


@pytest.mark.parametrize("attempt", [lambda b, n: b.chunk(n), scatter_with_torch])
def test_scatter_written_with_chunk_has_not_cut_anything_itself(attempt: Callable):
    rejected(check_scatter, attempt, "The result is right, but chunk did the work")


def test_scatter_written_with_scatter_has_not_cut_anything_itself():
    def attempt(batch: Tensor, n: int) -> list[Tensor]:
        return scatter(batch, ["cpu"] * n)

    rejected(check_scatter, attempt, "The result is right, but scatter did the work")


def copied(batch: Tensor, n: int) -> list[Tensor]:
    return [torch.tensor(chunk.tolist()) for chunk in solutions.my_scatter(batch, n)]


def copied_with_a_flag(batch: Tensor, n: int) -> list[Tensor]:
    chunks = solutions.my_scatter(batch, n)
    floating = batch.is_floating_point()
    return [chunk.detach().clone().requires_grad_(floating) for chunk in chunks]


@pytest.mark.parametrize("attempt", [copied, copied_with_a_flag])
def test_scatter_that_cuts_the_gradient_off_is_told(attempt: Callable):
    rejected(check_scatter, attempt, "Given tensors that require gradients", "cut off", "Leave out")


def test_scatter_through_numpy_fails_where_gradients_are_required():
    def attempt(batch: Tensor, n: int) -> list[Tensor]:
        return [torch.from_numpy(chunk.numpy()) for chunk in solutions.my_scatter(batch, n)]

    rejected(check_scatter, attempt, "require gradients", "RuntimeError: Can't call numpy()")


# Wrong answers: scatter for nests


def nest_of_lists(inputs: Any, n: int) -> Any:
    cut = solutions.my_scatter_nest
    if isinstance(inputs, dict):
        return {key: cut(value, n) for key, value in inputs.items()}
    return [cut(value, n) for value in inputs]


def one_level(inputs: Any, n: int) -> list[Any]:
    def cut(value: Any) -> list[Any]:
        return list(value.chunk(n)) if isinstance(value, Tensor) else [value] * n

    if isinstance(inputs, dict):
        rows = zip(*map(cut, inputs.values()), strict=False)
        return [dict(zip(inputs, row, strict=True)) for row in rows]
    return [type(inputs)(row) for row in zip(*map(cut, inputs), strict=False)]


def as_lists(inputs: Any, n: int) -> list[Any]:
    if isinstance(inputs, tuple | list):
        columns = [as_lists(value, n) for value in inputs]
        return [list(row) for row in zip(*columns, strict=False)]
    if isinstance(inputs, dict):
        columns = [as_lists(value, n) for value in inputs.values()]
        return [dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=False)]
    return solutions.my_scatter_nest(inputs, n)


def texts_too(inputs: Any, n: int) -> list[Any]:
    if isinstance(inputs, str):
        return list(inputs)
    if isinstance(inputs, list):
        return [list(row) for row in zip(*(texts_too(v, n) for v in inputs), strict=False)]
    return solutions.my_scatter_nest(inputs, n)


def without_empty_nests(inputs: Any, n: int) -> list[Any]:
    if isinstance(inputs, dict):
        columns = [without_empty_nests(value, n) for value in inputs.values()]
        return [dict(zip(inputs, row, strict=True)) for row in zip(*columns, strict=False)]
    if isinstance(inputs, tuple | list):
        columns = [without_empty_nests(value, n) for value in inputs]
        return [type(inputs)(row) for row in zip(*columns, strict=False)]
    return solutions.my_scatter_nest(inputs, n)


@pytest.mark.parametrize(
    ("attempt", "given", "meant"),
    [
        (lambda nest, n: [nest] * n, "dict of (Tensor, Tensor)", "got the whole nest"),
        (nest_of_lists, "dict of (Tensor, Tensor)", "a nest of lists; return a list of nests"),
        (lambda nest, n: solutions.my_scatter_nest(nest, n)[0], "dict of", "first device's nest"),
        (texts_too, "list of (Tensor, str)", "A text is no nest of letters"),
        (as_lists, "tuple of (Tensor, dict)", "Types have changed: a tuple stays a tuple"),
        (one_level, "tuple of (Tensor, dict)", "scatter calls itself for it"),
        (without_empty_nests, "dict of (Tensor, list)", "an empty nest goes to every device"),
        (lambda nest, n: nest.chunk(n), "dict of", "AttributeError"),
        (lambda nest, n: None, "dict of", "None is what a function without return"),
    ],
)
def test_wrong_answers_to_the_nest_are_explained(attempt: Callable, given: str, meant: str):
    rejected(check_scatter_nest, attempt, given, meant, "A dictionary goes in")


# Wrong answers: gather


def per_field(join: Callable[[list[Tensor]], Any]) -> Callable:
    """A gather that joins the tensors of each field like this."""
    return lambda outputs: {key: join([o[key] for o in outputs]) for key in outputs[0]}


def per_loss(join: Callable[[list[Tensor]], Any]) -> Callable:
    """A gather that joins rows as it should, and losses like this."""
    return per_field(lambda ts: join(ts) if ts[0].dim() == 0 else torch.cat(ts))


def updated(outputs: list[dict]) -> dict:
    joined: dict = {}
    for output in outputs:
        joined.update(output)
    return joined


def stacked_in_place(outputs: list[dict]) -> dict:
    for key in outputs[0]:
        outputs[0][key] = torch.stack([o[key] for o in outputs])
    return outputs[0]


def only_logits(outputs: list[dict]) -> dict:
    return {"logits": torch.cat([o["logits"] for o in outputs])}


def average(tensors: list[Tensor]) -> Tensor:
    return sum(tensors) / len(tensors)


ROWS, LOSSES = "two dicts with rows to join", "two dicts with a loss of 0 dimensions each"


@pytest.mark.parametrize(
    ("attempt", "given", "meant"),
    [
        (lambda outputs: outputs[0], ROWS, "the first device's output alone"),
        (lambda outputs: outputs[-1], ROWS, "the last device's output alone"),
        (updated, ROWS, "the last device's output alone: it replaced the others"),
        (per_field(list), ROWS, "The fields are still lists"),
        (per_field(tuple), ROWS, "The fields are still lists"),
        (per_field(lambda ts: [t.tolist() for t in ts]), ROWS, "The fields are still lists"),
        (per_field(torch.stack), ROWS, "stack adds a dimension; the rows belong end to end"),
        (stacked_in_place, ROWS, "stack adds a dimension"),
        (per_field(sum), ROWS, "gather joins; it does not add up"),
        (per_field(lambda ts: sum(t.sum() for t in ts)), ROWS, "it does not add up"),
        (per_field(average), ROWS, "gather joins; it does not average"),
        (
            per_field(lambda ts: torch.cat(ts, dim=-1)),
            ROWS,
            "That joins columns",
        ),
        (per_field(lambda ts: torch.cat(ts[::-1])), ROWS, "The devices are in the wrong order"),
        (per_field(lambda ts: torch.cat(ts).flatten()), ROWS, "The rows are no longer rows"),
        (
            lambda outputs: list(solutions.my_gather(outputs).values()),
            ROWS,
            "Take the keys from the",
        ),
        (per_field(torch.cat), LOSSES, "A loss of 0 dimensions has none to join along"),
        (per_loss(sum), LOSSES, "gather joins; it does not add up"),
        (per_loss(average), LOSSES, "gather joins; it does not average"),
        (per_loss(list), LOSSES, "The fields are still lists"),
        (per_loss(lambda ts: [t.item() for t in ts]), LOSSES, "The fields are still lists"),
        (per_loss(lambda ts: ts[0]), LOSSES, "the first device's output alone"),
        (per_loss(torch.vstack), LOSSES, "A loss of 0 dimensions has none to join along"),
        (only_logits, LOSSES, "A loss of 0 dimensions has none to join along"),
        (lambda outputs: None, ROWS, "None is what a function without return"),
        (
            lambda outputs: solutions.my_gather(outputs[:2]),
            "three dicts with logits and a loss",
            "The last device's output is missing",
        ),
    ],
)
def test_wrong_answers_to_gather_are_explained(attempt: Callable, given: str, meant: str):
    rejected(check_gather, attempt, f"Given {given}:", meant, "What does gather make of three")


@pytest.mark.parametrize(
    "join",
    [
        lambda ts: torch.tensor([t.item() for t in ts]),
        lambda ts: torch.tensor([t.item() for t in ts], requires_grad=True),
        lambda ts: torch.stack(ts).detach(),
    ],
)
def test_gather_that_cuts_the_gradient_of_the_losses_off_is_told(join: Callable):
    rejected(check_gather, per_loss(join), "require gradients", "is cut off from its inputs")


def test_gather_written_with_gather_has_not_joined_anything_itself():
    rejected(check_gather, lambda outputs: gather(outputs, "cpu"), "but gather did the work")


def test_gather_that_cuts_the_gradient_of_the_rows_off_is_told():
    def attempt(outputs: list[dict]) -> dict:
        with torch.no_grad():
            return solutions.my_gather(outputs)

    rejected(check_gather, attempt, "require gradients", "is cut off from its inputs", "Leave out")


# Wrong answers: the mean


@pytest.mark.parametrize(
    ("attempt", "got", "meant"),
    [
        (
            lambda m, n: m.mean(),
            "tensor 4.666667",
            "the mean of the means: a short chunk counts too much",
        ),
        (lambda m, n: (m * n).sum(), "tensor 28", "the sum over all rows; divide it"),
        (lambda m, n: (m * n).sum() / len(m), "tensor 9.333333", "not by the number of chunks"),
        (lambda m, n: (m * n).mean(), "tensor 9.333333", "not by the number of chunks"),
        (lambda m, n: m.sum() / n.sum(), "tensor 2", "weight it by its chunk's size"),
        (lambda m, n: m[:-1].mean(), "tensor 3.5", "leaves the last chunk out"),
        (lambda m, n: (m * n)[:-1].sum() / n[:-1].sum(), "tensor 3.5", "leaves the last chunk out"),
        (lambda m, n: m * n / n.sum(), "tensor [0.8571429, 2.142857, 1]", "Read again: "),
        (lambda m, n: m.max(), "tensor 7", "Read again: "),
        (lambda m, n: "4.0", "'4.0'", "Read again: "),
        (lambda m, n: None, "None", "None is what a function without return"),
    ],
)
def test_wrong_answers_to_the_mean_are_explained(attempt: Callable, got: str, meant: str):
    given = "Given means [2.0, 5.0, 7.0] of chunks of [3, 3, 1] rows"
    lines = [given, "expected 4", f"got {got}"]
    rejected(check_mean, attempt, *lines, meant)


def test_the_mean_is_no_whole_number_in_every_case():
    rejected(check_mean, lambda m, n: (m * n).sum() // n.sum(), "expected 2.2", "got tensor 2")


# Attempts that misbehave: each check tells, and goes on working


class Odd(Exception):
    """No error of torch's."""


def raises(*given: Any) -> None:
    raise Odd("here")


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict, "TIME_LIMIT_S", 0.1)
    monkeypatch.setattr(results, "GRACE_S", 0.1)


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Set when the test is over, so that no attempt sleeps on behind the others."""
    event = threading.Event()
    yield event
    event.set()


def forever(*given: Any) -> None:
    while True:
        time.sleep(0)


@each_check
@pytest.mark.parametrize(
    ("attempt", "problem"),
    [
        (raises, "it raised Odd: here (line "),
        (lambda: 5, "it raised TypeError: "),
        (lambda a, b, c, d: 5, "missing "),
        (lambda *given: None, "None is what a function without return gives back."),
        (lambda *given: "no", "got 'no'"),
        (lambda *given: {}, "got {}"),
        (lambda *given: [], "got []"),
        (lambda *given: object, "got <class 'object'>"),
        (lambda *given: (yield), "got "),
        (None, "This check takes a function; it got None."),
        (torch.tensor([1.0]), "This check takes a function; it got tensor [1]."),
    ],
)
def test_each_check_tells_what_an_odd_attempt_did(check: Callable, attempt: Any, problem: str):
    rejected(check, attempt, problem)
    assert check(CHECKS[check]).state == "correct"


@each_check
@pytest.mark.usefixtures("_hurried")
def test_each_check_ends_an_attempt_that_does_not_return(check: Callable, end: threading.Event):
    rejected(check, forever, "it had not returned after 0.1 seconds and was stopped.")
    rejected(check, lambda *given: end.wait(30), "it had not returned after 0.1 seconds")
    assert check(CHECKS[check]).state == "correct"


def wrecked(given: Any) -> None:
    """Change everything in place that can be changed."""
    if isinstance(given, Tensor):
        given.detach().zero_()
    elif isinstance(given, list):
        for item in given:
            wrecked(item)
        given.clear()
    elif isinstance(given, dict):
        for item in given.values():
            wrecked(item)
        given.clear()


@each_check
def test_an_attempt_that_wrecks_its_input_spoils_no_case(check: Callable):
    def attempt(*given: Any) -> Any:
        result = CHECKS[check](*given)  # chunks are views of what they came from
        result = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, result)
        wrecked(list(given))
        return result

    assert check(attempt).state == "correct"


def test_a_batch_changed_in_place_is_no_right_answer():
    rejected(
        check_scatter,
        lambda b, n: solutions.my_scatter(b.zero_(), n),
        "got [tensor [0, 0, 0], ",
    )


# What the page says about its checks


def test_every_check_names_a_heading_of_the_page():
    [page] = find_pages(["01"])
    text = "\n".join(cell.source for cell in read(page).cells if cell.cell_type == "markdown")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    for check in CHECKS:
        [where] = re.findall(r'Read again: "(.+)"\.', check(raises).lines[-1])
        assert where in headings


def test_scatter_is_tried_on_six_cases_and_in_four_a_device_gets_nothing():
    tried = []

    def attempt(batch: Tensor, n: int) -> list[Tensor]:
        tried.append((len(batch), n))
        return solutions.my_scatter(batch, n)

    assert "All 6 cases agree" in check_scatter(attempt).lines[0]
    assert sum(len(torch.arange(rows).chunk(n)) < n for rows, n in tried) == 4
