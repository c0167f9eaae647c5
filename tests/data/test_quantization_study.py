"""The study runs on one seed, repeats itself, and its dry run writes nothing."""

import pytest
from quantization_study import DRY, quantize_one_seed

from mpcourse.devices.devices import get_devices
from mpcourse.training.in_memory import Data


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(get_devices(1)[0].device)


def test_a_seed_fixes_the_result_and_int8_loses_next_to_nothing(data: Data):
    run = get_devices(1)[0].run
    first, again = (run(quantize_one_seed, data, 3, DRY) for _ in range(2))
    assert first == again
    for net in ("dense", "pruned"):
        found = {(row["way"], row["bits"]): row for row in first if row["net"] == net}
        assert len(found) == 9
        plain = found["float32", 32]
        for way in ("static", "dynamic", "static, per tensor"):
            assert abs(found[way, 8]["accuracy"] - plain["accuracy"]) <= 0.005
            assert found[way, 8]["bytes"] < plain["bytes"] / 3.8
        for way in ("static", "tuned, static"):  # more epochs in floats do not replace rounding
            assert found["trained", 2]["accuracy"] > found[way, 2]["accuracy"] + 0.02
