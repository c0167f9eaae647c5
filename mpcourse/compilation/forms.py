"""The same model in three forms: eager, exported, compiled.

Each function returns something to be called like the model. What can be saved of it are the bytes
of a file: a state (it needs the Python code of the model), or values and code together.
"""

import contextlib
import io
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from mpcourse.compilation.toolchain import CompilerMissing, compiler_problem
from mpcourse.pruning.formats import saved


class Form(NamedTuple):
    """A model ready to be called."""

    call: Callable[[Tensor], Tensor]
    file: bytes  # what is saved of it


def as_eager(model: nn.Module, sample: Tensor) -> Form:
    """The model itself: Python calls one kernel after the other. The file is its state."""
    return Form(model, saved(model.state_dict()))


def by_export(model: nn.Module, sample: Tensor) -> Form:
    """One graph of the model, without its Python code, for batches of any size."""
    rows = sample[:2].clone()  # the file holds the sample's whole storage too
    program = export_program(model, rows)
    file = io.BytesIO()
    torch.export.save(program, file)
    return Form(program.module(), file.getvalue())


def export_program(model: nn.Module, sample: Tensor) -> ExportedProgram:
    """The graph that torch.export finds, for any number of rows, in evaluation mode.

    By default a graph holds for the number of rows of its sample alone; a dimension of 1 would be
    taken for fixed in any case, so the sample has two rows at least.
    """
    if len(sample) < 2:
        raise ValueError(f"export any batch from a sample of 2 rows or more; got {len(sample)}")
    return torch.export.export(model, (sample,), dynamic_shapes=({0: Dim.DYNAMIC},))


def export_refusal(model: nn.Module, sample: Tensor) -> str | None:
    """Why torch.export cannot make one graph of a model; `None` where it can.

    The usual reason is an `if` that depends on values: which way will the next sample go?
    """
    known = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch logs pages about its internals
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            export_program(model, sample)
    except Exception as error:  # the type depends on the version of torch
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        logging.disable(known)
    return None


def by_compile(model: nn.Module, sample: Tensor) -> Form:
    """Kernels written and compiled for this model, when it is first called. The file is its state.

    The state comes from the model: that of the compiled module has `_orig_mod.` before each name.

    Raises:
        CompilerMissing: There is no compiler to call.
    """
    if problem := compiler_problem(sample.device.type):
        raise CompilerMissing(problem)
    return Form(torch.compile(model), saved(model.state_dict()))


FORMS: dict[str, Callable[..., Form]] = {
    "eager": as_eager,
    "export": by_export,
    "compile": by_compile,
}


def usable_forms(place: str = "cpu") -> list[str]:
    """The forms that this machine can make of a model on such a device: all, or not "compile"."""
    return [name for name in FORMS if name != "compile" or not compiler_problem(place)]
