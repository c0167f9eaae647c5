"""Each page runs on Colab and on Kaggle as on a machine at home, from a fork alone."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forks import Fork
from hosted import (
    CLONE,
    COLAB,
    GB,
    KAGGLE,
    MEMORY_LIMIT,
    Place,
    installed,
    make_environment,
    run_page,
)

from mpcourse.commands.clean_copies import CLEAN, find_pages, page_key

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Colab and Kaggle are Linux")

VIEW = "application/vnd.jupyter.widget-view+json"
QUICK = "scatter_and_gather"
GROWTH_LIMIT = GB  # Binder's machines have 1 to 2 GB, and torch takes its share
A_WIDGET = re.compile(r"<.*; run the cell to |Your guess: ")  # its text, where no kernel runs
RUNS = [  # one always, where ipywidgets and IPython are old; Kaggle's are nearly today's
    pytest.param(
        *(place, path.name),
        id=f"{place.name}-{path.stem}",
        marks=[] if (place, page_key(path.name)) == (COLAB, QUICK) else pytest.mark.hosted,
    )
    for place in (COLAB, KAGGLE)
    for path in find_pages([])
]


@pytest.fixture(scope="module")
def python_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Place], Path]:
    made: dict[str, Path] = {}

    def python_of(place: Place) -> Path:
        if place.name not in made:
            try:
                made[place.name] = make_environment(place, tmp_path_factory.mktemp(place.name))
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"pip cannot fetch the kernel of {place.name}: {error}")
        return made[place.name]

    return python_of


@pytest.mark.slow
@pytest.mark.parametrize(("place", "name"), RUNS)
def test_a_page_alone_runs_and_leaves_the_place_as_it_found_it(
    place: Place, name: str, fork: Fork, python_of: Callable[[Place], Path], tmp_path: Path
):
    python = python_of(place)
    before = installed(python)
    page = fork.clone / CLEAN / name
    run = run_page(page, place, python, folder=tmp_path, git=fork.environment)
    print(f"{run.seconds:.0f} s, peak {run.peak / GB:.2f} GB, growth {run.growth / GB:.2f} GB")
    assert run.errors() == []
    clone = tmp_path / place.folder / CLONE
    expected = [
        torch.__version__,
        torch.__file__,
        place.ipywidgets,
        f"{clone}/mpcourse/__init__.py",
    ]
    assert run.which.split() == expected
    assert installed(python) == before
    assert run.changed == ""
    assert {path.name for path in clone.parent.iterdir()} == {name, clone.name}
    assert run.peak < MEMORY_LIMIT
    assert run.growth < GROWTH_LIMIT, f"{run.growth / GB:.2f} GB"
    shown = [output.data for output in run.outputs() if VIEW in output.get("data", {})]
    assert shown
    assert {data[VIEW]["model_id"] for data in shown} <= run.widgets
    for output in run.outputs():
        data = output.get("data", {})
        assert VIEW in data or not A_WIDGET.match(data.get("text/plain", "")), data
