"""Workers for one test alone."""

import itertools

import pytest
from working import LIMIT_S

from mpcourse.devices import workers as workers_of_devices
from mpcourse.devices.streams import StreamContext
from mpcourse.devices.workers import Worker

numbers = itertools.count()


@pytest.fixture
def make_workers():
    """A function that makes workers of their own: what a test breaks stays with it."""
    made = []

    def make(count, context=StreamContext):
        names = (f"device {i} (test {next(numbers)})" for i in range(count))
        made.extend(Worker(name, context()) for name in names)
        return made[-count:]

    yield make
    for worker in made:
        if worker.thread is not None:
            worker.thread.close()


@pytest.fixture
def workers(make_workers):
    """Two of them."""
    return make_workers(2)


@pytest.fixture
def no_looking_up(monkeypatch):
    """Let a wait sleep until it is woken."""
    monkeypatch.setattr(workers_of_devices, "POLL_S", 10 * LIMIT_S)
