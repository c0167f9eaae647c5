"""Bytes of one rank: the figures of the ZeRO paper, and what recomputing leaves."""

import pytest

from mpcourse.memory.per_rank import MODELS, LanguageModel, bytes_per_rank

PAPER = LanguageModel(7.5e9, 1, 1, 1)


def states(**given):
    return sum(bytes_per_rank(PAPER, batch=1, **given).values()) - 34


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)]
)  # figure 1 of arXiv:1910.02054
def test_the_states_are_those_of_the_paper(stage, gigabytes):
    assert states(ranks=64, stage=stage) / 1e9 == pytest.approx(gigabytes, rel=0.005)
    assert states(ranks=1, stage=stage) == 16 * 7.5e9  # nobody to share with


def test_activations_of_a_block_and_of_one_that_is_recomputed():
    model = LanguageModel(1, 10, 8, 4)
    plain = bytes_per_rank(model, batch=2)["activations"]
    again = bytes_per_rank(model, batch=2, recompute=True)["activations"]
    assert (plain, again) == (340 * 64, 54 * 64)
    assert bytes_per_rank(model, batch=2, ranks=4, stage=3)["activations"] == plain


@pytest.mark.parametrize("name", MODELS)
def test_the_published_number_of_parameters_fits_the_shape(name):
    """A block has about 12 x width x width numbers, and each of 50,000 tokens one row."""
    model = MODELS[name]
    expected = 12 * model.layers * model.width**2 + 50_000 * model.width
    assert model.parameters == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": 0}, "batch and ranks have to be 1 or more; got 0 and 1"),
        ({"batch": 1, "ranks": 0}, "got 1 and 0"),
        ({"batch": 1, "stage": 4}, "stage has to be 0, 1, 2 or 3; got 4"),
    ],
)
def test_what_is_out_of_range_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        bytes_per_rank(PAPER, **given)
