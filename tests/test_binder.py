"""binder/ says exactly what a Binder image holds, and Binder's own tool reads it that way."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BINDER = ROOT / "binder"
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\d+(\.\d+)+)(?P<build>\+[a-z0-9]+)?")


LINES = (BINDER / "requirements.txt").read_text(encoding="utf-8").splitlines()
OPTIONS = [line.strip() for line in LINES if line.startswith("--")]


def pins() -> dict[str, re.Match]:
    lines = [line.strip() for line in LINES if line.strip() and line[0] not in "#-"]
    return {line.split("==")[0]: PIN.fullmatch(line) for line in lines}


def test_everything_that_the_course_needs_is_pinned_to_one_version_that_it_allows():
    requirements = pytest.importorskip("packaging.requirements", reason="needs packaging")
    course = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    lines = [line.split("#")[0].strip() for line in course if ">=" in line]
    needed = {each.name: each.specifier for each in map(requirements.Requirement, lines)}
    assert needed.keys() == pins().keys()
    assert needed.keys() >= {"torch", "jupyterlab"}
    for name, allowed in needed.items():
        assert allowed.contains(pins()[name]["version"]), name


def test_torch_and_torchvision_are_cpu_wheels_of_one_release_from_an_extra_index():
    assert OPTIONS == ["--extra-index-url https://download.pytorch.org/whl/cpu"]
    torch, vision = pins()["torch"], pins()["torchvision"]
    assert torch["build"] == vision["build"] == "+cpu"
    # torchvision's minor number has been torch's plus 15 since torch 2.0 and torchvision 0.15.
    major, minor, patch = map(int, torch["version"].split("."))
    assert (major, vision["version"]) == (2, f"0.{minor + 15}.{patch}")


def test_post_build_stops_at_the_first_failure_and_leaves_torch_alone():
    lines = (BINDER / "postBuild").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines[1:] if line and not line.startswith("#")]
    assert lines[0] == "#!/bin/bash"
    assert os.name == "nt" or os.access(BINDER / "postBuild", os.X_OK)
    assert commands[0] == "set -e"
    assert [line for line in commands if "pip install" in line and "--no-deps" not in line] == []
    assert any(line.startswith("pip install --no-deps -e .") for line in commands)


def test_repo2docker_reads_these_files_without_a_docker_daemon():
    if importlib.util.find_spec("repo2docker") is None:
        pytest.skip("jupyter-repo2docker is not installed (tests/requirements.txt)")
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", "."]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said
    assert "Building conda environment for python=3.12" in said
    assert 'install --no-cache-dir -r "binder/requirements.txt"' in said
    assert "RUN ./binder/postBuild" in said
