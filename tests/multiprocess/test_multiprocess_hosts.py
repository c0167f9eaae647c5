"""Several hosts: the commands, and two real network namespaces."""

import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from processes import nothing_left

from mpcourse.multiprocess import launch
from mpcourse.multiprocess.hosts import host_commands, main
from mpcourse.multiprocess.torchrun import interface_of

ADDRESSES = ["10.0.0.1", "10.0.0.2"]


def test_a_command_for_each_host_and_the_first_is_the_meeting_point():
    first, second = host_commands("ddp", {"epochs": 2}, ADDRESSES, processes=4, run_id="a b")
    assert "--index 0 --count 2 --address 10.0.0.1 --meeting-point 10.0.0.1" in first
    assert "--index 1 --count 2 --address 10.0.0.2 --meeting-point 10.0.0.1" in second
    assert first.endswith("--run-id 'a b' --processes 4 -- ddp --epochs 2")
    with pytest.raises(ValueError, match="2 or more addresses; got 1"):
        host_commands("ddp", {}, ADDRESSES[:1])


def test_a_wrong_program_is_refused_by_name(capsys):
    place = ["--index", "0", "--count", "2", "--address", "10.0.0.1"]
    assert main([*place, "--meeting-point", "10.0.0.1", "--", "ddq"]) == 1
    assert "host 0: a program is one of" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="knows Linux only")
def test_the_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") is None  # an address kept for examples


# --- two hosts, really: network namespaces with addresses of their own and a link between them --

SMALL = {"samples": 256, "batch_size": 16, "epochs": 2, "test_samples": 50}
CUT_AFTER = 5  # steps
BOUND_S = 90  # 10 s until gloo gives up, 10 s of grace, and a machine that is busy


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def link():
    """Two namespaces; the name of the first host's end of the link tells them apart."""
    if not shutil.which("ip"):
        pytest.skip("needs iproute2")
    name = uuid.uuid4().hex[:6]
    try:
        for side in "ab":
            ip(f"netns add mp{name}{side}")
        ip(f"link add v{name}a netns mp{name}a type veth peer name v{name}b netns mp{name}b")
        for number, side in enumerate("ab", 1):
            ip(f"-n mp{name}{side} addr add 10.93.7.{number}/24 dev v{name}{side}")
            ip(f"-n mp{name}{side} link set v{name}{side} up")
            ip(f"-n mp{name}{side} link set lo up")
    except (subprocess.CalledProcessError, OSError) as error:
        subprocess.run(["ip", "netns", "del", f"mp{name}a"], capture_output=True)
        subprocess.run(["ip", "netns", "del", f"mp{name}b"], capture_output=True)
        pytest.skip(f"network namespaces are not allowed here ({error})")
    yield name
    for side in "ab":
        ip(f"netns del mp{name}{side}")


def start_both(name: str, saved: Path, run_id: str, **options) -> list[subprocess.Popen]:
    options = {**SMALL, "timeout": 10, "checkpoints": saved, **options}
    commands = host_commands("ddp", options, ["10.93.7.1", "10.93.7.2"], run_id=run_id)
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", f"mp{name}{side}", sys.executable, *shlex.split(command)[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for side, command in zip("ab", commands, strict=True)
    ]


@pytest.mark.slow
def test_a_cut_link_ends_both_hosts_and_the_next_run_goes_on(link, tmp_path, monkeypatch):
    saved = tmp_path / "saved"
    with nothing_left(tmp_path / "temporary", monkeypatch):
        hosts = start_both(link, saved, "before")
        end = time.monotonic() + 120
        while not list(saved.glob(f"*step{CUT_AFTER:06d}.pt")):
            assert time.monotonic() < end
            assert [host.poll() for host in hosts] == [None, None]
            time.sleep(0.02)
        ip(f"-n mp{link}a link set v{link}a down")
        for index, host in enumerate(hosts):
            words, _ = host.communicate(timeout=BOUND_S)
            assert host.returncode == 1
            assert f"host {index}: rank " in words
            assert "step" in words

        ip(f"-n mp{link}a link set v{link}a up")
        hosts = start_both(link, saved, "after")
        words = [host.communicate(timeout=180)[0] for host in hosts]
        assert [host.returncode for host in hosts] == [0, 0]
    went_on = [line for line in words[0].splitlines() + words[1].splitlines() if "goes on" in line]
    assert len(went_on) == 1
    assert int(went_on[0].split()[-1]) >= CUT_AFTER
    [digest] = set(re.findall(r"'digest': '(\w+)'", "".join(words)))
    assert digest == launch("ddp", on_line=None, **SMALL).results[0]["digest"]
