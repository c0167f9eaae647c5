"""`scatter`, `gather` and `scatter_kwargs`: the chunks that torch cuts, and back again."""

import math
import re
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import NamedTuple

import pytest
import torch
from holders import HOLDERS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from verbs import ALL_GPUS, assert_same, indices

from mpcourse.data_parallel.scatter_gather import gather, scatter, scatter_kwargs

Plain = namedtuple("Plain", ["rows", "label"])


class Typed(NamedTuple):
    rows: torch.Tensor
    label: object = None


class Twice(Plain):
    """A named tuple that is not made the way its fields are listed."""

    def __new__(cls, rows):
        return super().__new__(cls, rows, rows)


class Boxes(list):
    """A list that cannot be made out of its entries alone."""

    def __init__(self, entries, image_size):
        super().__init__(entries)
        self.image_size = image_size


class ModelOutput(OrderedDict):
    """A dict as in the transformers library: keys are attributes too, `update` is closed."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def update(self, *_, **__):
        raise RuntimeError("You cannot use update on a ModelOutput")


def cores(count):
    return ["cpu"] * count


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("count", range(1, 6))
def test_chunks_are_those_of_torch_chunk(count, dim):
    for rows in range(1, 10):
        batch = torch.arange(rows * rows).reshape(rows, rows)
        assert_same(scatter(batch, cores(count), dim), list(batch.chunk(count, dim)))


NESTS = {  # name -> what is made around one tensor
    "tensor": lambda t: t,
    "tuple": lambda t: (t, "a"),
    "tuple of one": lambda t: (t,),
    "list": lambda t: [t, None, 2.5],
    "dict": lambda t: {"rows": t, "label": "a", 3: True},
    "ordered dict": lambda t: OrderedDict(z=t, a=t + 1),
    "named tuple": lambda t: Plain(t, "a"),
    "typed named tuple": lambda t: Typed(t),
    "string beside it": lambda t: (t, "several letters"),
    "empty tuple, list and dict beside it": lambda t: (t, (), [], {}),
    "nest without a tensor beside it": lambda t: [t, ("a", [1, {"b": None}])],
    "deep": lambda t: {"a": [t, (t * 2, {"b": Plain(t + 1, [t])})], "c": None},
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_nest_is_taken_apart_and_put_together_around_each_chunk(nest):
    batch = torch.arange(5.0)
    assert_same(scatter(nest(batch), cores(2)), [nest(batch[:3]), nest(batch[3:])])


SUBCLASSES = {  # types that torch's scatter does not keep, or cannot make
    "default dict": lambda t: defaultdict(list, rows=t),
    "tuple of torch.max": lambda t: torch.max(t[:, None], 1),
    "named tuple with its own __new__": lambda t: Twice(t),
    "list with its own __init__": lambda t: Boxes([t], image_size=(4, 4)),
    "dict without update": lambda t: ModelOutput(logits=t),
}


@pytest.mark.parametrize("nest", SUBCLASSES.values(), ids=SUBCLASSES)
def test_types_of_tuples_lists_and_dicts_are_kept(nest):
    batch = torch.arange(5.0)
    chunks = scatter(nest(batch), cores(2))
    assert_same(chunks, [nest(batch[:3]), nest(batch[3:])])
    assert_same(gather(chunks, "cpu"), nest(batch))


def test_what_a_dict_or_list_has_besides_its_fields_is_kept():
    counted, boxes, output, size = scatter(
        (
            defaultdict(list, rows=torch.ones(2)),
            Boxes([torch.ones(2)], (4, 4)),
            ModelOutput(a=torch.ones(2)),
            torch.Size([2, 3]),
        ),
        cores(2),
    )[1]
    assert counted["new"] == []
    assert boxes.image_size == (4, 4)
    assert output.a is output["a"]
    assert_same(size, torch.Size([2, 3]))


@pytest.mark.parametrize(
    "value",
    ["text", None, 3, 2.5, (), [], {}, (1, "a"), [None], {"a": (1,)}, torch.Size([2]), Plain(1, 2)],
    ids=repr,
)
def test_what_has_no_tensor_goes_to_every_device(value):
    assert_same(scatter(value, cores(3)), [value, value, value])


def test_module_and_function_are_handed_on_whole():
    module, function = nn.Linear(2, 2), len
    for _, theirs, (nested, also) in scatter((torch.ones(4), module, [module, function]), cores(4)):
        assert theirs is module
        assert nested is module
        assert also is function
    assert scatter(module, cores(2)) == [module, module]


@pytest.mark.parametrize("beside", [None, torch.ones(2)], ids=["no tensor", "tensor"])
def test_each_device_may_change_its_own_lists_and_dicts(beside):
    settings = [{"scale": 2.0, "steps": [1]}]
    first, second = scatter((settings, beside), cores(2))
    del first[0][0]["scale"]
    first[0][0]["steps"].append(2)
    assert second[0] == settings == [{"scale": 2.0, "steps": [1]}]


def test_chunks_on_the_cpu_are_views():
    batch = torch.zeros(5, 2)
    chunks = scatter({"rows": batch}, cores(2))
    batch[4] = 7
    assert chunks[1]["rows"].tolist() == [[0, 0], [7, 7]]
    assert chunks[0]["rows"].data_ptr() == batch.data_ptr()


def tensors(dim, rows):
    """Tensors of 1 to 4 dimensions with `rows` entries in `dim`; other sizes may be 0."""

    def make(shape, dtype):
        shape[dim] = rows
        return torch.arange(math.prod(shape)).reshape(shape).to(dtype)

    smallest = dim + 1 if dim >= 0 else -dim
    shapes = st.lists(st.integers(0, 3), min_size=smallest, max_size=4)
    dtypes = st.sampled_from([torch.float64, torch.int64, torch.bool, torch.complex128])
    return st.builds(make, shapes, dtypes)


@st.composite
def scatterings(draw):
    """A nest of tensors (and `None`) of one batch size, a number of devices, a dimension."""
    dim, rows, count = draw(st.integers(-3, 2)), draw(st.integers(1, 12)), draw(st.integers(1, 6))
    nests = st.recursive(
        tensors(dim, rows) | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
            | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict)
            | st.builds(Plain, inner, inner)
            | st.builds(Typed, inner, st.none())
        ),
        max_leaves=6,
    )
    return draw(nests), count, dim


@settings(deadline=None, derandomize=True)
@given(scatterings())
def test_gather_undoes_scatter(scattering):
    nest, count, dim = scattering
    chunks = scatter(nest, cores(count), dim)
    assert 1 <= len(chunks) <= count
    assert_same(gather(chunks, "cpu", dim), nest)


@settings(deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 9),
    others=st.integers(1, 3),
    count=st.integers(1, 5),
    dim=st.integers(-2, 1),
)
def test_gradient_through_scatter_and_gather_is_the_identity(rows, others, count, dim):
    shape = (rows, others) if dim in (0, -2) else (others, rows)
    batch = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(shape, dtype=torch.float64)
    (gather(scatter(batch, cores(count), dim), "cpu", dim) * weights).sum().backward()
    torch.testing.assert_close(batch.grad, weights, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("inputs", "dim", "message"),
    [
        (torch.tensor(2.5), 0, "a tensor of 0 dimensions has no rows to scatter (got 2.5)"),
        (torch.ones(0, 3), 0, "empty: a tensor of shape (0, 3) has size 0 in dimension 0"),
        (torch.ones(3, 0), -1, "empty: a tensor of shape (3, 0) has size 0 in dimension -1"),
        (torch.ones(2, 3), 2, "dim=2 is not in -2 to 1, the dimensions of a tensor of shape"),
        (torch.ones(2, 3), -3, "dim=-3 is not in -2 to 1, the dimensions of a tensor of shape"),
        ((torch.ones(6), {"mask": torch.ones(2)}), 0, "have the sizes 2 and 6 in dimension 0"),
        ((torch.ones(8), torch.ones(7)), 0, "have the sizes 7 and 8 in dimension 0"),
    ],
    ids=["0 dimensions", "no rows", "no columns", "dim 2", "dim -3", "fewer chunks", "as many"],
)
def test_scatter_refuses(inputs, dim, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        scatter(inputs, cores(4), dim)


@pytest.mark.parametrize("make", [*HOLDERS.values(), lambda rows: deque([rows])])
def test_what_every_device_would_get_whole_is_refused(make):
    for inputs in (make(torch.ones(4, 1)), [torch.ones(4), {"more": make(torch.ones(4, 1))}]):
        with pytest.raises(TypeError, match=r"a \w+ is not taken apart: (pass its|pad it)"):
            scatter(inputs, cores(2))
    with pytest.raises(TypeError, match="gather joins tensors"):
        gather([make(torch.ones(4, 1))] * 2, "cpu")


def test_devices_that_do_not_exist_are_refused():
    for call in (scatter, lambda batch, devices: scatter_kwargs((batch,), {}, devices)):
        with pytest.raises(ValueError, match="this machine has no device 'cuda:99'; it has"):
            call(torch.ones(4), ["cuda:99"])


THREE, TWO, FOUR = torch.arange(3), torch.arange(2), torch.arange(4)
CALLS = {  # inputs, kwargs, how many devices, and their parts
    "cut together": (
        ((THREE, "a"), {"y": THREE + 3}, 2),
        (((THREE[:2], "a"), (THREE[2:], "a")), ({"y": THREE[:2] + 3}, {"y": THREE[2:] + 3})),
    ),
    "inputs alone": (((THREE,), {}, 2), (((THREE[:2],), (THREE[2:],)), ({}, {}))),
    "no kwargs": (((THREE,), None, 2), (((THREE[:2],), (THREE[2:],)), ({}, {}))),
    "kwargs alone": (((), {"x": THREE}, 2), (((), ()), ({"x": THREE[:2]}, {"x": THREE[2:]}))),
    "one device": (((FOUR,), {"y": TWO}, 1), (((FOUR,),), ({"y": TWO},))),
    "no arguments": (((), {}, 2), ((), ())),
    "no tensor": (((1, "a"), {"b": None}, 2), (((1, "a"),) * 2, ({"b": None},) * 2)),
    "no tensor among the kwargs": (
        ((TWO,), {"mask": None}, 4),
        (((TWO[:1],), (TWO[1:],)), ({"mask": None},) * 2),
    ),
    "no tensor among the inputs": (
        ((2.5,), {"x": TWO}, 4),
        (((2.5,),) * 2, ({"x": TWO[:1]}, {"x": TWO[1:]})),
    ),
}


@pytest.mark.parametrize(("call", "parts"), CALLS.values(), ids=CALLS)
def test_arguments_of_one_call_fall_into_as_many_parts_each(call, parts):
    inputs, kwargs, count = call
    assert_same(scatter_kwargs(inputs, kwargs, cores(count)), parts)


def test_each_call_has_its_own_kwargs():
    _, kwargs = scatter_kwargs((torch.ones(3), {}), {"options": {"a": 1}}, cores(3))
    kwargs[0]["options"]["a"] = 2
    assert kwargs[1:] == ({"options": {"a": 1}}, {"options": {"a": 1}})


@pytest.mark.parametrize(("inputs", "named"), [(4, 2), (2, 4), (8, 7)])
def test_arguments_of_different_sizes_are_refused(inputs, named):
    with pytest.raises(ValueError, match="what is cut must belong together"):
        scatter_kwargs((torch.ones(inputs),), {"y": torch.ones(named)}, cores(4))


@pytest.mark.parametrize("dim", [0, -1])
def test_scalars_become_a_vector(dim):
    joined = gather([torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)], "cpu", dim)
    assert joined.tolist() == [1, 2, 3]
    assert gather([torch.tensor(5)], "cpu", dim).tolist() == [5]


def test_keys_may_come_in_another_order():
    joined = gather([{"a": torch.ones(1), "b": None}, {"b": None, "a": torch.zeros(1)}], "cpu")
    assert_same(joined, {"a": torch.tensor([1.0, 0.0]), "b": None})


def test_parameters_and_tensors_are_the_same_kind():
    assert gather([nn.Parameter(torch.ones(1)), torch.zeros(1)], "cpu").tolist() == [1, 0]


def test_gradient_flows_back_to_each_scalar():
    scalars = [torch.zeros((), requires_grad=True) for _ in range(3)]
    (gather(scalars, "cpu") * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert [scalar.grad.item() for scalar in scalars] == [1, 2, 3]


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("outputs", "dim", "message"),
    [
        ([], 0, "outputs is empty; gather needs the output of at least one replica"),
        ([{"a": None}, {"b": None}], 0, "outputs[1] has the fields ['b'], outputs[0] has ['a']"),
        ([[{"a": 1}], [{"a": 1, 3: 1}]], 0, "outputs[1][0] has the fields ['3', 'a'], outputs[0]"),
        ([(None, None), (None,)], 0, "outputs[1] has the fields ['0'], outputs[0] has ['0', '1']"),
        ([{"a": (ONES,)}, {"a": [ONES]}], 0, "outputs[1]['a'] is list, outputs[0]['a'] is tuple"),
        ([ONES, None], 0, "outputs[1] is NoneType, outputs[0] is Tensor; replicas must agree"),
        (
            [{"a": torch.ones(2, 3)}, {"a": torch.ones(2, 4)}],
            0,
            "cannot join outputs[i]['a'] along dim=0: shapes (2, 3), (2, 4)",
        ),
        ([ONES, ONES[0]], 0, "cannot join outputs[i] along dim=0: shapes (2,), ()"),
        ([ONES, ONES], 1, "cannot join outputs[i] along dim=1: shapes (2,), (2,)"),
        ([ONES[0]] * 2, 1, "cannot join outputs[i] along dim=1: shapes (), ()"),
    ],
)
def test_gather_refuses(outputs, dim, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gather(outputs, "cpu", dim)


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (3, "outputs[0] is 3 (int)"),
        ({"loss": (ONES, [2.5])}, "outputs[0]['loss'][1][0] is 2.5 (float)"),
        (Plain(ONES, "a"), "outputs[0][1] is 'a' (str)"),
        (torch.Size([2]), "outputs[0][0] is 2 (int)"),
    ],
)
def test_what_is_no_tensor_cannot_be_gathered_and_its_field_is_named(output, found):
    with pytest.raises(TypeError, match=re.escape(f"gather joins tensors; {found}")):
        gather([output, output], "cpu")


# With GPUs: torch's own functions give the same. The twins of these tests are those above.


@pytest.mark.parametrize("home", ["cpu", "cuda:0"])
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("devices", ALL_GPUS)
def test_scatter_gives_what_torch_gives_on_gpus(devices, nest, home):
    for rows in range(1, 10):
        batch = torch.arange(float(rows), device=home)
        theirs = nn.parallel.scatter(nest(batch), indices(devices))
        assert_same(scatter(nest(batch), devices), list(theirs))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("devices", ALL_GPUS)
def test_gather_gives_what_torch_gives_on_gpus(devices, dim):
    outputs = [
        {"rows": torch.full((2, 2), float(i), device=device), "more": (Plain(None, None), [])}
        for i, device in enumerate(devices)
    ]
    for target in ("cuda:0", "cpu"):
        theirs = nn.parallel.gather(outputs, target, dim)
        assert_same(gather(outputs, target, dim), theirs)


@pytest.mark.parametrize("devices", ALL_GPUS)
def test_scatter_kwargs_gives_what_torch_gives_on_gpus(devices):
    batch = torch.arange(4.0, device="cuda:0")
    for inputs, kwargs in [
        ((batch, "a"), {"y": batch + 1, "z": None}),
        ((batch,), {}),
        ((), {"y": batch}),
        ((), {}),
        ((1,), {"z": "b"}),
    ]:
        theirs = nn.parallel.scatter_gather.scatter_kwargs(inputs, kwargs, indices(devices))
        assert_same(scatter_kwargs(inputs, kwargs, devices), theirs)


@pytest.mark.parametrize("devices", ALL_GPUS)
def test_gradient_through_both_is_torchs_on_gpus(devices):
    weights = torch.arange(10.0, device="cuda:0").reshape(5, 2)
    gradients = []
    for cut, join, places in [
        (scatter, gather, devices),
        (nn.parallel.scatter, nn.parallel.gather, indices(devices)),
    ]:
        batch = torch.zeros(5, 2, device="cuda:0", requires_grad=True)
        (join(cut(batch, places), "cuda:0") * weights).sum().backward()
        gradients.append(batch.grad)
    assert_same(*gradients)
