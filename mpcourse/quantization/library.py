"""The maintained library for quantization, torchao: one call, on the torch that is installed.

A release of torchao goes with certain releases of torch and fails on import with others; then, and
where it is absent, a sentence says so.
"""

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import nn

from mpcourse.pruning.masked import permanent_copy
from mpcourse.quantization.calibration import linear_layers

INSTALL = 'python -m pip install "torchao>=0.14,<0.17"'
NOISY_LOGGERS = ("torch.utils._pytree", "torchao")  # they write to stderr during the import


class TorchaoMissing(ImportError):
    """torchao is absent, or does not go with this torch; the message says which."""


def to_int8_by_torchao(model: nn.Module) -> nn.Module:
    """A copy of a model, without masks, that torchao has quantized: int8, one scale per channel.

    Inputs are quantized too, each row over its own range.

    Args:
        model: Any module with Linear layers; biases and other layers stay in floats.

    Raises:
        TorchaoMissing: torchao is absent, or fails to import; the message says what to install.
        ValueError: The model has no Linear layer.
    """
    linear_layers(model)
    library = _torchao()
    plain = permanent_copy(model)
    with _quiet():
        config = library.Int8DynamicActivationInt8WeightConfig()
        library.quantize_(plain, config)  # in place
    return plain


def _torchao() -> ModuleType:
    """Its quantization module, imported when it is first needed."""
    try:
        with _quiet():
            return importlib.import_module("torchao.quantization")
    except ModuleNotFoundError as error:
        if error.name != "torchao":
            raise TorchaoMissing(_misfit(error)) from error
        raise TorchaoMissing(f"torchao is not installed; to have it: {INSTALL}") from None
    except Exception as error:  # whatever a release for another torch runs into
        raise TorchaoMissing(_misfit(error)) from error


def _misfit(error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return (
        f"the installed torchao does not go with torch {torch.__version__} ({reason}); "
        f"to have one that does: {INSTALL}"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence logs and warnings of torchao: they concern kernels that are not used here."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
