"""The command line of torchrun for a program of this package, on one host or on several."""

import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_PORT = 29400  # torchrun's own for its c10d rendezvous
# torchrun needs this to restart gloo reliably: it shares its store with the ranks otherwise, where
# those of the second attempt find the addresses of the first (pytorch/pytorch issue 135712).
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


@dataclass(frozen=True)
class Host:
    """One host of several.

    Attributes:
        address: Its own, as the others reach it.
        meeting_point: The first host's address; all hosts meet there.
        index: Which host this is, from 0.
        count: How many there are.
        port: Where they meet; free on the first host.
        run_id: The same on all hosts, another one for every run.
    """

    address: str
    meeting_point: str
    index: int
    count: int
    port: int = DEFAULT_PORT
    run_id: str = "mpcourse"


def torchrun_command(
    words: Sequence[str],
    *,
    processes: int = 2,
    restarts: int = 0,
    host: Host | None = None,
    python: str = sys.executable,
) -> list[str]:
    """The words of the command that starts a program under torchrun.

    Args:
        words: One of the package's programs, and its options.
        processes: On this host, 1 or more.
        restarts: How often torchrun starts the whole run again after a rank has failed.
        host: Which of several hosts this is; the only one when None.
        python: The interpreter.
    """
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise ValueError(f"processes is a whole number from 1; got {processes!r}")
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise ValueError(f"restarts is a whole number from 0; got {restarts!r}")
    command = [python, "-m", "torch.distributed.run"]
    if host is None:
        command += ["--standalone", "--local-addr", "127.0.0.1"]  # finds a free port by itself
    else:
        command += _where(host)
    command += ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    command += ["--monitor-interval", "0.1"]
    return [*command, "-m", "mpcourse.multiprocess", *words]


def _where(host: Host) -> list[str]:
    if not 0 <= host.index < host.count:
        raise ValueError(f"hosts are numbered 0 to {host.count - 1}; got {host.index}")
    # without is_host a host with several addresses may not know that the meeting point is itself
    conf = {"is_host": int(host.index == 0), "read_timeout": 30, "keep_alive_interval": 2}
    return [
        *("--nnodes", str(host.count), "--rdzv-backend", "c10d", "--rdzv-id", host.run_id),
        *("--rdzv-endpoint", f"{host.meeting_point}:{host.port}", "--local-addr", host.address),
        *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())),
    ]


def interface_of(address: str) -> str | None:
    """The network interface that has this IPv4 address; None if nobody knows (not on Linux).

    gloo takes the interface of the host's name otherwise, which others often cannot reach.
    """
    try:
        import fcntl
    except ImportError:
        return None
    if not sys.platform.startswith("linux"):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, GET_ADDRESS, struct.pack("256s", name.encode()))
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line.

    `{"batch_size": 64}` becomes `--batch-size 64`, True a bare flag; None and False are left out.
    """
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        words += [str(item) for item in values]
    return words
