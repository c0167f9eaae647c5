"""The work that torch's pipeline is given: a net, its stages, and the batches of its steps."""

import argparse
from contextlib import AbstractContextManager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torchvision.models import resnet50

from mpcourse.splitting.resnet import resnet_blocks, thin_resnet50
from mpcourse.splitting.splits import balanced_bounds
from mpcourse.training.mnist import load_mnist
from mpcourse.training.nets import conv_net, mnist_net

MODELS = {
    "mnist": mnist_net,
    "conv": conv_net,
    "resnet50": lambda: resnet_blocks(resnet50(num_classes=10)),
    "thin-resnet50": lambda: thin_resnet50(num_classes=10),
}
LOSS = nn.CrossEntropyLoss()


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """What is trained, and on how much."""
    parser.add_argument("--model", choices=list(MODELS), default="mnist")
    parser.add_argument("--image-size", type=int, default=64, help="pixels, for the ResNets")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--double", action="store_true", help="compute in float64")


def make_net(options: argparse.Namespace) -> nn.Sequential:
    """The net, the same in every process; the generator of the caller is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.seed)  # torch.manual_seed: GPUs', too
        net = MODELS[options.model]()
        return net.double() if options.double else net


def cut(net: nn.Sequential, num_stages: int) -> list[nn.Sequential]:
    """Stages of about as many layers (or blocks of a ResNet) each; the first has parameters.

    torch's split backward loses the weights' gradients of a stage whose input needs none, as that
    behind a first stage without parameters does, and says nothing.
    """
    first = next(i for i, layer in enumerate(net) if list(layer.parameters()))
    bounds = [first + bound for bound in balanced_bounds([1.0] * len(net[first:]), num_stages)]
    return [net[start:end] for start, end in pairwise([0, *bounds[1:]])]


def make_batches(options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    """One mini-batch per step: MNIST for the nets of MNIST, random images for a ResNet."""
    number = options.batch_size * options.steps
    generator = torch.Generator().manual_seed(options.seed)
    if "resnet" in options.model:
        size = options.image_size
        images = torch.randn(number, 3, size, size, generator=generator)
        targets = torch.randint(10, (number,), generator=generator)
    else:
        train, _ = load_mnist()
        order = torch.randperm(len(train), generator=generator)[:number].tolist()
        images = torch.stack([train[index][0] for index in order])
        targets = torch.tensor([train[index][1] for index in order])
    images = images.double() if options.double else images
    pairs = zip(images.split(options.batch_size), targets.split(options.batch_size), strict=True)
    return list(pairs)


def reproducible() -> AbstractContextManager:
    """Inside, two engines that do the same actions in the same order compute the same on GPUs."""
    # enabled is False unless it is given
    return torch.backends.cudnn.flags(
        enabled=True, deterministic=True, benchmark=False, allow_tf32=False
    )
