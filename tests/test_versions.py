"""The script that tries other versions asks pip for the right ones and keeps true results."""

import datetime
from pathlib import Path

import pytest
import versions
from versions import Case, Result, merge, read_results

ONE = Result("2.9.1", "0.24.1", "8.1.9", "3.11.7", "quick", 90, 2, 8, 3.5, "2026-01-02")


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (Case(), []),
        (Case(torch="2.9"), ["torch==2.9.*", "torchvision==0.24.*"]),
        (Case(torch="2.13"), ["torch==2.13.*", "torchvision==0.28.*"]),
        (Case(ipywidgets="7.7"), ["ipywidgets==7.7.*"]),
    ],
)
def test_pip_is_asked_for_the_torchvision_that_goes_with_a_torch(case: Case, wanted: list[str]):
    assert case.requirements() == wanted


@pytest.mark.parametrize("version", ["2", "2.9.1", "two", "2.9; x"])
def test_a_wrong_version_is_told_before_anything_is_installed(
    version: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(versions, "run_case", lambda *_, **__: pytest.fail("it began"))
    with pytest.raises(ValueError, match=f"two numbers, as in 2.9, or newest; not '{version}'"):
        versions.main(["--torch", "2.10", version])


def test_a_result_takes_the_place_of_the_same_versions_and_no_other(tmp_path: Path):
    newer = Result(**{**vars(ONE), "failed": 0, "date": "2026-02-03"})
    other = Result(**{**vars(ONE), "torch": "2.10.0"})
    slow = Result(**{**vars(ONE), "tests": "all"})
    results: list[Result] = []
    for result in (other, ONE, slow, newer):
        results = merge(results, result)
    assert results == [slow, newer, other]  # 2.9 before 2.10: by number, not by letter
    versions.write_results(results, tmp_path / "kept.csv")
    assert read_results(tmp_path / "kept.csv") == results
    assert [path.name for path in tmp_path.iterdir()] == ["kept.csv"]
    assert read_results(tmp_path / "none.csv") == []


def test_what_pytest_says_is_kept_and_the_environment_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[Path] = []

    def make_environment(python: str, case: Case, folder: Path) -> Path:
        folder.mkdir()
        made.append(folder)
        return Path(python)

    tests = tmp_path / "test_some.py"
    tests.write_text("def test_a(): pass\ndef test_b(): assert 0\n", encoding="utf-8")
    monkeypatch.setattr(versions, "make_environment", make_environment)
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setattr(versions, "RESULTS", tmp_path / "kept.csv")
    assert versions.main(["--torch", "newest", "--tests", str(tests)]) == 1
    (result,) = read_results(tmp_path / "kept.csv")
    assert (result.tests, result.passed, result.failed, result.skipped) == (str(tests), 1, 1, 0)
    assert result.date == datetime.date.today().isoformat()
    assert not made[0].exists()
