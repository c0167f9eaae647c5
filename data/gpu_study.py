"""`python data/gpu_study.py`: what pages tell of a GPU and a machine without one cannot show.

Needs one CUDA GPU of compute capability 8.0 or newer and 20 GB of its memory. Writes
`gpu_times.csv`, `gpu_kernels.csv` and `gpu_memory.csv` into data/, in about two minutes.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.models import resnet50

from mpcourse.compilation import quietly
from mpcourse.devices import get_devices, measure_together
from mpcourse.devices.devices import describe_devices
from mpcourse.devices.recordings import write_recording
from mpcourse.memory import count_step, rehearse_step
from mpcourse.pipeline.stage import Stage

COMMAND = "python data/gpu_study.py"
REPEATS = 31
Calls = Mapping[str, Callable[[], Any]]


def times(study: str, size: int, calls: Calls, calls_inside: int) -> Iterator[dict[str, Any]]:
    """Time ways in turns: a row for each, in seconds for one call, with the middle half of runs."""
    found = measure_together(calls, repeats=REPEATS)
    for way, timing in found.items():
        low, median, high = (
            value / calls_inside for value in statistics.quantiles(timing.times_s, n=4)
        )
        yield {"study": study, "size": size, "way": way, "s": median, "low_s": low, "high_s": high}


def again(count: int, fn: Callable[..., Any], *args: Any) -> None:
    """Call so often that the clock's own cost vanishes."""
    for _ in range(count):
        fn(*args)


def recorded(fn: Callable[[], Any]) -> Callable[[], None]:
    """The kernels of `fn` as a CUDA graph: one call queues them all."""
    for _ in range(3):
        fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


def calls_of_a_layer(count: int) -> dict[str, Callable[[], Any]]:
    """Twenty products of `count` rows and a weight of 4096 x 4096, whole and with 2:4 zeros.

    Four weights in turns, so that none is still in the cache when its turn comes. No graphs here: a
    graph of the sparse products read memory that was free again (torch 2.11).
    """
    halves = [torch.randn(4096, 4096, device="cuda").half() for _ in range(4)]
    packed = [torch.sparse.to_sparse_semi_structured(_two_of_four(half)) for half in halves]
    inputs = torch.randn(count, 4096, device="cuda").half()
    ways = {"2:4 float16": packed, "float16": halves}
    return {way: partial(again, 5, _all_of, inputs, weights) for way, weights in ways.items()}


def kernels(dry: bool) -> Iterator[dict[str, Any]]:
    """A call of a layer, and what the GPU works on it by its profiler: without waits for the next.

    So the call's own cost shows: that of Python and of libraries that plan each product.
    """
    for count in (32,) if dry else (32, 1024, 4096, 16384):
        calls = calls_of_a_layer(count)
        for row in times("kernels", count, calls, 20):
            busy = statistics.median(busy_seconds(calls[row["way"]]) / 20 for _ in range(5))
            called = {"called_s": row["s"], "low_s": row["low_s"], "high_s": row["high_s"]}
            yield {"rows": count, "way": row["way"], **called, "kernels_s": busy}


