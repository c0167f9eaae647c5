"""Checks: a step over two devices, a balanced split, one model's parts, places under a limit."""

import copy
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.checks.attempted_cuts import largest_stage, split_trial
from mpcourse.checks.attempted_placements import step_problem
from mpcourse.checks.verdict import (
    Verdict,
    correct,
    no_function,
    not_attempted,
    not_yet,
    short,
    try_out,
)
from mpcourse.splitting.placement import run_layers, try_placement
from mpcourse.splitting.splits import layer_costs


def check_training_step(attempt: Callable[..., Tensor]) -> Verdict:
    """Check `my_training_step(front, back, inputs, labels, first, second)`.

    Args:
        attempt: Takes two modules, inputs and labels, all on the host, and a place for each
            module; returns the loss after its backward.
    """
    where = '"Two pretended GPUs"'
    if not callable(attempt):
        return no_function(attempt, where)
    lines = step_problem(attempt)
    if lines is ...:
        return not_attempted()
    right = "Loss and gradients are right, and four copies are made."
    return not_yet(lines, where) if lines else correct(right)


def check_split(attempt: Callable[[nn.Sequential, int], list[nn.Sequential]]) -> Verdict:
    """Check `my_split(model, num_stages)`: stages of one model, balanced by parameters.

    Args:
        attempt: Takes a Sequential and a number of stages; returns the stages.
    """
    where = '"Half of the layers, half of the parameters?"'
    cases = [
        ([1, 1, 1, 1], 2),
        ([5, 1, 1, 1], 2),
        ([2, 2, 2, 6, 1], 2),
        ([4, 3, 3], 2),
        ([9, 1, 1], 3),
        ([3, 0, (1, 2), 0, 5], 2),
        ([0, (1, 6), 0, (5, 1), (7, 1)], 2),
        ([1, 8, 3, 2, 1, 1], 3),
        ([1, 1, 1, 10, 1, 1], 3),
        ([2, 3, 4, 5, 6], 1),
        ([3, 7, 2, 6, 5, 1, 4], 4),
    ]
    return _check(attempt, [(split_trial, case) for case in cases], where)


