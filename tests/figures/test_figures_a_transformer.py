"""Attention maps show every weight that is not hidden, and say in words where heads look."""

import pytest
import torch

from mpcourse.figures import attention_picture


def test_maps_show_who_looks_at_whom():
    weights = torch.tensor([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [1.0, 0.0]]])
    drawn = attention_picture(weights, "a<")
    assert drawn.svg.count("looks at &#x27;") == 2 * 3
    assert "&#x27;&lt;&#x27; looks at &#x27;a&#x27;: 25%" in drawn.svg
    assert "head 0 looks at itself 88%, one back 25%" in drawn.svg
    assert "head 1 looks at itself 50%, one back 100%" in drawn.svg
    assert 'fill="rgb(0,114,178)"' in drawn.svg
    assert 'fill="rgb(255,255,255)"' in drawn.svg
    assert "attention of 2 heads over 2 characters" in repr(drawn)


def test_words_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 characters for 2 rows"):
        attention_picture(torch.eye(2)[None], "abc")
