"""Training steps on XLA: what is traced, what is compiled, and when. It needs torch_xla.

On an XLA device nothing is computed when a line runs: operations gather in a graph, until
`torch_xla.sync()` hands it over. A graph that was seen before is not compiled again.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpcourse.compilation.xla import COMMAND, GRAPH, TABLE
from mpcourse.devices.recordings import write_recording
from mpcourse.training.nets import lenet_300_100

BATCHES = (64, 64, 64, 32, 32, 64, 17)  # the same shape, another one, back again, a third one
LOSS = nn.CrossEntropyLoss()


class Training:
    """LeNet-300-100 and SGD on a device, the same from the same seed everywhere."""

    def __init__(self, place: torch.device) -> None:
        torch.manual_seed(0)
        self.place = place
        self.model = lenet_300_100().to(place)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, backward and optimizer step; returns the loss."""
        self.optimizer.zero_grad()
        loss = LOSS(self.model(images.to(self.place)), labels.to(self.place))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def random_batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of shape (size, 1, 28, 28) and labels; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (size,), generator=generator)


def run_steps() -> tuple[list[dict[str, Any]], str]:
    """Train on XLA and, beside it, without; note the losses, the compiles, the seconds.

    Returns:
        A row per step ("compiles" and "cache_hits" count from the first step on), and the graph of
        the first step as HLO, before XLA optimizes it.
    """
    import torch_xla
    from torch_xla.debug import metrics

    here, there = Training(torch.device("cpu")), Training(torch_xla.device())
    torch_xla.sync()  # the weights are on the device
    metrics.clear_all()
    rows, hlo = [], ""
    for number, size in enumerate(BATCHES):
        batch = random_batch(size, number)
        start = time.perf_counter()
        loss = there.step(*batch)
        if not hlo:
            results = [loss, *there.model.parameters()]
            hlo = torch_xla._XLAC._get_xla_tensors_hlo(results)
        torch_xla.sync()
        value = loss.item()  # waits for the device
        seconds = time.perf_counter() - start
        row = {"step": number, "batch": size, "loss": value}
        row["eager_loss"] = here.step(*batch).item()
        row["compiles"] = metrics.counter_value("UncachedCompile") or 0
        row["cache_hits"] = metrics.counter_value("CachedCompile") or 0
        rows.append(row | {"seconds": round(seconds, 4)})
    return rows, hlo


def main(folder: Path) -> None:
    """Run the steps and record them: a table and the HLO, both with where they come from."""
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    import torch_xla

    rows, hlo = run_steps()
    kind = os.environ["PJRT_DEVICE"]
    device = f"{kind} through torch_xla {torch_xla.__version__}"
    table = write_recording(TABLE, rows, command=COMMAND, device=device, folder=folder)
    head = [line for line in table.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    (folder / GRAPH).write_text("\n".join([*head, hlo]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
