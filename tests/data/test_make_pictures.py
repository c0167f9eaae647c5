"""The maker of the README's pictures measures both ways, and refuses what it does not know."""

import re
from pathlib import Path

import make_pictures
import pytest
import torch
from torch import nn

from mpcourse.commands.setup import ROOT
from mpcourse.pipeline.prediction import SplitWork


def test_the_timeline_has_a_step_of_each_way_above_the_other(tmp_path: Path, monkeypatch, capsys):
    stages = [nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 3))]
    work = SplitWork(stages, torch.randn(8, 4), torch.randint(3, (8,)), [2, 4, 8])
    monkeypatch.setattr(make_pictures, "split_work", lambda devices: work)
    make_pictures.make_timeline(tmp_path / "timeline.svg")
    svg = (tmp_path / "timeline.svg").read_text(encoding="utf-8")
    rows = re.findall(r">((?:naive|pipelined), [^<]+)</text>", svg)
    assert [row.partition(",")[0] for row in rows] == ["naive", "naive", "pipelined", "pipelined"]
    events = re.findall(r"(naive|pipelined), [^;]*? runs \d([FB])\d", svg)
    assert {way: events.count((way, "B")) for way in ("naive", "pipelined")} == {
        "naive": 2 * make_pictures.PIECES,
        "pipelined": 2 * make_pictures.PIECES,
    }
    assert "measured here; 8 images, 4 micro-batches: naive" in svg
    assert "torch" in capsys.readouterr().out


def test_a_picture_that_there_is_not_is_refused(capsys):
    assert make_pictures.main(["portrait"]) == 2
    assert "no picture 'portrait'; there are timeline and explorer" in capsys.readouterr().err


@pytest.mark.parametrize("name", [file.name for file in make_pictures.FOLDER.iterdir()])
def test_the_readme_shows_each_picture_and_says_what_is_on_it(name: str):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [words] = re.findall(rf"!\[([^\]]+)\]\(data/pictures/{re.escape(name)}\)", readme)
    assert len(words) > 80
    assert (ROOT / "data/pictures" / name).stat().st_size < 150_000
