"""The study runs on one seed, repeats itself, and its dry run writes nothing."""

import torch
from quantization_study import DRY, _by_columns, _by_rows, _largest, quantize_one_seed


def test_a_seed_fixes_the_result_and_int8_loses_next_to_nothing(run, data):
    first, again = (run(quantize_one_seed, data, 3, DRY) for _ in range(2))
    assert first == again
    for net in ("dense", "small"):
        found = {(row["way"], row["bits"]): row for row in first if row["net"] == net}
        assert len(found) == 11
        plain = found["float32", 32]
        for way in ("static", "dynamic", "static, per tensor"):
            assert abs(found[way, 8]["accuracy"] - plain["accuracy"]) <= 0.01
            assert found[way, 8]["bytes"] < plain["bytes"] / 2.8
        right = {way: row["accuracy"] for (way, bits), row in found.items() if bits == 2}
        assert right["largest"] < right["best"] < right["trained"] + 0.01
        assert right["largest"] < right["gptq"] < right["trained"] + 0.01
        assert right["largest"] < right["gptq, best"]
        assert right["tuned, best"] <= right["trained"]  # more epochs do not replace rounding
        assert found["groups", 2]["bytes"] > found["best", 2]["bytes"]


def test_rounding_column_by_column_leaves_less_error_in_the_outputs():
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(4, 20, generator=generator)
    inputs = torch.randn(200, 4, generator=generator) @ mixed
    weight = torch.randn(5, 20, generator=generator)
    apart, together = (
        (inputs @ (made(3, *rest)(weight, inputs) - weight).t()).square().sum()
        for made, rest in ((_by_rows, [_largest]), (_by_columns, [_largest]))
    )
    assert together < 0.5 * apart
    unrelated = torch.eye(20)  # nothing to make up for
    torch.testing.assert_close(
        _by_columns(3, _largest)(weight, unrelated), _by_rows(3, _largest)(weight, unrelated)
    )
