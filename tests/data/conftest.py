"""What the tests of studies share: the sample on a device, and a call of a study there."""

from collections.abc import Callable

import pytest

from mpcourse.devices.devices import get_devices
from mpcourse.training.in_memory import Data


@pytest.fixture(scope="session")
def run() -> Callable:
    return get_devices(1)[0].run


@pytest.fixture(scope="session")
def data() -> Data:
    return Data(get_devices(1)[0].device)
