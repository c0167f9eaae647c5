"""Which devices a machine has, what they are called, and that each keeps its worker."""

import copy
import pickle
import re
import threading
import time

import pytest
import torch

from mpcourse.devices import devices as devices_module
from mpcourse.devices.devices import (
    Device,
    as_devices,
    available_cores,
    describe_devices,
    get_devices,
    has_code_for,
    synchronize,
)

CPU = torch.device("cpu")


def core(index):
    return Device(index, CPU, "cpu core", f"CPU core {index}")


def gpu(index):
    return Device(index, torch.device("cuda", index), "gpu", f"GPU {index}")


def share(gpu_index, index, shares):
    name = f"GPU {gpu_index}, share {index + 1} of {shares}"
    return Device(index, torch.device("cuda", gpu_index), "gpu share", name, shares)


@pytest.fixture
def pretend_gpus(monkeypatch):
    """A function that lets torch say it has some GPUs; a CUDA call fails."""

    def no_cuda(*_, **__):
        raise AssertionError("naming devices must not compute on them")

    def pretend(count, current=0, capability=(9, 0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setattr(
            torch.cuda, "get_device_name", lambda gpu: f"Model {getattr(gpu, 'index', gpu)}"
        )
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capability)
        monkeypatch.setattr(torch.cuda, "init", lambda: None)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90"])
        for name in ("_lazy_init", "Stream", "set_device", "current_stream", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, no_cuda)

    return pretend


@pytest.fixture
def no_gpus(pretend_gpus):
    pretend_gpus(0)


@pytest.mark.parametrize(
    ("n", "kind"), [(0, ValueError), (-1, ValueError), (True, TypeError), (2.0, TypeError)]
)
def test_a_number_of_devices_that_is_no_whole_number_from_1_is_refused(n, kind):
    with pytest.raises(kind, match=f"a whole number from 1; got {n}"):
        get_devices(n)


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((6, 0), "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", False),  # Kaggle's P100, 2026
        ((7, 5), "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", True),
        ((8, 9), "sm_75 sm_80 sm_86 sm_90", True),
        ((8, 0), "sm_75 sm_86 sm_90", False),  # machine code of a later minor version
        ((8, 0), "compute_75", True),
        ((7, 0), "compute_75", False),
        ((12, 0), "sm_90 compute_90", True),
        ((10, 0), "sm_90a compute_90a", False),
        ((10, 3), "sm_100f", True),
        ((9, 0), "sm_90a", True),
        ((9, 4), "gfx942 gfx90a", True),
        ((9, 0), "", True),  # torch does not say
    ],
)
def test_a_gpu_is_used_where_torch_has_code_for_it(capability, built_for, runs):
    assert has_code_for(capability, built_for.split()) == runs


def test_a_gpu_that_torch_has_no_code_for_is_named_and_cpu_cores_are_used(pretend_gpus):
    pretend_gpus(1, capability=(6, 0))
    words = r"Model 0 is not used: .* no code for .* \(sm_60\)\. On Kaggle, choose GPU T4 x2"
    with pytest.warns(UserWarning, match=words):
        assert get_devices(2) == [core(0), core(1)]
    with (
        pytest.warns(UserWarning, match=words),
        pytest.raises(ValueError, match="it has 0 CUDA GPUs"),
    ):
        as_devices(["cuda:0"])


@pytest.mark.usefixtures("no_gpus")
def test_more_devices_than_cores_work_and_say_that_they_wait():
    n = available_cores() + 1
    devices = get_devices(n)
    assert [device.run(lambda i=i: i) for i, device in enumerate(devices)] == list(range(n))
    assert "the others wait" in describe_devices(devices)


