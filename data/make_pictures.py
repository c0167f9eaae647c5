"""`python data/make_pictures.py [timeline] [explorer]`: the README's pictures in `data/pictures/`.

`timeline.svg` is measured now: close other programs. `explorer.png` is a screenshot of JupyterLab
in Chromium (tests/requirements.txt has what that needs), whose numbers are measured now, too.
"""

import io
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch
from nbformat.v4 import new_code_cell, new_notebook
from torch import nn

from mpcourse.commands.address import read_address
from mpcourse.commands.pages import bootstrap_source, normalise, save
from mpcourse.commands.setup import ROOT
from mpcourse.devices import available_cores, get_devices
from mpcourse.figures import timeline_picture
from mpcourse.pipeline import Pipeline, split_work
from mpcourse.schedules import Timeline

FOLDER = ROOT / "data/pictures"
STEPS, PIECES, COLOURS = 15, 4, 64

EXPLORER = """\
from torch import nn

from mpcourse.devices import get_devices, measure
from mpcourse.pipeline import Pipeline, measure_stages, split_work
from mpcourse.widgets import split_explorer

devices, loss_fn = get_devices(2), nn.CrossEntropyLoss()
work = split_work(devices)
rows = len(work.images)
every = range(work.sizes[0], rows + 1, work.sizes[1] - work.sizes[0])


def run(size):
    pipeline = Pipeline(work.stages, devices, microbatch_size=size)
    step = lambda: pipeline.step(work.images, work.labels, loss_fn)
    return measure(step, devices, warmup=1, repeats=3).median_s


lines, measured = measure_stages(work, devices, loss_fn), {size: run(size) for size in work.sizes}
names = [device.name for device in devices]
split_explorer(lines, rows, every, work.sizes[2], names, measured=measured, measure=run)"""


def make_timeline(file: Path) -> None:
    """Measure a step that is not pipelined and one that is, and draw one above the other.

    Both have the same micro-batches, so that nothing but the order differs.
    """
    devices = get_devices(2)
    work = split_work(devices)
    rows = len(work.images)
    ways = {
        name: Pipeline(work.stages, devices, schedule, num_microbatches=PIECES)
        for name, schedule in (("naive", "naive"), ("pipelined", "1f1b"))
    }
    steps: dict[str, list[Timeline]] = {name: [] for name in ways}
    for _ in range(1 + STEPS):  # by turns, so that what else the machine does meets both
        for name, pipeline in ways.items():
            pipeline.step(work.images, work.labels, nn.CrossEntropyLoss())
            steps[name].append(pipeline.timeline)
    # the first one warms up
    best = {name: min(taken[1:], key=lambda step: step.makespan) for name, taken in steps.items()}
    events = [
        event._replace(device_index=event.device_index + 2 * way)
        for way, timeline in enumerate(best.values())
        for event in timeline.events
    ]
    names = [f"{name}, {device.name}" for name in best for device in devices]
    took = ", ".join(f"{name} {step.makespan * 1e3:.0f} ms" for name, step in best.items())
    gain = best["naive"].makespan / best["pipelined"].makespan
    caption = f"{rows} images, {PIECES} micro-batches: {took} ({gain:.2f} x)"
    both = Timeline(tuple(sorted(events, key=lambda event: event.start)), 4)
    picture = timeline_picture(both, names, label="measured here", caption=caption, row="row")
    file.write_text(picture.svg + "\n", encoding="utf-8", newline="\n")
    place = (
        f"{available_cores()} cores, torch {torch.__version__.partition('+')[0]}, {date.today()}"
    )
    print(f"{file.name}: {caption}, the fastest of {STEPS}; {place}")


def make_screenshot(file: Path) -> None:
    """Run the explorer in JupyterLab, move its slider by a key, and take a picture of it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from lab import OpenPage, copy_course, find_browser, running_lab  # needs playwright
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place) / "course"
        copy_course(folder)
        page = folder / "notebooks/00_explorer.ipynb"
        cells = [new_code_cell(bootstrap_source(read_address())), new_code_cell(EXPLORER)]
        save(normalise(new_notebook(cells=cells)), page)
        browser = find_browser(playwright)
        look = {"device_scale_factor": 1.5, "viewport": {"width": 1150, "height": 900}}
        with running_lab(folder) as server, browser.new_context(**look) as context:
            context.set_default_timeout(120_000)
            opened = OpenPage(context.new_page(), server, f"notebooks/{page.name}")
            opened.run_all()
            slider = opened.tab.locator(".jp-Notebook [role=slider]").first
            slider.focus()
            opened.tab.keyboard.press("ArrowLeft")
            opened.wait_until_idle()
            shown = opened.tab.locator(".jp-Notebook .jp-OutputArea-output .widget-vbox").first
            taken = shown.screenshot()
        browser.close()
    colours = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS)
    colours.save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size:,} bytes")


MAKERS = {
    "timeline": (make_timeline, "timeline.svg"),
    "explorer": (make_screenshot, "explorer.png"),
}


def main(names: Sequence[str]) -> int:
    """Make the pictures that are named, both when none is; return the exit status."""
    unknown = sorted(set(names) - set(MAKERS))
    if unknown:
        print(f"no picture {unknown[0]!r}; there are {' and '.join(MAKERS)}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in names or MAKERS:
        make, file = MAKERS[name]
        make(FOLDER / file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
