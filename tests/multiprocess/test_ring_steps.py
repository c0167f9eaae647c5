"""What a ring holds and sends, counted; and its picture."""

import pytest

from mpcourse.figures import ring_picture
from mpcourse.figures.ring import ARROW
from mpcourse.multiprocess.ring_steps import passed_chunk, ring_states


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
def test_in_step_s_rank_r_passes_chunk_r_minus_s_and_nothing_else_arrives(count):
    states = ring_states(count)
    for step in range(1, 2 * (count - 1) + 1):
        for rank in range(count):
            right = (rank + 1) % count
            pairs = enumerate(zip(states[step - 1][right], states[step][right], strict=True))
            changed = [chunk for chunk, (before, after) in pairs if before != after]
            assert changed == [passed_chunk(count, rank, step)] == [(rank - step) % count]


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        (ring_states, (0,), "count is a whole number from 1; got 0"),
        (ring_picture, (ring_states(3), 5), "step is 0 to 4; got 5"),
    ],
)
def test_bad_counts_ways_and_steps_are_refused(function, given, words):
    with pytest.raises(ValueError, match=words):
        function(*given)


def test_the_picture_says_what_each_rank_holds_and_what_is_new():
    picture = ring_picture(ring_states(3), 1)
    assert "rank 1 holds 0+1 of chunk 2, new" in picture.svg
    assert "rank 1 holds 1 of chunk 1;" in picture.svg
    assert "simulated; step 1 of 4 (round 1, add)" in picture.svg
    assert picture.svg.count(ARROW) == 3 * 2  # shaft and head
    assert "round 2, replace" in ring_picture(ring_states(3), 3).svg
    first = ring_picture(ring_states(3), 0).svg
    assert ARROW not in first
    assert first.count("to the right neighbour") == 3  # in every picture
    assert "to rank 0" in ring_picture(ring_states(1), 0).svg
