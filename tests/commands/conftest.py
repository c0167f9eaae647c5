"""A fork of the course, for the tests of the public address and of hosted places."""

import pytest
from forks import Fork, make_fork


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Fork:
    return make_fork(tmp_path_factory.mktemp("fork"))
