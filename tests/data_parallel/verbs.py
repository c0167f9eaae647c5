"""What the tests of the verbs share."""

import pytest
import torch

WAIT_S = 20  # a way out for a test that would hang; nothing here takes that long
DOUBLE = {"dtype": torch.float64}
GPUS = [
    pytest.param(["cuda:0"], marks=pytest.mark.gpu, id="one GPU"),
    pytest.param(["cuda:0", "cuda:1"], marks=pytest.mark.two_gpus, id="two GPUs"),
]
ALL_GPUS = [*GPUS, pytest.param(["cuda:0"] * 3, marks=pytest.mark.gpu, id="three shares of a GPU")]


def indices(devices):
    """What torch's own verbs want for devices."""
    return [torch.device(device).index for device in devices]


def assert_same(actual, expected, **tolerance):
    """Same types all the way down, same keys in the same order, equal tensors and values."""
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, **tolerance)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        assert_same(list(actual.values()), list(expected.values()), **tolerance)
    elif isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, **tolerance)
    else:
        assert actual == expected
