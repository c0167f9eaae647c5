"""Figures of a net in few bits show every number they are given; the study counts all weights."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch
from matplotlib.figure import Figure
from sheets import beside_the_sheet

from mpcourse.figures import BitsStudy, Rounded, bits_picture, plot_savings
from mpcourse.quantization import calibrate
from mpcourse.training.nets import lenet_300_100
from mpcourse.widgets import bits_study

NAMESPACE = "{http://www.w3.org/2000/svg}"
STUDY = BitsStudy(
    weights=100,
    accuracy=0.95,
    rounded={
        (2, "per channel"): Rounded([10, 80, 10], [20, 60, 20], 0.25, 0.8),
        (2, "per tensor"): Rounded([5, 95, 0], [10, 80, 10], 0.5, 0.3),
        (3, "per channel"): Rounded([5, 10, 20, 30, 20, 10, 5], [30, 40, 30], 0.1, 0.93),
        (3, "per tensor"): Rounded([0, 5, 20, 50, 20, 5, 0], [30, 40, 30], 0.2, 0.91),
    },
)


def drawn(*chosen) -> ElementTree.Element:
    return ElementTree.fromstring(bits_picture(STUDY, *chosen).svg)


def groups(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """What shows a hint, by the hint."""
    return {g.find(f"{NAMESPACE}title").text: g for g in root.findall(f"{NAMESPACE}g")}


def test_the_headline_has_bits_scales_and_both_accuracies():
    first = drawn(2, "per tensor").find(f"{NAMESPACE}text").text
    assert first == (
        "measured here; 2 bits, scales per tensor: 30.0% of the test digits right "
        "(95.0% in float32)"
    )


def test_all_is_said_in_words():
    spoken = drawn(3).find(f"{NAMESPACE}desc").text
    assert "7 integers from -3 to 3, 30.0% of them 0" in spoken
    assert "half a step: at most 0.1" in spoken
    assert "bytes: float32 400, int8 100, 3 bits, packed 38" in spoken
    assert spoken.endswith(
        "accuracy by bits: per channel 2: 80.0%, 3: 93.0%; per tensor 2: 30.0%, 3: 91.0%"
    )


def test_bars_of_bytes_are_as_long_as_there_are_bytes():
    shown = groups(drawn(2))
    widths = {
        hint: float(g.find(f"{NAMESPACE}rect").attrib["width"])
        for hint, g in shown.items()
        if "bytes" in hint
    }
    assert widths == {
        "float32: 400 bytes": 210,
        "int8: 100 bytes": pytest.approx(52.5),
        "2 bits, packed: 25 bytes": pytest.approx(13.12, abs=0.01),
    }


def test_the_highest_bar_is_the_most_frequent_integer():
    path = groups(drawn(2))["weights by their integer"].find(f"{NAMESPACE}path").attrib["d"]
    points = [tuple(map(float, pair.split())) for pair in path.strip("MZ").split("L")]
    top = min(y for _, y in points)
    highest = [x for x, y in points if y == top]
    assert 16 + 250 / 3 < min(highest) < max(highest) < 16 + 500 / 3  # the middle one of three
    foot = points[0][1]
    heights = sorted({foot - y for _, y in points})
    assert heights == pytest.approx([0, 130 / 8, 130])  # the line, ten weights, eighty weights


def test_the_ring_is_around_the_point_that_is_chosen():
    for bits in (2, 3):
        for scales in ("per channel", "per tensor"):
            shown = groups(drawn(bits, scales))
            ring = shown["chosen"].find(f"{NAMESPACE}circle").attrib
            value = STUDY.rounded[bits, scales].accuracy
            point = shown[f"{bits} bits, {scales}: {value:.1%}"].find(f"{NAMESPACE}path")
            corners = [c.split() for c in point.attrib["d"].strip("MZ").split("L")]
            middle = sum(float(x) for x, _ in corners) / len(corners)
            assert float(ring["cx"]) == pytest.approx(middle, abs=0.5)
            assert float(ring["cy"]) == pytest.approx(420 - 150 * value, abs=0.01)


def test_everything_lies_on_the_sheet():
    assert beside_the_sheet(drawn(3)) == []


def test_unknown_bits_and_labels_are_refused():
    with pytest.raises(ValueError, match=r"the study has 2 per channel, .*; got 5 per channel"):
        bits_picture(STUDY, 5)
    with pytest.raises(ValueError, match="label is one of"):
        bits_picture(STUDY, 2, label="guessed")


# The numbers behind it


def test_a_study_counts_every_weight_in_every_way():
    net = lenet_300_100()
    for layer in (net.fc1, net.fc2, net.fc3):
        torch.nn.init.normal_(layer.weight)  # few large weights, as training leaves them
    ranges = calibrate(net, [torch.randn(8, 1, 28, 28)])
    seen = []
    study = bits_study(net, ranges, lambda model: seen.append(model) or len(seen) / 100)
    assert study.weights == 266_200
    assert study.accuracy == 0.01
    ways = ("per channel", "per tensor")
    assert list(study.rounded) == [(bits, way) for bits in range(2, 9) for way in ways]
    for (bits, _), each in study.rounded.items():
        assert len(each.integers) == 2**bits - 1
        assert sum(each.integers) == sum(each.errors) == 266_200
    channel, tensor = study.rounded[8, "per channel"], study.rounded[8, "per tensor"]
    assert channel.integers[0] + channel.integers[-1] >= 410  # a largest one in each row
    assert tensor.integers[0] + tensor.integers[-1] < 410
    assert channel.half_step <= 1.001 * tensor.half_step
    flat = [count / 266_200 * 40 for count in channel.errors]
    assert max(flat) < 1.3 * min(flat)


# Savings over calls


TIMES = {"eager": (1.0, 0.01), "compile": (6.0, 0.005), "export": (2.0, 0.02)}
SLIGHTLY_MORE = {"eager": (0.0, 0.75), "compile": (10.1, 0.5)}  # 40.4 calls


def test_savings_are_calls_saved_less_the_start_up():
    ax = plot_savings(TIMES, Figure().add_subplot(), most_calls=100_000)
    zero, compiled, ring, exported = ax.lines  # export never pays: no ring
    assert list(zero.get_ydata()) == [0, 0]
    for line, cost, gain in ((compiled, 5.0, 0.005), (exported, 1.0, -0.01)):
        calls, seconds = line.get_xdata(), line.get_ydata()
        assert (calls[0], calls[-1]) == (1, pytest.approx(100_000))
        assert list(seconds) == pytest.approx([each * gain - cost for each in calls])
    assert ring.get_xydata().tolist() == [[pytest.approx(1000), 0]]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["compile: pays back after 1,000 calls", "export"]
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_title()) == ("log", "symlog", "measured here")
    assert ax.get_ylabel() == "seconds saved against eager"
    assert compiled.get_linestyle() != exported.get_linestyle()


def test_the_legend_rounds_calls_up():
    ax = plot_savings(SLIGHTLY_MORE, Figure().add_subplot())
    [name] = [text.get_text() for text in ax.get_legend().get_texts()]
    assert name == "compile: pays back after 41 calls"


def test_a_crossing_beyond_the_last_call_is_named_and_has_no_ring():
    ax = plot_savings(TIMES, Figure().add_subplot(), most_calls=100)
    assert len(ax.lines) == 3
    assert "1,000" in ax.get_legend().get_texts()[0].get_text()


def test_savings_refuse_one_name_few_calls_and_other_labels():
    ax = Figure().add_subplot()
    with pytest.raises(ValueError, match=r"two names or more: .*; got \['eager'\]"):
        plot_savings({"eager": (1, 1)}, ax)
    with pytest.raises(ValueError, match="most_calls is 10 or more; got 5"):
        plot_savings(TIMES, ax, most_calls=5)
    with pytest.raises(ValueError, match="label is one of"):
        plot_savings(TIMES, ax, label="guessed")
    assert not ax.lines
