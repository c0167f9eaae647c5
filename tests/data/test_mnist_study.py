"""The study runs, repeats itself, and its recording keeps what the page claims."""

import statistics

import pytest
from mnist_study import EPOCHS, SEEDS, main, train

from mpcourse.devices.recordings import read_recording


def test_a_seed_fixes_the_result_and_an_epoch_learns_something():
    first, again = (train(shifts=1, epochs=1, seed=3) for _ in range(2))
    assert first == again
    assert first.num_samples == 1000
    assert first.accuracy > 0.7
    assert train(shifts=0, epochs=1, seed=3) != first  # the images do move


def test_the_dry_run_prints_and_writes_nothing(capsys, monkeypatch):
    monkeypatch.setattr("mnist_study.write_recording", None)
    assert main(["--dry"]) == 0
    assert capsys.readouterr().out.count("'accuracy': 0.") == len(EPOCHS)


@pytest.mark.parametrize(("shifts", "least"), [(0, 0.94), (1, 0.965)])
def test_the_recording_has_all_seeds_and_reaches_the_mean_that_was_asked_for(shifts, least):
    rows = [r for r in read_recording("mnist_study.csv").rows if r["shifts"] == shifts]
    assert [row["seed"] for row in rows] == list(SEEDS)
    assert {row["epochs"] for row in rows} == {EPOCHS[shifts]}
    assert statistics.mean(row["accuracy"] for row in rows) >= least
