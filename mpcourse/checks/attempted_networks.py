"""An attempt at a ResNet50 over two places, looked at (page `resnet50_on_two_devices`)."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import ResNet, resnet50

from mpcourse.checks.verdict import short, try_out
from mpcourse.splitting.placement import Placement, try_placement

CLASSES, SIDE = 3, 32
FEATURES = (2, 512, SIDE // 8, SIDE // 8)  # what layer2 makes of two pictures
GPUS = [str(torch.device("cuda", index)) for index in (0, 1)]  # pretended


def network_problem(attempt: Callable[..., nn.Module]) -> Any:
    """Build the attempt's network in one place and compare it, then over two pretended GPUs.

    Returns:
        None when all is right, `...` for a stub, else what is wrong, in lines.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5005)
        images = torch.randn(2, 3, SIDE, SIDE)
        lines = _wrong_numbers(attempt, images)
    for places in (GPUS, GPUS[::-1]):
        lines = lines or _wrong_places(attempt, images, *places)
    return lines


@functools.cache
def _reference() -> ResNet:
    network = resnet50(num_classes=CLASSES).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # a fresh one hands its input on
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network


def _wrong_numbers(attempt: Callable, images: Tensor) -> Any:
    given = f"Given two pictures and {CLASSES} classes, first and second both 'cpu':"
    reference = _reference()
    network, problem = try_out(attempt, "cpu", "cpu", CLASSES)
    if network is ...:
        return ...
    if problem:
        return [given, f"as it was built, {problem}"]
    if not isinstance(network, nn.Module):
        return [given, f"expected a module, got {short(network)}"]
    outputs, problem = try_out(network.eval(), images)
    if outputs is ...:
        return ...
    wanted, found = len(reference.state_dict()), len(network.state_dict())
    if wanted != found:
        why = "Layers that are registered twice count twice." if found > wanted else ""
        return [given, f"expected a state_dict of {wanted} entries, got {found}", why]
    _, unfit = try_out(network.load_state_dict, reference.state_dict())
    if unfit:
        return [given, "The weights of torchvision's resnet50 do not fit:", unfit[:200]]
    if problem:
        flat = "shapes cannot be multiplied" in problem
        return [given, problem, "What comes between avgpool and fc in a ResNet?" if flat else ""]
    outputs, problem = try_out(network, images)
    if problem or not isinstance(outputs, Tensor):
        return [given, problem or f"expected a tensor, got {short(outputs)}"]
    expected = reference(images)
    if outputs.shape == expected.shape and torch.allclose(outputs.cpu(), expected, atol=1e-4):
        return None
    return [given, "the outputs differ from those of torchvision's resnet50", _skipped(network)]


def _skipped(network: nn.Module) -> str:
    """The part that a network with torchvision's names never calls."""
    called: set[str] = set()
    handles = [
        child.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        for name, child in network.named_children()
    ]
    try_out(network, torch.zeros(1, 3, SIDE, SIDE))
    for handle in handles:
        handle.remove()
    never = [name for name, _ in _reference().named_children() if name not in called]
    if never:
        return f"It never calls {', '.join(never)}."
    return "All parts are called: in which order does torchvision's forward call them?"


def _wrong_places(attempt: Callable, images: Tensor, first: str, second: str) -> list[str] | None:
    given = f"Given first {first!r} and second {second!r}:"
    made: list[Placement] = []  # so that its error is not taken for the attempt's

    def program(images: Tensor) -> None:
        attempt(first, second, CLASSES)(images).sum().backward()

    _, problem = try_out(lambda: made.append(try_placement(program, images)))
    left = "Parts, pictures, features: what is where it was?"
    if problem:
        return [given, problem, left if "same device" in problem else ""]
    [placement] = made
    if placement.error:
        return [given, placement.error, left]
    held = list(placement.parameter_bytes)
    if held != sorted([first, second]):
        return [given, f"The parameters are on {', '.join(held)}; each device gets a half."]
    wanted = [("cpu", first, tuple(images.shape), False), (first, second, FEATURES, False)]
    wanted.append((second, first, FEATURES, True))
    found = [(t.source, t.target, t.shape, t.backward) for t in placement.transfers]
    if found == wanted:
        return None
    went = "; ".join(" ".join(str(transfer).split()) for transfer in placement.transfers)
    return [given, f"copied: {went}", _why_copied(found)]


def _why_copied(found: list[tuple]) -> str:
    over = [way for way in found if "cpu" not in way[:2] and not way[3]]
    if over and over[0][2] != FEATURES:
        return f"The cut lies behind layer2: features of shape {FEATURES} cross there."
    if not any(way[3] for way in found):
        return "No gradient comes back over the cut."
    return "The pictures go to the first device, the features to the second; nothing else moves."
