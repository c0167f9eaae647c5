"""Why torch.export cannot make one graph of a model."""

import contextlib
import io
import logging

import torch
from torch import Tensor, nn
from torch.export import Dim


def export_refusal(model: nn.Module, sample: Tensor) -> str | None:
    """What torch.export says against a model, for any number of rows; `None` where it can.

    The usual reason is an `if` that depends on values: which way will the next sample go?

    Args:
        model: In evaluation mode.
        sample: An input of two rows or more: a dimension of 1 would be taken for fixed.
    """
    known = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch logs pages about its internals
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            torch.export.export(model, (sample,), dynamic_shapes=({0: Dim.DYNAMIC},))
    except Exception as error:  # the type depends on the version of torch
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        logging.disable(known)
    return None
