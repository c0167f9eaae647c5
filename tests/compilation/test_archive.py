"""A file of torch.export that brings code of its own is refused, and none of the code has run."""

import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from mpcourse.compilation import by_export, load_exported
from mpcourse.compilation.archive import _is_size

SAMPLE = torch.randn(4, 3)


class Hostile:
    """Unpickling it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def good() -> dict[str, bytes]:
    file = by_export(nn.Linear(3, 2).eval(), SAMPLE).file
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(entries: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def hostile_pickle(marker: Path) -> bytes:
    file = io.BytesIO()
    torch.save((Hostile(marker),), file)
    return file.getvalue()


def sample_pickle(entries, marker):
    return {"archive/data/sample_inputs/model.pt": hostile_pickle(marker)}


def weight_pickle(entries, marker):
    config = "archive/data/weights/model_weights_config.json"
    flipped = entries[config].replace(b'"use_pickle": false', b'"use_pickle": true', 1)
    return {config: flipped, "archive/data/weights/weight_0": hostile_pickle(marker)}


def pickle_in_capitals(entries, marker):
    changed = weight_pickle(entries, marker)  # the archive reader of torch ignores the case
    config = "archive/data/weights/model_weights_config.json"
    return changed | {config: changed[config].replace(b'"weight_0"', b'"WEIGHT_0"')}


def size_expression(entries, marker):
    code = json.dumps(f"__import__('os').mkdir('{marker}')")
    text = entries["archive/models/model.json"].decode()
    changed = re.sub(r'"expr_str": "[^"]*"', lambda _: f'"expr_str": {code}', text)
    assert changed != text
    return {"archive/models/model.json": changed.encode()}


CASES = {
    "sample inputs": (sample_pickle, "more than tensors in 'archive/data/sample_inputs/model.pt'"),
    "a weight": (weight_pickle, "more than tensors in 'archive/data/weights/weight_0'"),
    "a weight in capitals": (pickle_in_capitals, "more than tensors"),
    "a size": (size_expression, "code as expr_str"),
}


@pytest.mark.parametrize(("change", "message"), CASES.values(), ids=CASES)
def test_code_in_a_file_is_refused_before_it_runs(good, marker, change, message):
    file = packed(good | change(good, marker))
    with pytest.raises(ValueError, match=message):
        load_exported(file)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("size", "is_one"),
    [
        ("64", True),
        ("Symbol('s31', positive=True, integer=True)", True),
        ("Add(Symbol('s31', positive=True, integer=True), Integer(17))", True),
        ("Max(Integer(0), Add(Integer(17), Mul(Integer(-1), Symbol('s31'))))", True),
        ("Add(Symbol('s31'), open('file'))", False),
        ("Add(Symbol(open('file')), Integer(1))", False),
        ("Symbol('s31').name", False),
        ("Pow(Integer(9), Integer(9))", False),
        ("size(1)", False),
        ("", False),
    ],
)
def test_sizes_are_numbers_symbols_and_what_is_computed_of_them(size, is_one):
    assert _is_size(size) is is_one


def test_libraries_guards_and_second_entries_are_refused(good):
    library = "archive/data/aotinductor/model/model.so"
    with pytest.raises(ValueError, match=re.escape(repr(library))):
        load_exported(packed(good | {library: b""}))
    graph = json.loads(good["archive/models/model.json"]) | {"guards_code": ["1 / 0"]}
    with pytest.raises(ValueError, match=r"code as guards_code: .*1 / 0"):
        load_exported(packed(good | {"archive/models/model.json": json.dumps(graph).encode()}))
    with pytest.raises(ValueError, match="two entries of one name"):
        load_exported(packed(good | {"archive/models/MODEL.json": b"{}"}))
    with pytest.raises(ValueError, match=r"no file of torch\.export"):
        load_exported(b"PK")


def test_the_same_archive_packed_again_without_code_is_loaded(good):
    assert load_exported(packed(good))(SAMPLE).shape == (4, 2)
