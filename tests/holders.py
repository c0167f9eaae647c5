"""What can hold tensors, and is neither a tuple, a list nor a dict that is taken apart."""

import dataclasses
from collections import UserDict
from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pack_sequence


@dataclasses.dataclass
class Batch:
    rows: torch.Tensor


@dataclasses.dataclass
class SlottedBatch:
    __slots__ = ("rows",)
    rows: torch.Tensor


HOLDERS = {  # name -> what puts a tensor into one
    "dataclass": Batch,
    "dataclass with slots": SlottedBatch,
    "object": lambda rows: SimpleNamespace(rows=rows),
    "object with a nest": lambda rows: SimpleNamespace(fields={"rows": [rows]}),
    "mapping": lambda rows: UserDict(rows=rows),
    "set": lambda rows: {rows},
    "packed sequence": lambda rows: pack_sequence([rows]),
}
