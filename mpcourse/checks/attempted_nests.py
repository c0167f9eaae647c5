"""A nest for an attempt at scatter, with the ways in which people cut it wrong.

Page `scatter_and_gather`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mpcourse.checks.verdict import Case, same


def nest_case(nest: Any, devices: int) -> Case:
    """What each of the devices gets of a nest, and what it gets when people go wrong."""

    def parts(value: Any, leaf: Callable[[Any], list], container: Callable = type) -> list:
        if isinstance(value, dict | tuple | list) and not value:
            return [value] * devices
        if isinstance(value, dict):
            rows = zip(*(parts(field, leaf, container) for field in value.values()), strict=False)
            return [dict(zip(value, row, strict=True)) for row in rows]
        if isinstance(value, tuple | list):
            columns = [parts(field, leaf, container) for field in value]
            return [container(value)(row) for row in zip(*columns, strict=False)]
        return leaf(value)

    def cut(value: Any) -> list:
        whole = [value] * devices
        return list(value.chunk(devices)) if isinstance(value, Tensor) else whole

    def letters(value: Any) -> list:
        return list(value) if isinstance(value, str) else cut(value)

    right = parts(nest, cut)
    fields = list(nest) if isinstance(nest, dict) else range(len(nest))
    columns = [parts(nest[field], cut) for field in fields]
    turned = dict(zip(fields, columns, strict=True)) if isinstance(nest, dict) else columns
    shallow = [
        type(nest)(row) if not isinstance(nest, dict) else dict(zip(nest, row, strict=True))
        for row in zip(*(cut(nest[field]) for field in fields), strict=False)
    ]
    known = (
        ([nest] * devices, "Each device got the whole nest: its tensors are to be cut."),
        (right[0] if right else None, "That is the first device's nest; return a list of nests."),
        (turned, "That is a nest of lists; return a list of nests, one for each chunk."),
        (parts(nest, cut, lambda _: list), "Types have changed: a tuple stays a tuple."),
        (parts(nest, cut, lambda _: tuple), "Types have changed: a list stays a list."),
        (parts(nest, letters), "A text is no nest of letters: each device gets all of it."),
        ([], "zip over no columns gives no row: an empty nest goes to every device as it is."),
        (shallow, "A nest inside the nest was not taken apart: scatter calls itself for it."),
    )
    words = ", ".join(type(nest[field]).__name__ for field in fields)
    given = f"a {type(nest).__name__} of ({words}) and {devices} devices"
    hint = "Look at one kind of value after the other: tensor, dict, tuple or list, anything else."
    return Case(given, (nest, devices), right, known, hint, _same_nest)


def _same_nest(result: Any, expected: Any) -> bool:
    """Equal, and of the same types all the way down; the outermost list may be a tuple."""

    def alike(one: Any, other: Any) -> bool:
        if type(one) is not type(other):
            return False
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
        if isinstance(one, tuple | list):
            return len(one) == len(other) and all(map(alike, one, other))
        return same(one, other)

    if not isinstance(result, tuple | list) or not isinstance(expected, tuple | list):
        return alike(result, expected)
    return len(result) == len(expected) and all(map(alike, result, expected))
