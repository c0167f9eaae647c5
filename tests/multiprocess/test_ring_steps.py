"""What a ring holds and sends, counted; and its picture and curve."""

import pytest
from matplotlib.figure import Figure

from mpcourse.figures import plot_sent, ring_picture
from mpcourse.multiprocess.ring_steps import most_sent, passed_chunk, ring_states


@pytest.mark.parametrize("count", range(1, 9))
def test_in_the_end_every_rank_has_every_sum_and_nothing_is_added_twice(count):
    states = ring_states(count)
    assert len(states) == 2 * (count - 1) + 1
    assert states[-1] == [[tuple(range(count))] * count] * count
    for state in states:
        for row in state:
            assert all(len(set(held)) == len(held) for held in row)
    whole = [sum(len(held) == count for held in state[0]) for state in states]
    assert whole[count - 1] == 1 or count == 1


@pytest.mark.parametrize("count", range(2, 7))
def test_in_step_s_rank_r_passes_chunk_r_minus_s_plus_1_and_nothing_else_arrives(count):
    states = ring_states(count)
    for step in range(1, 2 * (count - 1) + 1):
        for rank in range(count):
            right = (rank + 1) % count
            pairs = enumerate(zip(states[step - 1][right], states[step][right], strict=True))
            changed = [chunk for chunk, (before, after) in pairs if before != after]
            assert changed == [passed_chunk(count, rank, step)] == [(rank - step + 1) % count]


def test_what_the_busiest_rank_sends():
    assert [most_sent("star", n) for n in (1, 2, 3, 16)] == [0, 1, 2, 15]
    assert [most_sent("ring", n) for n in (1, 2, 4, 16)] == [0, 1, 1.5, 1.875]


def test_bad_counts_and_ways_are_refused():
    with pytest.raises(ValueError, match="count is a whole number from 1; got 0"):
        ring_states(0)
    with pytest.raises(ValueError, match="count is a whole number from 1; got 0"):
        most_sent("ring", 0)
    with pytest.raises(ValueError, match='"star" or "ring"; got \'tree\''):
        most_sent("tree", 2)


def test_the_picture_says_what_each_rank_holds_and_what_is_new():
    picture = ring_picture(ring_states(3), 1)
    assert "rank 1 holds 0+1 of chunk 0, new" in picture.svg
    assert "rank 1 holds 1 of chunk 1;" in picture.svg
    assert "simulated; step 1 of 4 (round 1, add)" in picture.svg
    assert picture.svg.count("→") == 3
    assert "round 2, replace" in ring_picture(ring_states(3), 3).svg
    assert "→" not in ring_picture(ring_states(3), 0).svg


def test_pictures_of_no_step_are_refused():
    with pytest.raises(ValueError, match="step is 0 to 4; got 5"):
        ring_picture(ring_states(3), 5)


def test_measured_points_stand_on_simulated_lines():
    ax = plot_sent(
        [2, 3], {"star": [1, 2], "ring": [1, 4 / 3]}, {"ring": (3, 1.3)}, Figure().subplots()
    )
    labels = ["star, simulated", "ring, simulated", "ring, measured here"]
    assert [line.get_label() for line in ax.lines] == labels
    assert ax.lines[2].get_xydata().tolist() == [[3, 1.3]]


def test_lines_that_do_not_fit_are_refused():
    ax = Figure().subplots()
    with pytest.raises(ValueError, match="star has 1 values; there are 2 ranks"):
        plot_sent([2, 3], {"star": [1]}, {}, ax)
    with pytest.raises(ValueError, match="no line for tree; lines are star"):
        plot_sent([2], {"star": [1]}, {"tree": (2, 1)}, ax)
    assert not ax.lines
