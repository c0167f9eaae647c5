"""What programs of the pages promise beside what a page shows of them."""

import json
from pathlib import Path

import pytest

from mpcourse.multiprocess.scripts import Scripts

PAGE = Path(__file__).parents[2] / "notebooks" / "12_ranks_and_hosts.ipynb"
PROGRAMS = [f"{name}.py" for name in ("work", "resume", "files", "batches", "train")]


def program(name: str) -> str:
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    found = [s for c in cells if (s := "".join(c["source"])).startswith(f"%%program {name}\n")]
    return found[0].split("\n", 1)[1]


@pytest.mark.parametrize("files", [[], ["rank0-step000005.pt", "rank1-step000005.pt"]])
def test_a_run_of_another_number_of_ranks_is_refused_and_its_files_stay(files, monkeypatch):
    scripts = Scripts()
    for name in PROGRAMS:
        scripts.write(name, program(name))
    for name in files:
        scripts.write(name, "")
    before = {path.name for path in scripts.folder.iterdir()}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="two stages, and their files, need two ranks, not 1"):
        scripts.run("python train.py 9")
    assert before == {path.name for path in scripts.folder.iterdir()} - {"__pycache__"}
