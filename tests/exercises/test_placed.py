"""Tensors that pretend to lie on devices which this machine does not have."""

import pytest
import torch
from torch import nn

from mpcourse.exercises.placed import place_on

HOST, OTHER = torch.device("cpu"), torch.device("cuda", 1)


def test_two_places_do_not_mix_and_one_does():
    outputs, targets = place_on(torch.eye(3), OTHER), place_on(torch.arange(3), HOST)
    for mix in (
        lambda: outputs.argmax(1) == targets,
        lambda: nn.functional.cross_entropy(outputs, targets),
        lambda: outputs.argmax(1).eq(torch.arange(3)),
    ):
        with pytest.raises(RuntimeError, match=r"same device, but found .* cuda:1 and cpu"):
            mix()
    assert (outputs.argmax(1) == targets.to(outputs)).sum().item() == 3
    assert (outputs.argmax(1).cpu() == targets).sum().item() == 3


def test_a_place_goes_on_to_results_and_a_number_may_lie_anywhere():
    value = place_on(torch.ones(4), OTHER)
    assert (value * 2).device == value.double().device == value.sum().device == OTHER
    assert value.to("cpu").device == value.cpu().device == HOST
    assert (value * torch.tensor(2.0)).tolist() == [2.0] * 4
    assert (value.sum() + place_on(torch.tensor(1.0), HOST)).item() == 5
