"""What a file of torch.export may hold before torch reads it: no code outside of the graph.

torch.export.load unpickles what it finds without restrictions, opens compiled libraries, and
evaluates the sizes in the graph as Python. A file that `by_export` wrote needs none of it.
"""

import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import torch

ENTRY = re.compile(  # the first folder bears the name of the archive
    r"[^/]+/(data/(weights|constants)/((weight|tensor)_\d+|model\w*\.(json|pt))"
    r"|data/sample_inputs/model\.pt|models/model\.json"
    r"|archive_format|archive_version|version|byteorder|\.data/(version|serialization_id))"
)
SIZE = re.compile(
    r"(Symbol|Integer)\('?-?\w+'?(, (positive|integer|nonnegative)=True)*\)|\b\w+\b(?!\()"
)
SUM = re.compile(r"(Add|Mul|Max)\(\w+(, \w+)*\)")  # whose arguments are sizes


def refuse_code(file: bytes) -> None:
    """Refuse a `.pt2` file that would bring code of its own, before torch.export has seen it.

    Raises:
        ValueError: Not such a file; or it has an entry that `by_export` does not write, a pickle
            that needs more than tensors, or a size that is not a number or a symbol.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            names = archive.namelist()
            entries = {name: archive.read(name) for name in names}
        values = [json.loads(text) for name, text in entries.items() if name.endswith(".json")]
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"this is no file of torch.export: {error}") from None
    found = [pair for value in values for pair in _pairs(value)]
    pickled = {
        where["path_name"].lower() for key, value, where in found if key == "use_pickle" and value
    }
    for key, value, _ in found:
        bad_size = key == "expr_str" and not _is_size(value)
        if bad_size or (key == "guards_code" and value):
            raise ValueError(f"the file holds code as {key}: {str(value)[:80]!r}; it is not loaded")
    if len({name.lower() for name in names}) < len(names):  # torch could read the other one
        raise ValueError("the file holds two entries of one name; it is not loaded")
    for name, content in entries.items():
        if not ENTRY.fullmatch(name):
            raise ValueError(f"the file holds {name!r}, which by_export does not write")
        if content and (name.endswith(".pt") or name.rpartition("/")[2] in pickled):
            _refuse_bad_pickle(name, content)


def _is_size(text: str) -> bool:
    """Whether the text is a number or a symbol, or a sum, product or maximum of such sizes."""
    text = SIZE.sub("size", text)
    while (shorter := SUM.sub("size", text)) != text:
        text = shorter
    return text == "size"


def _pairs(value: Any) -> Iterator[tuple[str, Any, dict]]:
    """Every key, its value, and the dictionary that has them, at any depth."""
    if isinstance(value, dict):
        yield from ((key, inner, value) for key, inner in value.items())
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _pairs(inner)


def _refuse_bad_pickle(name: str, content: bytes) -> None:
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the file holds more than tensors in {name!r}: {reason}") from None
