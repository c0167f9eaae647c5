"""What tests of threads share: a call that must end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

LIMIT_S = 30.0  # for what takes well under one second


def in_time(fn: Callable, *arguments: Any) -> Any:
    """Call `fn` in a thread of its own: what hangs fails the test with a TimeoutError."""
    outcome = Future()

    def call() -> None:
        try:
            outcome.set_result(fn(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return outcome.result(LIMIT_S)
