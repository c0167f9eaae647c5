"""From what the ranks of a run have left to one sentence that names a rank; nothing is started."""

import json

import pytest

from mpcourse.multiprocess.blame import explain, ranks_here, read_reports
from mpcourse.multiprocess.faults import Fault
from mpcourse.multiprocess.launch import launch
from mpcourse.multiprocess.programs import PROGRAMS, parse
from mpcourse.multiprocess.torchrun import Host, option_words, torchrun_command


def note(where="forward", step=3, time=10.0, attempt=0):
    return {"where": where, "step": step, "time": time, "attempt": attempt}


def error(said, *, lost, time=11.0, attempt=0):
    trace = f"Traceback …\n{said}"
    return {"said": said, "traceback": trace, "lost": lost, "attempt": attempt, "time": time}


def summary(codes):
    rows = [f"  rank      : {r} (local_rank: {r})\n  exitcode  : {c} (pid: 9)" for r, c in codes]
    return "\n".join(["Failures:", *rows])


def verdict(tmp_path, notes, errors, codes=()):
    for rank, words in notes.items():
        (tmp_path / f"note-{rank}").write_text(json.dumps(words).ljust(256))
    for rank, words in errors.items():
        (tmp_path / f"error-{rank}.json").write_text(json.dumps(words))
    return explain(read_reports(tmp_path, range(2), summary(codes)), summary(codes))


