"""Seeds and skips of the unit tests."""

import random

import pytest
import torch

NEEDED_GPUS = {"gpu": 1, "two_gpus": 2}
MANY_WAITS = ("test_exercises.py", "test_grade_attacks.py")  # short ones, minutes in all


@pytest.fixture(autouse=True)
def _seeds() -> None:
    torch.manual_seed(0)
    random.seed(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, needed in NEEDED_GPUS.items():
        if item.get_closest_marker(marker) and torch.cuda.device_count() < needed:
            pytest.skip(f"needs {needed} CUDA GPU(s), this machine has {torch.cuda.device_count()}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pages and files that take long begin first: else one is the last, beside idle processes."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    long |= {item.path for item in items if item.path.name in MANY_WAITS}
    items.sort(key=lambda item: item.path.suffix == ".py" and item.path not in long)