@pytest.mark.parametrize(
    ("n", "gpus", "expected"),
    [
        (1, 1, [gpu(0)]),
        (2, 1, [share(0, 0, 2), share(0, 1, 2)]),
        (3, 2, [share(0, 0, 2), share(0, 1, 2), gpu(1)]),
        (4, 2, [share(0, 0, 2), share(0, 1, 2), share(1, 0, 2), share(1, 1, 2)]),
        (2, 4, [gpu(0), gpu(1)]),
        (2, 0, [core(0), core(1)]),
    ],
)
def test_n_devices_spread_over_the_gpus_as_in_the_table(pretend_gpus, n, gpus, expected):
    pretend_gpus(gpus)
    assert get_devices(n) == expected


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_devices_are_all_different_and_use_as_many_gpus_as_they_can(pretend_gpus, n, gpus):
    pretend_gpus(gpus)
    devices = get_devices(n)
    assert len(set(devices)) == n
    per_gpu = [sum(device.device.index == i for device in devices) for i in range(gpus)]
    assert max(per_gpu) - min(per_gpu) <= 1
    for device in devices:
        assert device.shares == per_gpu[device.device.index]
        assert device.kind == ("gpu" if device.shares == 1 else "gpu share")


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d)), lambda _: core(0)]
)
def test_equal_devices_have_the_same_hash_and_the_same_worker(duplicate):
    device, other = core(0), duplicate(core(0))
    assert (other, hash(other)) == (device, hash(device))
    assert other.run(threading.get_ident) == device.run(threading.get_ident)


def test_a_device_prints_its_name():
    assert str(core(1)) == "CPU core 1"
    assert str(share(0, 1, 2)) == "GPU 0, share 2 of 2"


def test_run_hands_over_arguments_of_any_name_and_returns_the_value():
    assert core(0).run(dict, {"a": 1}, fn=2, self=3) == {"a": 1, "fn": 2, "self": 3}
    assert core(0).submit(dict, fn=2).result() == {"fn": 2}


@pytest.mark.parametrize(
    ("devices", "kind", "message"),
    [
        ([], ValueError, "devices is empty; name at least one"),
        (["cpu:x"], ValueError, "'cpu:x' is no device"),
        (2, TypeError, "devices is a list, for example get_devices(2); got 2"),
        ({"cpu"}, TypeError, "devices is a list, for example get_devices(2); got {'cpu'}"),
        (["cpu", 0], TypeError, "a device is a Device, a torch.device or a string; got 0"),
    ],
)
def test_what_is_no_list_of_devices_is_refused(devices, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        as_devices(devices)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["cpu"], [core(0)]),
        (["cpu", "cpu"], [core(0), core(1)]),
        (["cpu:3", "cpu"], [core(3), core(0)]),
        ([CPU, "cpu", torch.device("cpu:5")], [core(0), core(1), core(5)]),
        (("cpu", core(7)), [core(0), core(7)]),
        ([core(2), core(2)], [core(2), core(2)]),
        ("cpu", [core(0)]),
        (CPU, [core(0)]),
        (core(4), [core(4)]),
    ],
)
def test_names_of_cpu_cores_become_the_devices_of_the_table(named, expected):
    assert as_devices(named) == expected


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["cuda"], [gpu(1)]),
        ("cuda:0", [gpu(0)]),
        (["cuda", "cuda:0", "cuda:1"], [share(1, 0, 2), gpu(0), share(1, 1, 2)]),
        (["cuda:0", "cpu", "cuda:1"], [gpu(0), core(0), gpu(1)]),
        ([torch.device("cuda", 1), gpu(0)], [gpu(1), gpu(0)]),
        ([share(0, 1, 3), "cuda:0"], [share(0, 1, 3), gpu(0)]),
    ],
)
def test_names_of_gpus_become_the_devices_of_the_table(pretend_gpus, named, expected):
    pretend_gpus(2, current=1)
    assert as_devices(named) == expected


@pytest.mark.parametrize(
    ("gpus", "name"), [(2, "cuda:2"), (2, "mps"), (2, "meta"), (0, "cuda"), (0, "cuda:0")]
)
def test_a_device_that_the_machine_has_not_is_refused(pretend_gpus, gpus, name):
    pretend_gpus(gpus)
    words = f"no device '{name}'; it has {gpus} CUDA GPUs and the CPU"
    with pytest.raises(ValueError, match=words):
        as_devices(["cpu", name])


def test_synchronize_waits_for_the_work_handed_over_before():
    devices = get_devices(2)
    jobs = [device.submit(time.sleep, 0.1) for device in devices for _ in range(2)]
    synchronize(devices)
    assert all(job.done() for job in jobs)