LOST = error("RuntimeError: Connection closed by peer", lost=True)
CASES = {
    "killed, the other lost it": (
        {0: note("all-reduce"), 1: note()},
        {0: LOST},
        [(0, 1), (1, -9)],
        (1, "rank 1 was killed (SIGKILL) in forward of step 3", "rank 0, in all-reduce of step 3"),
    ),
    "ended itself": (
        {0: note(), 1: note()},
        {0: LOST},
        [(0, 1), (1, 7)],
        (1, "rank 1 died (exit code 7) in forward of step 3", "Connection closed"),
    ),
    "raised, and the other lost it first": (
        {0: note(), 1: note("backward")},
        {0: LOST, 1: error("ValueError: no", lost=False, time=12.0)},
        [(0, 1), (1, 1)],
        (1, "rank 1 failed in backward of step 3", "ValueError: no"),
    ),
    "both raised": (
        {0: note(), 1: note()},
        {0: error("KeyError: 0", lost=False, time=12.0), 1: error("KeyError: 1", lost=False)},
        [(0, 1), (1, 1)],
        (1, "rank 1 failed in forward of step 3", "KeyError: 1"),
    ),
    "asleep, ended by torchrun": (
        {0: note(), 1: note("start", None)},
        {0: error("RuntimeError: Timed out waiting", lost=True)},
        [(0, 1), (1, -15)],
        (1, "rank 1 did not answer; it was last seen at its start", "Timed out waiting"),
    ),
    "all lost each other": (
        {0: note(), 1: note()},
        {0: error("timeout", lost=True, time=12.0), 1: error("timeout", lost=True)},
        [(0, 1), (1, 1)],
        (1, "rank 1 lost the others in forward of step 3", "timeout"),
    ),
    "an error of the attempt before does not count": (
        {0: note(attempt=1), 1: note(attempt=1)},
        {0: error("KeyError: old", lost=False), 1: error("KeyError: new", lost=False, attempt=1)},
        [(0, -15), (1, 1)],
        (1, "rank 1 failed", "KeyError: new"),
    ),
    "nothing known": ({}, {}, [], (None, "torchrun failed before any rank began", "Failures:")),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_to_blame(case, tmp_path):
    notes, errors, codes, (rank, *words) = CASES[case]
    found = verdict(tmp_path, notes, errors, codes)
    assert found.rank == rank
    for text in words:
        assert text in str(found)
    assert "old" not in str(found)
    assert found.last_seen == (None if rank is None else 10.0)


def test_who_was_ended_by_nccl_had_waited_and_is_not_to_blame(tmp_path):
    """Its own thread ends a process whose collective takes too long; Python raises nothing."""
    for rank, words in enumerate((note("all-reduce"), note("forward"))):
        (tmp_path / f"note-{rank}").write_text(json.dumps(words))
    watchdog = (
        "[rank0]:[E1121 10:00:00.000000000 ProcessGroupNCCL.cpp:689] [PG ID 0 PG GUID "
        "0(default_pg) Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\n"
    )
    output = watchdog + summary([(0, -6), (1, -15)])
    found = explain(read_reports(tmp_path, range(2), output), output)
    assert found.rank == 1
    assert "rank 1 did not answer; it was last seen in forward of step 3" in str(found)
    assert "rank 0, in all-reduce of step 3: NCCL's watchdog ended it" in str(found)


def test_a_damaged_note_is_no_note(tmp_path):
    (tmp_path / "note-0").write_bytes(b'{"where": "for')
    [report] = read_reports(tmp_path, [0], "")
    assert report.place == "before its first word"


def test_the_ranks_of_a_host_are_those_that_left_a_note(tmp_path):
    for rank in (10, 2):
        (tmp_path / f"note-{rank}").touch()
    assert ranks_here(tmp_path, 2, is_only_host=False) == [2, 10]
    assert ranks_here(tmp_path, 2, is_only_host=True) == [0, 1]


def test_a_fault_is_read_and_strikes_where_it_says():
    assert Fault.parse("kill:1:all-reduce:3") == Fault("kill", 1, "all-reduce", 3)
    fault = Fault.parse("sleep:0:forward")
    assert fault.strikes(0, "forward", 5)
    assert not fault.strikes(1, "forward", 5)
    assert not fault.strikes(0, "backward", 5)
    assert not Fault.parse("kill:1:forward:3").strikes(1, "forward", 4)


@pytest.mark.parametrize("text", ["", "kill", "kill:x:forward", "burn:1:forward", "kill:1:lunch"])
def test_a_fault_that_makes_no_sense_is_refused(text):
    with pytest.raises(ValueError, match=r"HOW:RANK:WHERE\[:STEP\]"):
        Fault.parse(text)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_options_and_a_description(program):
    run, options = parse([program])
    assert run.__doc__
    assert options.timeout > 0


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("helo", {}, "a program is one of hello, .*got 'helo'"),
        ("hello", {"epochs": 1}, "unrecognized arguments: --epochs 1"),
        ("ddp", {"epochs": "many"}, "argument --epochs: invalid int value"),
        ("hello", {"fault": "kill"}, "argument --fault"),
        ("hello", {"processes": 0}, "processes is a whole number from 1; got 0"),
        ("hello", {"restarts": -1}, "restarts is a whole number from 0; got -1"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(program, options, words, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(ValueError, match=words):
        launch(program, **options)


def test_options_become_words():
    options = {"batch_size": 4, "no_sampler": True, "fault": None, "numbers": [1, 2], "x": False}
    assert option_words(options) == ["--batch-size", "4", "--no-sampler", "--numbers", "1", "2"]


def test_the_command_finds_its_own_port_on_one_host_and_meets_at_one_on_several():
    one = " ".join(torchrun_command(["hello"], processes=3, python="python"))
    assert one.startswith("python -m torch.distributed.run --standalone")
    assert "--nproc-per-node 3" in one
    assert one.endswith("-m mpcourse.multiprocess hello")
    host = Host("10.0.0.2", "10.0.0.1", 1, 2, port=1234, run_id="x")
    several = " ".join(torchrun_command(["hello"], host=host))
    assert "--nnodes 2 --rdzv-backend c10d --rdzv-id x --rdzv-endpoint 10.0.0.1:1234" in several
    assert "--local-addr 10.0.0.2 --rdzv-conf is_host=0" in several
    with pytest.raises(ValueError, match="numbered 0 to 1; got 2"):
        torchrun_command(["hello"], host=Host("10.0.0.2", "10.0.0.1", 2, 2))
