"""XLA's recording is complete and says what it should; the command works on a stand-in."""

import sys
from pathlib import Path

import pytest
import torch
import xla_study as command

from mpcourse.commands.setup import ROOT, SetupError
from mpcourse.compilation import xla
from mpcourse.compilation.xla import read_xla_run, run_by
from mpcourse.compilation.xla_step import BATCHES, Training, random_batch
from mpcourse.devices.recordings import DATA_FOLDER, write_recording

HLO = "HloModule IrToHlo.9\nENTRY %IrToHlo.9 { ROOT %dot.6 = f32[] dot(%p0.5, %p0.5) }\n"


def stand_in(folder: Path, batches: tuple[int, ...] = (4,)) -> None:
    """What `mpcourse.compilation.xla_step` writes, without torch_xla."""
    rows = [{"step": n, "batch": size, "loss": 2.0} for n, size in enumerate(batches)]
    write_recording(xla.TABLE, rows, command=xla.COMMAND, device="a stand-in", folder=folder)
    (folder / xla.GRAPH).write_text(f"# command: {xla.COMMAND}\n{HLO}", encoding="utf-8")


def test_the_recorded_run_says_what_a_change_of_shape_does():
    seen = read_xla_run()
    assert seen.about["command"] == "python data/xla_study.py"
    assert "torch_xla" in seen.about["device"]
    assert {"machine", "date"} <= set(seen.about)
    assert [row["batch"] for row in seen.rows] == list(BATCHES)
    assert [row["compiles"] for row in seen.rows] == [1, 1, 1, 2, 2, 2, 3]
    assert [row["cache_hits"] for row in seen.rows] == [0, 1, 2, 2, 3, 4, 4]
    new = [row["seconds"] for row in seen.rows if row["step"] in (0, 3, 6)]
    known = [row["seconds"] for row in seen.rows if row["step"] not in (0, 3, 6)]
    assert min(new) > 3 * max(known)


def test_the_recorded_losses_are_those_of_plain_torch():
    here = Training(torch.device("cpu"))
    for row in read_xla_run().rows:
        loss = here.step(*random_batch(int(row["batch"]), int(row["step"]))).item()
        assert row["loss"] == pytest.approx(loss, rel=1e-4)
        assert row["eager_loss"] == pytest.approx(loss, rel=1e-4)


def test_the_recorded_graph_is_one_training_step():
    """Three products forwards, three for the weights' gradients, two for the layers' inputs."""
    seen = read_xla_run()
    assert seen.hlo.startswith("HloModule")
    assert seen.hlo.count(" dot(") == 8
    assert "f32[64,1,28,28]" in seen.hlo
    assert (DATA_FOLDER / xla.GRAPH).stat().st_size < 50_000


def test_a_missing_recording_is_named(tmp_path: Path):
    with pytest.raises(
        FileNotFoundError, match=r"xla_step.hlo.txt: `python data/xla_study.py` makes"
    ):
        read_xla_run(tmp_path)


class Ready:
    """An environment whose Python is this one."""

    python, root, folder = sys.executable, ROOT, Path(".venv-xla")

    def __init__(self) -> None:
        self.asked = []

    def ensure(self, files: list[str]) -> None:
        self.asked += files


@pytest.mark.skipif(
    bool(__import__("importlib").util.find_spec("torch_xla")), reason="torch_xla is here"
)
def test_a_run_that_fails_says_why(tmp_path: Path):
    with pytest.raises(
        RuntimeError,
        match=r"(?s)in .venv-xla failed:.*No module named 'torch_xla'.*xla_study.py` mends",
    ):
        run_by(Path(sys.executable), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def ready(monkeypatch, tmp_path: Path) -> Ready:
    environment = Ready()
    monkeypatch.setattr(command, "_environment", lambda: environment)
    monkeypatch.setattr(xla, "run_by", lambda python, folder: stand_in(folder))
    monkeypatch.setattr(command, "DATA_FOLDER", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    return environment


def test_the_command_installs_runs_shows_and_records(ready: Ready, tmp_path: Path, capsys):
    assert command.main(["--dry"]) == 0
    assert list(tmp_path.iterdir()) == []
    ready.asked.clear()
    assert command.main([]) == 0
    assert ready.asked == ["requirements-xla.txt"]
    assert (ROOT / ready.asked[0]).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [xla.TABLE, xla.GRAPH]
    assert read_xla_run(tmp_path).rows == [{"step": 0, "batch": 4, "loss": 2.0}]
    said = capsys.readouterr().out
    assert "products in the graph of the first step: 1" in said
    assert "delete the folder" in said


def test_what_goes_wrong_is_a_sentence(ready: Ready, tmp_path: Path, capsys, monkeypatch):
    def fail(files: list[str]) -> None:
        raise SetupError("no disk")

    monkeypatch.setattr(ready, "ensure", fail)
    assert command.main([]) == 1
    assert "no disk" in capsys.readouterr().err
    monkeypatch.setattr(sys, "platform", "darwin")
    assert command.main([]) == 1
    assert "Linux only; this is darwin" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
