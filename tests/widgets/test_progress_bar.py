"""A progress bar counts what the loop has done, passes everything on, and says when it ends early.

It needs no browser: the bar's state is read as the browser would show it.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpcourse.training.loop import train_epoch
from mpcourse.widgets import progress, progress_bar


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """The bars that were displayed, in order; nothing is left out for being too soon."""
    bars = []
    monkeypatch.setattr(progress_bar, "display", bars.append)
    monkeypatch.setattr(progress_bar, "REDRAW_S", 0.0)
    return bars


def state(loop) -> tuple[str, int, str]:
    return loop.bar.words.value, loop.bar.bar.value, loop.bar.bar.bar_style


def go_through(loop, error: BaseException, *, at: int) -> None:
    for batch in loop:
        if batch == at:
            raise error


def test_everything_passes_through_and_every_batch_is_counted():
    loop = progress("abc", "epoch 1")
    seen = []
    for batch in loop:
        seen.append((batch, *state(loop)))
    assert seen == [
        ("a", "epoch 1: 0 of 3 batches", 0, ""),
        ("b", "epoch 1: 1 of 3 batches", 1, ""),
        ("c", "epoch 1: 2 of 3 batches", 2, ""),
    ]
    assert state(loop) == ("epoch 1: 3 of 3 batches, done", 3, "success")
    assert loop.bar.bar.max == 3


def test_a_loader_of_torch_is_wrapped_as_any_other(shown):
    data = TensorDataset(torch.arange(10.0).reshape(10, 1), torch.zeros(10, 1))
    loop = progress(DataLoader(data, batch_size=4), "epoch 1")
    net = nn.Linear(1, 1)
    epoch = train_epoch(net, loop, torch.optim.SGD(net.parameters(), lr=0.01), nn.MSELoss())
    assert (len(loop), len(epoch.losses), epoch.num_samples) == (3, 3, 10)
    assert state(loop)[0] == "epoch 1: 3 of 3 batches, done"
    assert shown == [loop.bar]


def test_each_loop_shows_a_bar_of_its_own(shown):
    loop = progress([1, 2], "epoch 1")
    assert shown == []
    assert list(loop) == list(loop) == [1, 2]
    assert [bar.words.value for bar in shown] == ["epoch 1: 2 of 2 batches, done"] * 2
    assert shown[0] is not shown[1]


@pytest.mark.parametrize(
    ("batches", "words", "value"),
    [
        ([1], "x: 1 of 1 batch, done", 1),
        ([], "x: 0 of 0 batches, done", 1),
        ((n for n in range(2)), "x: 2 batches, done", 1),
        ((n for n in range(1)), "x: 1 batch, done", 1),
    ],
)
def test_one_batch_none_and_an_unknown_number(batches, words, value):
    loop = progress(batches, "x")
    list(loop)
    assert state(loop) == (words, value, "success")


def broken_loader():
    yield 0
    raise OSError("the disk is gone")


@pytest.mark.parametrize("error", [KeyError("no such layer"), KeyboardInterrupt()])
def test_an_error_an_interrupt_and_a_break_end_early(error):
    loop = progress(range(5), "x")
    with pytest.raises(type(error)) as held:
        go_through(loop, error, at=2)
    assert held.value.__traceback__ is not None  # which is still held
    assert state(loop) == ("x: ended early, after 2 of 5 batches", 2, "danger")
    for batch in loop:
        if batch == 1:
            break
    assert state(loop) == ("x: ended early, after 1 of 5 batches", 1, "danger")
    loop = progress(broken_loader(), "x")
    with pytest.raises(OSError, match="the disk is gone"):
        list(loop)
    assert state(loop) == ("x: ended early by OSError, after 1 batch", 0, "danger")


def test_messages_come_at_most_every_moment_and_the_last_one_always(monkeypatch):
    monkeypatch.setattr(progress_bar, "REDRAW_S", 1e6)
    loop = progress(range(3), "x")
    words = []
    for _ in loop:
        words.append(state(loop)[0])
    assert words == ["x: 0 of 3 batches"] * 3
    assert state(loop)[0] == "x: 3 of 3 batches, done"


def test_the_stored_output_is_the_same_whatever_the_loop_did(shown):
    loop = progress(range(3), "epoch 1")
    list(loop)
    with pytest.raises(KeyError):
        go_through(loop, KeyError(1), at=1)
    assert [repr(bar) for bar in shown] == ["<progress of epoch 1; run the cell to see it>"] * 2
