"""What other processes and users could have written is loaded as data, never run."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from mpcourse.multiprocess.checkpoints import Checkpoints
from mpcourse.multiprocess.launch import read_results

ran = []


def leave_a_trace():
    ran.append(True)


class Hostile:
    """A pickle that calls a function when it is loaded without restrictions."""

    def __reduce__(self):
        return leave_a_trace, ()


@pytest.fixture(autouse=True)
def torch_is_told_to_trust(monkeypatch):
    """As some set-ups do for the sake of old files; a loader that says nothing obeys."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    ran.clear()


@pytest.fixture
def rank(tmp_path):
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"), at=lambda *_: None)
    distributed.destroy_process_group()


def test_a_hostile_checkpoint_is_refused(rank, tmp_path):
    saved = Checkpoints(tmp_path, rank)
    saved.save(1, {"weights": torch.ones(2)})
    assert saved.load()["weights"].tolist() == [1, 1]
    torch.save({"step": 2, "weights": Hostile()}, tmp_path / "rank0-step000002.pt")
    with pytest.raises(pickle.UnpicklingError):
        saved.load()
    assert ran == []


def test_a_hostile_result_is_refused(tmp_path):
    torch.save({"loss": 0.5}, tmp_path / "result-0.pt")
    assert read_results(tmp_path, [0]) == [{"loss": 0.5}]
    torch.save({"loss": Hostile()}, tmp_path / "result-1.pt")
    with pytest.raises(pickle.UnpicklingError):
        read_results(tmp_path, [0, 1])
    assert ran == []