class _Net(nn.Module):
    """Built like the model of the page, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(images.flatten(1)).relu()).relu())


def check_parts(attempt: Callable[[nn.Module], Sequence[nn.Module]]) -> Verdict:
    """Check `my_parts(model)`: two modules that do, one after the other, what the model does.

    Args:
        attempt: Takes a model with fc1, fc2, fc3, made like the page's; returns two modules.
    """
    where = '"Snippets you will meet"'
    return _check(attempt, [(_parts_trial, (seed,)) for seed in (4004, 4005)], where)


def _parts_trial(attempt: Callable, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model, images = _Net().double(), torch.randn(50, 1, 3, 4).double()
    parts, problem = try_out(attempt, model)
    if parts is ...:
        return ...
    given = "Given a model 12-8-6-3 and images of 3 x 4:"
    if problem:
        return [given, problem]
    is_list = isinstance(parts, list | tuple | nn.Sequential | nn.ModuleList)
    if not is_list or [isinstance(part, nn.Module) for part in parts] != [True, True]:
        return [given, f"expected two modules, got {short(parts)}"]
    fault = _wrong_parameters(model, parts)
    if fault:
        return [given, fault]
    outputs, problem = try_out(lambda: parts[1](parts[0](images)))
    if problem:
        hint = "In the model, what happens to an image before fc1?"
        return [given, problem, hint if "shapes cannot be multiplied" in problem else ""]
    if not isinstance(outputs, Tensor):
        return [given, f"expected a tensor out of the second module, got {short(outputs)}"]
    if outputs.shape == (50, 3) and torch.allclose(outputs, model(images)):
        fault = _untrained(model, outputs)
        return [given, "the outputs are right", fault] if fault else None
    return [given, "the outputs differ from the model's", _why_other(model, images, outputs)]


def _untrained(model: nn.Module, outputs: Tensor) -> str | None:
    """Whether training the parts would leave a parameter of the model as it is."""
    named = dict(model.named_parameters())
    frozen = [name for name, parameter in named.items() if not parameter.requires_grad]
    if frozen:
        return f"{frozen[0]} is frozen: its requires_grad is False now."
    if not outputs.requires_grad:
        return "No gradient can flow back from the outputs."
    found = torch.autograd.grad(outputs.sum(), list(named.values()), allow_unused=True)
    lost = [name for name, gradient in zip(named, found, strict=True) if gradient is None]
    return f"{lost[0]} gets no gradient: something is cut off by detach()." if lost else None


def _wrong_parameters(model: nn.Module, parts: Sequence[nn.Module]) -> str | None:
    held = [list(part.parameters()) for part in parts]
    found = [id(parameter) for own in held for parameter in own]
    own = {id(parameter): parameter for parameter in model.parameters()}
    if all(held) and not set(found) & set(own):
        pairs = zip(chain(*held), own.values(), strict=False)
        if len(found) == len(own) and all(torch.equal(a, b) for a, b in pairs):
            return "These are copies: training the parts would leave the model as it was."
        return "None of their parameters is the model's: use its own layers, make no new model."
    if not all(held):
        return "One part has no parameters: there is nothing left to share out."
    if len(set(found)) < len(found):
        return "A parameter is in both parts: two devices cannot both update it."
    missing = len(set(own) - set(found))
    if missing or set(found) - set(own):
        return f"{missing} of the model's {len(own)} parameters are in no part of yours."
    return None


def _why_other(model: nn.Module, images: Tensor, outputs: Tensor) -> str:
    def straight(first: bool, second: bool, third: bool) -> Tensor:
        value = images.flatten(1)
        for layer, bends in zip(
            (model.fc1, model.fc2, model.fc3), (first, second, third), strict=True
        ):
            value = layer(value).relu() if bends else layer(value)
        return value

    for bends, words in (
        ((False, False, False), "Both ReLUs are lost: they were in forward, not among the layers."),
        ((True, False, False), "A ReLU is lost: the one between fc2 and fc3."),
        ((False, True, False), "A ReLU is lost: the one between fc1 and fc2."),
        ((True, True, True), "There is no ReLU after the last layer: outputs may be negative."),
    ):
        wrong = straight(*bends)
        if wrong.shape == outputs.shape and torch.allclose(outputs, wrong):
            return words
    return "Write down, in order, all that forward does, then cut that list in two."


def check_places(attempt: Callable[[nn.Sequential, Tensor, int], Sequence[int]]) -> Verdict:
    """Check `my_places(net, inputs, limit)`: which layer goes to which of two GPUs.

    Args:
        attempt: Takes a Sequential, inputs for it and the most bytes that may cross at once;
            returns 0 or 1 for each layer.
    """
    where = '"Where does a cut cost least?"'
    cases = [
        ([8, 8, 8, 8], 4, 128),
        ([4, 64, 2, 32, 4], 10, 80),
        ([4, 2, 40, 3, 50, 8], 10, 120),
        ([50, 2, 40, 60, 30], 5, 800),
        ([6, 30, 6, 20, 6, 30, 4], 10, 240),
    ]
    return _check(attempt, [(_places_trial, case) for case in cases], where)


def _places_trial(attempt: Callable, widths: list[int], rows: int, limit: int) -> Any:
    net = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(widths)))
    inputs = torch.zeros(rows, widths[0])
    places, problem = try_out(attempt, copy.deepcopy(net), inputs.clone(), limit)
    if places is ...:
        return ...
    way = "-".join(map(str, widths))
    given = f"Given the net {way}, {rows} rows of float32 and a limit of {limit} bytes:"
    if problem:
        return [given, problem, f"A tensor of exactly {limit} bytes may cross."]
    places = places.tolist() if hasattr(places, "tolist") else places  # a tensor, an array
    if not isinstance(places, list | tuple) or len(places) != len(net):
        return [given, f"expected {len(net)} places, one per layer; got {short(places)}"]
    places = [place.item() if hasattr(place, "item") else place for place in places]
    if any(place not in (0, 1) for place in places):
        return [given, f"a place is 0 or 1; got {short(places)}"]
    fault = _wrong_places(net, list(map(int, places)), inputs, limit)
    return [given, f"got {short(list(places))}", fault] if fault else None


def _wrong_places(net: nn.Sequential, places: list[int], inputs: Tensor, limit: int) -> str | None:
    if len(set(places)) == 1:
        return "One GPU has all the layers: use both."
    devices = [torch.device("cuda", place) for place in places]
    crossing = try_placement(run_layers, net, devices, inputs)
    sent = [transfer for transfer in crossing.transfers if transfer.between_gpus]
    if places[0] == 1:
        return "The first layer goes to GPU 0."
    if len(sent) > 1:
        return f"{len(sent)} tensors cross between the GPUs: one cut is enough."
    if sent[0].nbytes > limit:
        return f"A tensor of shape {sent[0].shape} crosses: {sent[0].nbytes} bytes are too many."
    costs = [4 * int(cost) for cost in layer_costs(net)]
    allowed, value = [], inputs
    for cut, layer in enumerate(net, start=1):
        value = layer(value)
        if cut < len(net) and value.nbytes <= limit:
            allowed.append([0, cut, len(net)])
    best = min(largest_stage(costs, cut) for cut in allowed)
    worst = max(crossing.parameter_bytes.values())
    if worst == best:
        return None
    words = f"The fuller GPU has {worst} bytes of parameters; {best} are possible within the limit."
    if places == [0] * allowed[0][1] + [1] * (len(net) - allowed[0][1]):
        return f"{words} Another cut is allowed and better balanced: compare all of them."
    return f"{words} Which cuts are allowed? A tensor of exactly {limit} bytes may cross."


def _check(attempt: Any, trials: Sequence[tuple[Callable, tuple]], where: str) -> Verdict:
    """Try the attempt on each case, in order; a trial gives None, `...`, or what is wrong."""
    if not callable(attempt):
        return no_function(attempt, where)
    for trial, case in trials:
        lines = trial(attempt, *case)
        if lines is ...:
            return not_attempted()
        if lines:
            return not_yet(lines, where)
    return correct(f"All {len(trials)} cases agree.")
