"""The picture of a pruned pipeline shows its step and its speed-ups."""

import xml.etree.ElementTree as ElementTree

import pytest

from mpcourse.figures import Gains, gains_picture
from mpcourse.schedules.simulation import Costs, simulate
from mpcourse.schedules.standard import gpipe_schedule

STEP = simulate(gpipe_schedule(2, 3), Costs([1, 2], [2, 4]))
GAINS = Gains({"stage": {0.5: 4.0, 1.0: 1.0}, "pipeline": {0.5: 1.25, 1.0: 1.0}})
NAMES = ["A", "B"]


def test_the_step_and_the_speed_ups_at_the_chosen_share_are_shown():
    picture = gains_picture(GAINS, 0.5, STEP, NAMES, caption="half kept")
    root = ElementTree.fromstring(picture.svg)
    words = ["".join(each.itertext()) for each in root.iter() if each.tag.endswith("text")]
    assert "simulated; half kept" in words
    assert "stage: 4.00 times as fast" in words
    assert "pipeline: 1.25 times as fast" in words
    assert {str(event.action) for event in STEP.events} <= set(words)
    assert picture.svg.count("<circle") == len(GAINS.lines)  # a ring on every line
    description = next(each.text for each in root if each.tag.endswith("desc"))
    assert "stage: 50% kept 4.00, 100% kept 1.00" in description


def test_another_share_moves_the_rings_only_to_a_share_that_is_there():
    one, other = (gains_picture(GAINS, s, STEP, NAMES, caption="c").svg for s in (0.5, 1.0))
    assert one != other
    with pytest.raises(ValueError, match=r"shares are 0.5, 1; got 0.7"):
        gains_picture(GAINS, 0.7, STEP, NAMES, caption="c")
    with pytest.raises(ValueError, match="2 devices need names; got 1"):
        gains_picture(GAINS, 0.5, STEP, ["A"], caption="c")


def test_lines_have_the_same_two_or_more_shares():
    with pytest.raises(ValueError, match="the same shares"):
        Gains({"a": {0.5: 1.0, 1.0: 1.0}, "b": {0.25: 1.0, 1.0: 1.0}})
    with pytest.raises(ValueError, match="two or more"):
        Gains({"a": {1.0: 1.0}})
