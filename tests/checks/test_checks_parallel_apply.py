"""The checks accept right answers however they are written and explain wrong ones."""

import concurrent.futures
import copy
import threading
import time

import pytest
import torch
from solutions import parallel_apply as solutions

from mpcourse.checks import (
    attempted_hand_overs,
    check_crossing,
    check_data_parallel,
    check_first_device,
    check_parallel_apply,
)
from mpcourse.data_parallel import DataParallel, gather, parallel_apply, replicate, scatter


@pytest.fixture(autouse=True)
def short_meetings(monkeypatch):
    monkeypatch.setattr(attempted_hand_overs, "MEET_S", 0.5)


def said(verdict) -> str:
    assert verdict.state == "not yet", verdict
    assert verdict.lines[-1].startswith("Read again: ")
    return "\n".join(verdict.lines)


def test_stubs_are_not_attempted():
    assert check_parallel_apply(lambda modules, inputs, devices: ...).state == "not attempted"
    assert check_data_parallel(lambda module, batch, devices: ...).state == "not attempted"
    assert check_crossing(lambda sizes, one, two: ...).state == "not attempted"
    assert check_first_device(lambda *numbers: ...).state == "not attempted"


def test_solutions_are_correct():
    assert check_parallel_apply(solutions.my_parallel_apply).state == "correct"
    assert check_data_parallel(solutions.my_data_parallel).state == "correct"
    assert check_crossing(solutions.my_crossing).state == "correct"
    assert check_first_device(solutions.my_first_device).state == "correct"


def crossing_forwards(sizes, one_device, two_devices):
    for start, size in enumerate(sizes):
        if all(two_devices[i] < one_device[i] for i in range(start, len(sizes))):
            return size


def by_functional_calls(module, batch, devices):
    def replica_of(device):
        shell = copy.deepcopy(module)  # one each: functional_call puts the weights in for the call
        weights = {n: w.to(device.device, copy=True) for n, w in module.named_parameters()}
        return lambda rows: torch.func.functional_call(shell, weights, rows)

    chunks = scatter(batch, devices)
    pairs = list(zip(devices, chunks, strict=False))
    results = [device.submit(replica_of(device), chunk) for device, chunk in pairs]
    return torch.cat([result.result().to(devices[0].device) for result in results])


def test_other_right_answers_are_correct():
    assert check_data_parallel(by_functional_calls).state == "correct"
    assert check_crossing(crossing_forwards).state == "correct"
    attempt = lambda w, i, o, rows, n: w + i * ((rows + n - 1) // n) + o * rows  # noqa: E731
    assert check_first_device(attempt).state == "correct"


def submit_all(modules, inputs, devices):
    pairs = zip(devices, modules, inputs, strict=True)
    return [device.submit(module, value) for device, module, value in pairs]


def serial(modules, inputs, devices):
    pairs = zip(devices, modules, inputs, strict=True)
    return [device.run(module, value) for device, module, value in pairs]


def by_finishing(modules, inputs, devices):
    done = concurrent.futures.as_completed(submit_all(modules, inputs, devices))
    return [result.result() for result in done]


def swallowing(modules, inputs, devices):
    outputs = []
    for result in submit_all(modules, inputs, devices):
        try:
            outputs.append(result.result())
        except Exception:
            outputs.append(None)
    return outputs


def other_error(modules, inputs, devices):
    try:
        return without_modes(modules, inputs, devices)
    except Exception as error:
        raise RuntimeError("a replica failed") from error


def without_modes(modules, inputs, devices):
    return [result.result() for result in submit_all(modules, inputs, devices)]


def never_gradients(modules, inputs, devices):
    def call(module, value):
        with torch.no_grad():
            return module(value)

    pairs = zip(devices, modules, inputs, strict=True)
    results = [device.submit(call, module, value) for device, module, value in pairs]
    return [result.result() for result in results]


def own_threads(modules, inputs, devices):
    outputs = {}

    def run(number):
        outputs[number] = modules[number](inputs[number])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(modules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outputs[number] for number in range(len(modules))]


def all_on_the_first(modules, inputs, devices):
    return solutions.my_parallel_apply(modules, inputs, [devices[0]] * len(modules))


def late_variables(modules, inputs, devices):
    results = []
    for module, value, device in zip(modules, inputs, devices, strict=True):
        results.append(device.submit(lambda: time.sleep(0.05) or module(value)))  # noqa: B023
    return [result.result() for result in results]


def leaving_it_off(modules, inputs, devices):
    gradients = torch.is_grad_enabled()

    def call(module, value):
        torch.set_grad_enabled(gradients)
        return module(value)

    pairs = zip(devices, modules, inputs, strict=True)
    results = [device.submit(call, module, value) for device, module, value in pairs]
    return [result.result() for result in results]


def with_parallel_apply(modules, inputs, devices):
    return parallel_apply(modules, inputs, devices=devices)


def two_devices_only(modules, inputs, devices):
    return solutions.my_parallel_apply(modules[:2], inputs[:2], devices[:2])


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (with_parallel_apply, "parallel_apply did the work: use device.submit"),
        (two_devices_only, "expected 3 outputs, got "),
        (serial, "First submit all of them"),
        (by_finishing, "not in the order of finishing"),
        (lambda m, i, d: without_modes(m, [i[0]] * 2, d), "Each module has its own input"),
        (submit_all, "ask each for its result"),
        (own_threads, "hands it over"),
        (all_on_the_first, "CPU core 1's worker"),
        (late_variables, "had moved on"),
        (leaving_it_off, "in a with block"),
        (swallowing, "The error was swallowed"),
        (other_error, "keep its type"),
        (without_modes, "grad mode belongs to a thread"),
        (never_gradients, "the outputs require none"),
        (lambda m, i, d: None, "got None"),
        (lambda m, i: None, "TypeError"),
        (5, "takes a function"),
    ],
)
def test_wrong_parallel_applies_are_explained(attempt, words):
    assert words in said(check_parallel_apply(attempt))


