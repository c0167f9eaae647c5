"""The study runs, repeats itself, and its recording keeps what the page claims."""

import pytest
from mnist_study import RECIPES, SEEDS, main, train

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
    assert capsys.readouterr().out.count("'accuracy': 0.") == len(RECIPES)


def test_the_recording_has_all_seeds_of_all_recipes():
    rows = read_recording("mnist_study.csv").rows
    found = [(row["shifts"], row["epochs"], row["seed"]) for row in rows]
    assert found == [(*recipe, seed) for recipe in RECIPES for seed in SEEDS]


@pytest.mark.parametrize("epochs", [15, 40])
def test_shifts_gain_at_the_same_number_of_epochs(epochs):
    rows = [r for r in read_recording("mnist_study.csv").rows if r["epochs"] == epochs]
    plain, shifted = ([r["accuracy"] for r in rows if r["shifts"] == s] for s in (0, 1))
    assert sum(b > a for a, b in zip(plain, shifted, strict=True)) >= 4
