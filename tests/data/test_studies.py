"""A study's command runs every seed of what was asked for, and writes it unless it is dry."""

import ast
from importlib import import_module

import pruning_study
import pytest
from studies import SEEDS, run_studies

# The maker of a recording, what its dry run leaves out here, the rows it prints
DRY_RUNS = [
    (
        "pruning",
        {"DRY": pruning_study.DRY._replace(tuning=0)} | {"compare_trunk": lambda *_: [{"seed": 0}]},
        32,
    ),
    (
        "sparse",
        dict.fromkeys(("compare_far", "compare_regrown"), lambda *_: [{"seed": 0}]),
        6,
    ),
    ("transformer", {}, 3),
]
ASKED = {"command": "python -m some.study", "about": "Some study."}


@pytest.fixture
def written(monkeypatch) -> dict:
    files = {}
    monkeypatch.setattr(
        "studies.write_recording",
        lambda name, rows, **about: files.update({name: (rows, about["command"])}),
    )
    return files


def one_seed(data, seed, budget):
    assert len(data.test[0][0]) == 1000
    return [{"seed": seed, "budget": budget}]


STUDIES = {"first.csv": one_seed, "second.csv": one_seed}


@pytest.mark.parametrize(("alone", "seeds"), [([], SEEDS), (["second.csv"], range(7))])
def test_every_study_or_one_runs_with_every_seed_and_is_written(alone, seeds, written, capsys):
    arguments = ["--only", *alone] if alone else []
    asked = {**ASKED, "arguments": arguments, "seeds": seeds}
    assert run_studies(STUDIES, ("whole", "dry"), **asked) == 0
    rows = [{"seed": seed, "budget": "whole"} for seed in seeds]
    assert written == {name: (rows, "python -m some.study") for name in alone or STUDIES}
    assert capsys.readouterr().out.count("'seed'") == len(written) * len(seeds)


def test_a_dry_run_takes_one_seed_and_the_small_budget_and_writes_nothing(written, capsys):
    run_studies(STUDIES, ("whole", "dry"), **ASKED, arguments=["--dry"])
    assert capsys.readouterr().out.splitlines() == [str({"seed": 0, "budget": "dry"})] * 2
    assert not written


def test_a_name_that_is_no_recording_is_refused_with_those_that_are(written, capsys):
    with pytest.raises(SystemExit):
        run_studies(STUDIES, ("whole", "dry"), **ASKED, arguments=["--only", "third.csv"])
    assert "first.csv" in capsys.readouterr().err
    assert not written


@pytest.mark.parametrize(("name", "changes", "rows"), DRY_RUNS)
def test_the_dry_run_of_each_study_prints_and_writes_nothing(
    name, changes, rows, capsys, monkeypatch
):
    study = import_module(f"{name}_study")
    monkeypatch.setattr("studies.write_recording", None)
    for each, value in changes.items():
        monkeypatch.setattr(study, each, value)
    assert study.main(["--dry"]) == 0
    printed = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["seed"] for row in printed] == [0] * rows