def all_devices(module, batch, devices):
    chunks = scatter(batch, devices)
    replicas = replicate(module, devices)
    return gather(parallel_apply(replicas, chunks, devices=devices), devices[0])


def deep_copies(module, batch, devices):
    chunks = scatter(batch, devices)
    used = devices[: len(chunks)]
    replicas = [copy.deepcopy(module) for _ in used]
    return gather(parallel_apply(replicas, chunks, devices=used), devices[0])


def one_module_for_all(module, batch, devices):
    chunks = scatter(batch, devices)
    used = devices[: len(chunks)]
    return gather(parallel_apply([module] * len(used), chunks, devices=used), devices[0])


def without_gather(module, batch, devices):
    chunks = scatter(batch, devices)
    return parallel_apply([module] * len(chunks), chunks, devices=devices[: len(chunks)])


def one_chunk_twice(module, batch, devices):
    chunks = scatter(batch, devices)
    used = devices[: len(chunks)]
    return gather(
        parallel_apply([module] * len(used), [chunks[0]] * len(used), devices=used), "cpu"
    )


def without_gradients(module, batch, devices):
    with torch.no_grad():
        return solutions.my_data_parallel(module, batch, devices)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (5, "takes a function"),
        (lambda module, batch, devices: module(batch), "expected 2 devices at work"),
        (lambda m, b, d: solutions.my_data_parallel(m, b, d[:1]), "expected 2 devices at work"),
        (all_devices, "5 rows and 4 devices"),
        (deep_copies, "The gradients do not reach the module's own weights"),
        (one_module_for_all, "on GPUs each needs its own replica"),
        (without_gather, "gather joins what the devices made"),
        (one_chunk_twice, "expected a tensor of shape"),
        (without_gradients, "cut off from the weights"),
        (lambda m, b, d: DataParallel(m, d)(b), "DataParallel did the work: use the four verbs"),
        (lambda m, b, d: None, "expected one tensor, got None"),
    ],
)
def test_wrong_data_parallels_are_explained(attempt, words):
    assert words in said(check_data_parallel(attempt))


def without_the_last(sizes, one, two):
    found = None
    for size, a, b in reversed(list(zip(sizes[:-1], one, two, strict=False))):
        if b >= a:
            break
        found = size
    return found


def first_win(sizes, one, two):
    return next((s for s, a, b in zip(sizes, one, two, strict=True) if b < a), None)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (first_win, "a lucky moment"),
        (without_the_last, "a lucky moment"),
        (lambda s, a, b: s.index(solutions.my_crossing(s, a, b)), "the position in the list"),
        (lambda s, a, b: solutions.my_crossing(s, a, b) or 0, "return None"),
        (lambda s, a, b: solutions.my_crossing(s, a, b) or s[-1], "does not pay either"),
        (
            lambda s, a, b: [n for n, x, y in zip(s, a, b, strict=True) if y < x],
            "one number is asked for",
        ),
        (lambda s, a, b: solutions.my_crossing(s, b, a), "here it does"),
        (lambda s, a, b: crossing_forwards(s, [x + 1e-9 for x in a], b), "Equally fast"),
        (lambda s, a, b: max(s), "Find the smallest size"),
    ],
)
def test_wrong_crossings_are_explained(attempt, words):
    assert words in said(check_crossing(attempt))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda w, i, o, r, n: w + -(-r // n) * (i + o), "Outputs are gathered"),
        (lambda w, i, o, r, n: w + r * (i + o), "Inputs are scattered"),
        (lambda w, i, o, r, n: w / n + -(-r // n) * i + r * o, "all the weights"),
        (lambda w, i, o, r, n: w * n + -(-r // n) * i + r * o, "the weights once"),
        (lambda w, i, o, r, n: w + r / n * i + r * o, "a whole number of rows"),
        (lambda w, i, o, r, n: w + r // n * i + r * o, "rounded up"),
        (lambda w, i, o, r, n: w, "weights + its chunk"),
    ],
)
def test_wrong_memories_are_explained(attempt, words):
    assert words in said(check_first_device(attempt))
