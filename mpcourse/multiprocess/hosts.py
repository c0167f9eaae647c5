"""The same run on several hosts (page `ranks_and_hosts`).

On each host: `python -m mpcourse.multiprocess.hosts --index 0 --count 2 --address 10.0.0.1
--meeting-point 10.0.0.1 --processes 2 -- ddp --epochs 2 --checkpoints /shared/run`.

It starts torchrun with its c10d rendezvous. Unlike torchrun alone it ends in bounded time when the
link is cut: the torchrun on the far side would wait for an answer of the meeting point until TCP
gives up, many minutes later.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from mpcourse.multiprocess.blame import RankError
from mpcourse.multiprocess.launch import launch_words
from mpcourse.multiprocess.torchrun import DEFAULT_PORT, Host, option_words

MODULE = "mpcourse.multiprocess.hosts"


def host_commands(
    program: str,
    options: dict[str, Any],
    addresses: Sequence[str],
    *,
    processes: int = 1,
    port: int = DEFAULT_PORT,
    run_id: str = "mpcourse",
) -> list[str]:
    """The command line for each host; the first address is the meeting point.

    Args:
        program: As for `launch`.
        options: Of the program. Checkpoints belong into a folder that all hosts see.
        addresses: IPv4 addresses, as the hosts reach each other.
        processes: On each host, 1 or more.
        port: Free on the first host, and let through by its firewall.
        run_id: Another one for every run.
    """
    if len(addresses) < 2:
        raise ValueError(f"several hosts have 2 or more addresses; got {len(addresses)}")
    commands = []
    for index, address in enumerate(addresses):
        words = ["python", "-m", MODULE, "--index", index, "--count", len(addresses)]
        words += ["--address", address, "--meeting-point", addresses[0], "--port", port]
        words += ["--run-id", run_id, "--processes", processes, "--", program]
        commands.append(shlex.join([*map(str, words), *option_words(options)]))
    return commands


def main(words: Sequence[str] | None = None) -> int:
    """Start this host's part of a run; 1 and a message that names the rank if it fails."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--index", type=int, required=True, help="of this host, from 0")
    parser.add_argument("--count", type=int, required=True, help="of hosts")
    parser.add_argument("--address", required=True, help="of this host")
    parser.add_argument("--meeting-point", required=True, help="the address of host 0")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--run-id", default="mpcourse")
    parser.add_argument("--processes", type=int, default=1, help="on this host")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=86400.0, help="seconds")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="-- PROGRAM and its options")
    given = parser.parse_args(words)
    host = Host(
        given.address, given.meeting_point, given.index, given.count, given.port, given.run_id
    )
    try:
        outcome = launch_words(
            [word for word in given.program if word != "--"],
            processes=given.processes,
            restarts=given.restarts,
            host=host,
            time_limit_s=given.time_limit,
        )
    except (RankError, TimeoutError, ValueError) as error:
        print(f"host {given.index}: {error}", file=sys.stderr)
        return 1
    for result in outcome.results:
        print({k: v for k, v in result.items() if isinstance(v, int | float | str)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