def busy_seconds(call: Callable[[], Any]) -> float:
    """How long the GPU works on a call, the sum over its kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(each.self_device_time_total for each in seen.key_averages()) / 1e6


def _all_of(inputs: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        nn.functional.linear(inputs, weight)


def _two_of_four(weight: Tensor) -> Tensor:
    fours = weight.view(len(weight), -1, 4)
    kept = torch.zeros_like(fours).scatter_(-1, fours.abs().topk(2, -1).indices, 1)
    return (fours * kept).view_as(weight)


def chain(x: Tensor) -> Tensor:
    """Ten times one product and one sum, as on page `compilation`."""
    for _ in range(10):
        x = x * 0.9 + 0.1
    return x


def fusion(dry: bool) -> Iterator[dict[str, Any]]:
    """A chain of 20 pointwise operations: eager, and compiled into one kernel."""
    for size in (2**20,) if dry else (2**14, 2**20, 2**26):
        numbers = torch.randn(size, device="cuda")
        scratch = torch.empty_like(numbers)
        fused = torch.compile(chain, dynamic=False)
        calls = {
            "eager": partial(again, 5, chain, numbers),
            "compiled": partial(again, 5, fused, numbers),
            "bare copy": partial(again, 5, scratch.copy_, numbers),
        }
        with quietly():
            yield from times("fusion", size, calls, 5)


def launches(dry: bool) -> Iterator[dict[str, Any]]:
    """The forward of 20 narrow layers: by Python, compiled, and as a CUDA graph in two ways."""
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(20)]
    net = nn.Sequential(*layers).cuda().eval()
    forms = {"eager": net, "compiled": torch.compile(net, dynamic=False)}
    forms["reduce-overhead"] = torch.compile(net, dynamic=False, mode="reduce-overhead")
    for count in (32,) if dry else (32, 1024, 32768):
        images = torch.randn(count, 256, device="cuda")
        with torch.no_grad(), quietly():
            calls = {name: partial(again, 20, form, images) for name, form in forms.items()}
            graph = recorded(partial(net, images))
            calls["own graph"] = partial(again, 20, graph)
            yield from times("launches", count, calls, 20)


def backwards(dry: bool) -> Iterator[dict[str, Any]]:
    """A backward of two transformer layers at once, and as I and W (page `zero_bubble`)."""
    for width in (128,) if dry else (128, 512, 1024, 2048, 4096):
        kind = {"nhead": 4, "dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True}
        layers = [nn.TransformerEncoderLayer(width, **kind) for _ in range(2)]
        stage = Stage(nn.Sequential(*layers).cuda(), is_first=False)
        entered = torch.randn(16, 128, width, device="cuda", requires_grad=True)

        def step(kinds: str, stage: Stage = stage, entered: Tensor = entered) -> None:
            stage.forward(0, entered)
            for each in kinds:
                stage.run_backward(each, 0, [torch.ones_like(entered)])

        def forward(stage: Stage = stage, entered: Tensor = entered) -> None:
            stage.forward(0, entered)
            stage.in_flight.clear()

        calls = {"F": forward, "F, B": partial(step, "B"), "F, I, W": partial(step, "IW")}
        yield from times("backwards", width, calls, 1)


def peaks(dry: bool) -> Iterator[dict[str, Any]]:
    """The peak of a step of ResNet50, counted on fakes and by the GPU's allocator, in bytes."""
    optimizers = {
        "SGD": partial(torch.optim.SGD, lr=0.1),
        "Adam": partial(torch.optim.Adam, lr=1e-3),
        "Adam, fused": partial(torch.optim.Adam, lr=1e-3, fused=True),
    }
    for images in (8,) if dry else (8, 32, 128):
        for name, optimizer in optimizers.items():
            found = {}
            for place, count in {"cpu": rehearse_step, "cuda": count_step}.items():

                def batch(place: str = place, images: int = images) -> tuple[Tensor, Tensor]:
                    photos = torch.randn(images, 3, 224, 224, device=place)
                    return photos, torch.randint(1000, (images,), device=place)

                def model(place: str = place) -> nn.Module:
                    return resnet50().to(place)

                torch.cuda.empty_cache()
                found[place] = count(model, batch, cross_entropy, optimizer)
            yield {
                "images": images,
                "optimizer": name,
                "counted": found["cpu"].peak,
                "measured": found["cuda"].peak,
                "counted_phase": found["cpu"].peak_phase,
                "measured_phase": found["cuda"].peak_phase,
            }


FILES: dict[str, Sequence[Callable[[bool], Iterator[dict[str, Any]]]]] = {
    "gpu_times.csv": (fusion, launches, backwards),
    "gpu_kernels.csv": (kernels,),
    "gpu_memory.csv": (peaks,),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the studies, print each row, write the recordings."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--dry", action="store_true", help="one size each; writes nothing")
    dry = parser.parse_args(arguments).dry
    [device] = get_devices(1)
    if device.device.type != "cuda" or torch.cuda.get_device_capability() < (8, 0):
        print("this study needs a CUDA GPU of compute capability 8.0 or newer", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    for name, studies in FILES.items():
        found = []
        for study in studies:
            for row in study(dry):
                print(row, flush=True)
                found.append(row)
        if not dry:
            print(write_recording(name, found, command=COMMAND, device=describe_devices([device])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
