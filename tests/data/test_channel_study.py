"""The study of channels runs on one seed, and its baselines start from other weights."""

from channel_study import DRY, compare_channels
from pruning_study import Data

from mpcourse.devices.devices import get_devices


def test_the_slim_nets_have_one_size_and_start_from_different_weights():
    [device] = get_devices(1)
    untuned = DRY._replace(tuning=0, kept=(0.5,))
    whole, *slim = device.run(compare_channels, Data(device.device), 0, untuned)
    assert (whole["multiply_adds"], {row["multiply_adds"] for row in slim}) == (
        10_870_120,
        {2_766_452},
    )
    by_way = {row["way"]: row for row in slim}
    assert by_way["norm"]["pruned"] == by_way["norm"]["tuned"]  # without an epoch of tuning
    assert by_way["norm"]["pruned"] > by_way["random"]["pruned"]
    assert by_way["scratch"]["pruned"] == by_way["scratch twice"]["pruned"] < 0.2
    assert by_way["scratch"]["tuned"] > 0.3
