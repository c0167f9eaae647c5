"""The study of a GPU: what it needs, and that each of its parts runs where there is one."""

import gpu_study
import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_it_needs(capsys):
    assert gpu_study.main(["--dry"]) == 1
    assert "needs a CUDA GPU" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.slow
def test_every_part_runs_and_its_rows_have_the_same_columns(capsys):
    for studies in gpu_study.FILES.values():
        rows = [row for study in studies for row in study(True)]
        assert len({tuple(row) for row in rows}) == 1
        assert all(row["low_s"] <= row["s"] <= row["high_s"] for row in rows if "s" in row)