def test_synchronize_waits_for_all_devices_used_when_none_are_named():
    job = core(9).submit(time.sleep, 0.2)
    synchronize()
    assert job.done()


def test_synchronize_waits_only_for_the_devices_named():
    go = threading.Event()
    job = core(0).submit(go.wait, 30)
    synchronize([core(1)])
    assert not job.done()
    go.set()
    assert job.result() is True


def test_a_worker_can_synchronize_its_own_device_and_another():
    first, second = get_devices(2)
    job = second.submit(time.sleep, 0.1)
    first.run(synchronize, [first, second])
    assert job.done()


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 4),
        ("150000 100000", 2),
        ("200000 100000\n", 2),
        ("10000 100000", 1),
        ("800000 100000", 4),
        ("nonsense", 4),
        ("", 4),
        (None, 4),
    ],
)
def test_cores_are_the_affinity_or_the_quota_whichever_is_less(
    monkeypatch, tmp_path, quota, expected
):
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    monkeypatch.setattr(devices_module, "Path", lambda _: file)
    monkeypatch.setattr(
        devices_module.os, "sched_getaffinity", lambda _: {0, 2, 5, 7}, raising=False
    )
    assert available_cores() == expected


@pytest.mark.parametrize(("count", "expected"), [(6, 6), (None, 1)])
def test_without_affinity_the_machine_is_asked(monkeypatch, tmp_path, count, expected):
    monkeypatch.setattr(devices_module, "Path", lambda _: tmp_path / "missing")
    monkeypatch.delattr(devices_module.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(devices_module.os, "cpu_count", lambda: count)
    assert available_cores() == expected


@pytest.mark.parametrize(
    ("count", "cores", "line"),
    [
        (1, 1, "1 CPU worker of one thread on 1 core (no GPU): each has a core"),
        (2, 4, "2 CPU workers of one thread on 4 cores (no GPU): each has a core"),
        (2, 1, "2 CPU workers of one thread on 1 core (no GPU): only 1 can work at the same time"),
    ],
)
def test_cores_are_described_with_what_they_can_do(monkeypatch, count, cores, line):
    monkeypatch.setattr(devices_module, "available_cores", lambda: cores)
    described = describe_devices([core(i) for i in range(count)])
    assert described.startswith(line)
    assert "\n" not in described


@pytest.mark.parametrize(
    ("n", "gpus", "own", "line"),
    [
        (1, 1, True, "1 GPU, one worker each (Model 0)."),
        (2, 2, True, "2 GPUs, one worker each (Model 0, Model 1)."),
        (2, 1, True, "2 shares of 1 GPU (Model 0), each with its own multiprocessors."),
        (4, 2, True, "4 shares of 2 GPUs (Model 0, Model 1), each with its own multiprocessors."),
        (
            2,
            1,
            False,
            "2 shares of 1 GPU (Model 0), each with its own stream, and overlap as far as the GPU "
            "has room.",
        ),
        (
            3,
            2,
            True,
            "1 GPU, one worker each (Model 1). "
            "2 shares of 1 GPU (Model 0), each with its own multiprocessors.",
        ),
    ],
)
def test_gpus_are_described_by_their_models(pretend_gpus, monkeypatch, n, gpus, own, line):
    pretend_gpus(gpus)
    monkeypatch.setattr(devices_module, "share_streams", lambda gpu, shares: ([], own))
    assert describe_devices(get_devices(n)) == line


def test_a_mixture_of_gpus_and_cores_is_described_part_by_part(pretend_gpus):
    pretend_gpus(1)
    described = describe_devices(["cpu", "cuda:0"])
    assert described.startswith("1 CPU worker of one thread")
    assert described.endswith("1 GPU, one worker each (Model 0).")


@pytest.mark.gpu
def test_synchronize_waits_for_kernels_that_a_device_was_handed():
    for device in get_devices(2):
        device.run(torch.cuda._sleep, 20_000_000)
        done = device.run(lambda: torch.cuda.current_stream().record_event())
        synchronize([device])
        assert done.query()
