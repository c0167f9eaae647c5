"""When does the all-reduce run: after the backward, or beside it?.

Page `distributed_data_parallel`.
"""

import argparse
import copy
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mpcourse.multiprocess.buckets import BucketedGradients
from mpcourse.multiprocess.rank import Rank

# lane (0 the backward, 1 + n the all-reduce of bucket n); label; start and end in seconds. Requests
# overlap, so each has a lane: it runs from when it is handed over until the sum has arrived.
Row = tuple[int, str, float, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much there is to compute and to send."""
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024, help="of each layer")
    parser.add_argument("--rows", type=int, default=256, help="of each rank's batch")
    parser.add_argument("--repeats", type=int, default=5)


def run(rank: Rank, options: argparse.Namespace) -> dict[str, Any]:
    """Run the same backward twice: all gradients in one bucket, and a bucket per layer.

    Returns:
        For "one bucket" and "a bucket per layer": seconds (backward and all-reduce) and rows (what
        ran when) of the repeat in the middle, by its seconds. And largest (the difference between
        the two gradients).
    """
    width = options.width
    layers = [nn.Linear(width, width, bias=False) for _ in range(options.layers)]
    net = nn.Sequential(*layers).to(rank.device)
    batch = torch.randn(options.rows, width).to(rank.device) + rank.rank
    one_layer = layers[0].weight.nbytes
    sizes = {"one bucket": one_layer * options.layers, "a bucket per layer": one_layer}
    results: dict[str, Any] = {}
    gradients = []
    for way, bucket_bytes in sizes.items():
        traced = _Traced(copy.deepcopy(net), bucket_bytes, rank.device)
        steps = [(traced.step(batch), traced.rows()) for _ in range(options.repeats)]
        gradients.append([parameter.grad for parameter in traced.net.parameters()])
        seconds, rows = sorted(steps)[(len(steps) - 1) // 2]
        results[way] = {"seconds": seconds, "rows": rows}
        traced.close()
    pairs = zip(*gradients, strict=True)
    largest = max((a - b).abs().max().item() for a, b in pairs)
    return {**results, "largest": largest}


class _Traced:
    """A net whose buckets note when they were complete, and when their all-reduce had ended."""

    def __init__(self, net: nn.Module, bucket_bytes: int, device: torch.device) -> None:
        self.net, self._device = net, device
        self._buckets = BucketedGradients(net, bucket_bytes, on_sent=self._on_sent)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # Waits for requests; the backward need not. A new thread's current GPU is GPU 0.
        own = () if self._stream is None else (torch.cuda.set_device, (device,))
        self._waiting = ThreadPoolExecutor(1, "requests", *own)
        self._marks: list[tuple[Any, Future]] = []

    def step(self, batch: Tensor) -> float:
        """Forward, then the timed part: backward and all-reduce. Return its seconds."""
        self._marks.clear()
        self._buckets.begin()
        self.net.zero_grad()
        loss = self.net(batch).square().mean()
        distributed.barrier()
        self._synchronize()
        start, self._zero = time.perf_counter(), self._now()
        loss.backward()
        self._buckets.wait()
        self._synchronize()
        return time.perf_counter() - start

    def _on_sent(self, request: Any) -> None:
        self._marks.append((self._now(), self._waiting.submit(self._ended, request)))

    def _ended(self, request: Any) -> Any:
        if self._stream is None:
            request.wait()
            return self._now()
        with torch.cuda.stream(self._stream):  # this stream waits, not the one of the backward
            request.wait()
            return self._now()

    def _now(self) -> Any:
        if self._stream is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # on the current stream: the host is far ahead of it
        return event

    def _since_zero(self, mark: Any) -> float:
        return mark - self._zero if self._stream is None else self._zero.elapsed_time(mark) / 1e3

    def _synchronize(self) -> None:
        if self._stream is not None:
            torch.cuda.synchronize(self._device)

    def rows(self) -> list[Row]:
        """What ran when in the last step; one bucket's backward begins where another's ended."""
        marks = [(sent, ended.result()) for sent, ended in self._marks]
        self._synchronize()  # the last events may have been queued after the step
        rows: list[Row] = []
        before = 0.0
        for index, (sent, ended) in enumerate(marks):
            complete, end = self._since_zero(sent), self._since_zero(ended)
            rows.append((0, f"B{index}", before, complete))
            rows.append((1 + index, f"A{index}", complete, end))
            before = complete
        return rows

    def close(self) -> None:
        """Let the thread end, and the net go."""
        self._buckets.remove()
        self._waiting.shutdown()
        self._marks.clear()
