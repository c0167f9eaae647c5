"""The script that tries other versions asks pip for the right ones and keeps true results."""

import datetime
import re
import sys
from pathlib import Path

import pytest
import versions
from versions import Case, Result, find_python, make_cases, merge, read_report, read_results

ONE = Result("2.9.1", "0.24.1", "8.1.9", "3.11.7", "quick", 90, 2, 8, 3.5, "2026-01-02")
REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest"
errors="1" failures="2" skipped="3" tests="10" time="1.0"></testsuite></testsuites>"""


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


def test_one_version_at_a_time_differs_and_none_is_tried_twice():
    cases = make_cases(["2.9", "newest"], ["newest", "7.7"], ["3.12"])
    assert cases == [Case("2.9"), Case(), Case(ipywidgets="7.7"), Case(python="3.12")]


def test_a_python_that_is_not_there_is_said_and_no_failure(capsys: pytest.CaptureFixture):
    assert find_python("") == sys.executable
    assert find_python(sys.executable) == sys.executable
    assert versions.main(["--python", "3.999"]) == 0
    assert capsys.readouterr().out == "no Python 3.999 on this machine\n"


def test_a_report_is_counted():
    assert read_report(REPORT) == (4, 3, 3)


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


def test_what_is_kept_can_be_read_and_is_of_versions_that_the_course_allows():
    results = read_results(versions.RESULTS)
    assert results
    for result in results:
        assert re.match(r"2\.(9|\d\d)\.", result.torch), result
        assert re.match(r"7\.[789]|8\.", result.ipywidgets), result
        assert result.passed > 0
        datetime.date.fromisoformat(result.date)
