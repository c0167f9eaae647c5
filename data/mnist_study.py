"""Five seeds of the MNIST net, trained through a pipeline: `python data/mnist_study.py`.

With the images as they are, and shifted at random by up to one pixel, each for fewer and for more
epochs: what shifts gain is seen at the same number of epochs. Writes `mnist_study.csv` into
`data/`, which page `train_mnist` shows. The settings were chosen on other seeds than those
reported.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

from mpcourse.devices.devices import describe_devices, get_devices
from mpcourse.devices.recordings import write_recording
from mpcourse.pipeline.pipeline import Pipeline
from mpcourse.splitting.splits import split_sequential
from mpcourse.training.loop import Evaluation, evaluate, train_epoch
from mpcourse.training.mnist import STANDARD_TRANSFORM, load_mnist
from mpcourse.training.nets import mnist_net

COMMAND = "python data/mnist_study.py"
RECIPES = [(0, 15), (1, 15), (0, 40), (1, 40)]  # pixels of the shifts, epochs
SEEDS = range(5)


def train(shifts: int, epochs: int, seed: int) -> Evaluation:
    """Train the net 784-128-64-10 in two stages with four micro-batches, from one seed."""
    torch.manual_seed(seed)
    moved = transforms.Compose([transforms.RandomCrop(28, padding=shifts), STANDARD_TRANSFORM])
    shown, _ = load_mnist(transform=moved)
    _, kept = load_mnist()
    net = mnist_net()
    pipeline = Pipeline(split_sequential(net, 2, by="count"), num_microbatches=4)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loader = DataLoader(shown, batch_size=64, shuffle=True)
    for _ in range(epochs):
        train_epoch(pipeline, loader, optimizer, loss_fn)
        rate.step()
    return evaluate(pipeline, DataLoader(kept, batch_size=256), loss_fn)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train every seed with and without shifts, print each result, write the recording."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--dry", action="store_true", help="one seed, one epoch; writes nothing")
    dry = parser.parse_args(arguments).dry
    rows = []
    for shifts, epochs in RECIPES:
        for seed in SEEDS[:1] if dry else SEEDS:
            found = train(shifts, 1 if dry else epochs, seed)
            row = {"shifts": shifts, "epochs": epochs, "seed": seed, "accuracy": found.accuracy}
            rows.append({**row, "loss": round(found.loss, 4)})
            print(rows[-1], flush=True)
    if not dry:
        devices = describe_devices(get_devices(2))
        print(write_recording("mnist_study.csv", rows, command=COMMAND, device=devices))
    return 0


if __name__ == "__main__":
    sys.exit(main())
