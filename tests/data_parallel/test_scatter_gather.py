"""`scatter`, `gather` and `scatter_kwargs`: the chunks that torch cuts, and back again."""

import math
from collections import OrderedDict, defaultdict, namedtuple
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode

from mpcourse.data_parallel.scatter_gather import gather, scatter, scatter_kwargs
from mpcourse.devices.devices import get_devices

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


class BlockingCopies(TorchFunctionMode):
    """Notes for each `tensor.to(device)` whether it may return before the data has arrived."""

    def __init__(self):
        super().__init__()
        self.non_blocking = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to:
            self.non_blocking.append((kwargs or {}).get("non_blocking", False))
        return function(*args, **(kwargs or {}))


def cores(count):
    return ["cpu"] * count


def assert_same(actual, expected):
    """Same types all the way down, same keys in the same order, equal tensors and values."""
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        assert_same(list(actual.values()), list(expected.values()))
    elif isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


# scatter: literal tables

CHUNK_SIZES = {  # rows -> the chunks on 1, 2, 3, 4 and 5 devices
    1: ([1], [1], [1], [1], [1]),
    2: ([2], [1, 1], [1, 1], [1, 1], [1, 1]),
    3: ([3], [2, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]),
    4: ([4], [2, 2], [2, 2], [1, 1, 1, 1], [1, 1, 1, 1]),
    5: ([5], [3, 2], [2, 2, 1], [2, 2, 1], [1, 1, 1, 1, 1]),
    6: ([6], [3, 3], [2, 2, 2], [2, 2, 2], [2, 2, 2]),
    7: ([7], [4, 3], [3, 3, 1], [2, 2, 2, 1], [2, 2, 2, 1]),
    8: ([8], [4, 4], [3, 3, 2], [2, 2, 2, 2], [2, 2, 2, 2]),
    9: ([9], [5, 4], [3, 3, 3], [3, 3, 3], [2, 2, 2, 2, 1]),
}


@pytest.mark.parametrize("rows", CHUNK_SIZES)
def test_chunk_sizes_are_those_of_the_table(rows):
    for count, sizes in enumerate(CHUNK_SIZES[rows], start=1):
        assert [len(chunk) for chunk in scatter(torch.zeros(rows, 2), cores(count))] == sizes


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("count", range(1, 6))
def test_chunks_are_those_of_torch_chunk(count, dim):
    for rows in range(1, 10):
        batch = torch.arange(rows * rows).reshape(rows, rows)
        assert_same(scatter(batch, cores(count), dim), list(batch.chunk(count, dim)))


def test_seven_rows_on_three_devices_are_three_three_and_one():
    chunks = scatter(torch.arange(7), cores(3))
    assert [chunk.tolist() for chunk in chunks] == [[0, 1, 2], [3, 4, 5], [6]]


def test_five_rows_on_four_devices_are_three_chunks():
    chunks = scatter(torch.arange(5), cores(4))
    assert [chunk.tolist() for chunk in chunks] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("dim", [1, -1])
def test_dim_says_which_dimension_is_cut(dim):
    left, right = scatter(torch.tensor([[0, 1, 2], [3, 4, 5]]), cores(2), dim)
    assert (left.tolist(), right.tolist()) == ([[0, 1], [3, 4]], [[2], [5]])


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


def test_size_stays_a_size():
    size = torch.Size([2, 3])
    assert_same(scatter((torch.zeros(2), size), cores(2))[1], (torch.zeros(1), size))


def test_what_a_dict_or_list_has_besides_its_fields_is_kept():
    counted, boxes, output = scatter(
        (
            defaultdict(list, rows=torch.ones(2)),
            Boxes([torch.ones(2)], (4, 4)),
            ModelOutput(a=torch.ones(2)),
        ),
        cores(2),
    )[1]
    assert counted["new"] == []
    assert boxes.image_size == (4, 4)
    assert output.a is output["a"]


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


def test_devices_may_be_named_in_every_way():
    batch = torch.arange(4)
    for devices in (["cpu", "cpu"], [torch.device("cpu")] * 2, ["cpu:1", "cpu:0"]):
        assert_same(scatter(batch, devices), [batch[:2], batch[2:]])
    for chunk, device in zip(scatter(batch, get_devices(2)), get_devices(2), strict=True):
        assert chunk.device == device.device


# scatter: invariants


def test_chunks_on_the_cpu_are_views():
    batch = torch.zeros(5, 2)
    chunks = scatter({"rows": batch}, cores(2))
    batch[4] = 7
    assert chunks[1]["rows"].tolist() == [[0, 0], [7, 7]]
    assert chunks[0]["rows"].data_ptr() == batch.data_ptr()


def test_inputs_are_left_as_they_are():
    batch = torch.arange(5)
    inputs = {"rows": batch, "more": [batch]}
    scatter(inputs, cores(2))
    assert inputs["rows"] is batch
    assert inputs["more"][0] is batch
    assert list(inputs) == ["rows", "more"]


def test_copies_to_the_cpu_block():
    with BlockingCopies() as copies:
        scatter(torch.ones(4), cores(2))
        gather([torch.ones(4), torch.ones(4)], "cpu")
    assert copies.non_blocking == [False] * 4


def test_gradient_of_each_chunk_lands_in_its_rows():
    batch = torch.zeros(5, requires_grad=True)
    chunks = scatter([batch], cores(3))
    sum(
        factor * chunk[0].sum() for factor, chunk in zip([1, 10, 100], chunks, strict=True)
    ).backward()
    assert batch.grad.tolist() == [1, 1, 10, 10, 100]


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


# scatter: failures


@pytest.mark.parametrize(
    ("inputs", "dim", "message"),
    [
        (
            torch.tensor(2.5),
            0,
            "a tensor of 0 dimensions has no rows to scatter (got 2.5); pass a plain number, "
            "which goes to every device, or give it a dimension",
        ),
        (
            torch.ones(0, 3),
            0,
            "the batch is empty: a tensor of shape (0, 3) has size 0 in dimension 0",
        ),
        (
            torch.ones(3, 0),
            -1,
            "the batch is empty: a tensor of shape (3, 0) has size 0 in dimension -1",
        ),
        (
            torch.ones(2, 3),
            2,
            "dim=2 is not in -2 to 1, the dimensions of a tensor of shape (2, 3)",
        ),
        (
            torch.ones(2, 3),
            -3,
            "dim=-3 is not in -2 to 1, the dimensions of a tensor of shape (2, 3)",
        ),
        (
            (torch.ones(6), {"mask": torch.ones(2)}),
            0,
            "the tensors fall into different numbers of chunks: [2, 3]; "
            "give them the same size in dimension 0",
        ),
    ],
    ids=["0 dimensions", "no rows", "no columns", "dim 2", "dim -3", "different numbers of chunks"],
)
def test_scatter_refuses(inputs, dim, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the whole message is compared)
        scatter(inputs, cores(4), dim)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("devices", "kind", "message"),
    [
        ([], ValueError, "devices is empty; name at least one"),
        (["cuda:99"], ValueError, "this machine has no device 'cuda:99'; it has"),
        (["meta"], ValueError, "this machine has no device 'meta'; it has"),
        (["gpu zero"], ValueError, "'gpu zero' is no device; use"),
        ([0], TypeError, "a device is a Device, a torch.device or a string; got 0"),
    ],
)
def test_devices_that_do_not_exist_are_refused(devices, kind, message):
    calls = [
        lambda: scatter(torch.ones(4), devices),
        lambda: scatter_kwargs((torch.ones(4),), {}, devices),
    ]
    if devices:
        calls.append(lambda: gather([torch.ones(4)], devices[0]))
    for call in calls:
        with pytest.raises(kind, match=message):
            call()


# scatter_kwargs


def test_inputs_and_kwargs_are_cut_together():
    inputs, kwargs = scatter_kwargs((torch.arange(3), "a"), {"y": torch.arange(3, 6)}, cores(2))
    assert_same(inputs, ((torch.tensor([0, 1]), "a"), (torch.tensor([2]), "a")))
    assert_same(kwargs, ({"y": torch.tensor([3, 4])}, {"y": torch.tensor([5])}))


@pytest.mark.parametrize("kwargs", [{}, None])
def test_inputs_alone_are_filled_up_with_empty_dicts(kwargs):
    parts = scatter_kwargs((torch.arange(3),), kwargs, cores(2))
    assert_same(parts, (((torch.tensor([0, 1]),), (torch.tensor([2]),)), ({}, {})))


def test_kwargs_alone_are_filled_up_with_empty_tuples():
    parts = scatter_kwargs((), {"x": torch.arange(3)}, cores(2))
    assert_same(parts, (((), ()), ({"x": torch.tensor([0, 1])}, {"x": torch.tensor([2])})))


def test_the_one_with_fewer_chunks_is_filled_up():
    four, two = torch.arange(4), torch.arange(2)
    inputs, kwargs = scatter_kwargs((four,), {"y": two}, cores(4))
    assert_same(inputs, tuple((four[i : i + 1],) for i in range(4)))
    assert_same(kwargs, ({"y": two[:1]}, {"y": two[1:]}, {}, {}))
    inputs, kwargs = scatter_kwargs((two,), {"y": four}, cores(4))
    assert_same(inputs, ((two[:1],), (two[1:],), (), ()))
    assert_same(kwargs, tuple({"y": four[i : i + 1]} for i in range(4)))


def test_no_arguments_make_no_parts():
    assert scatter_kwargs((), {}, cores(2)) == ((), ())
    assert scatter_kwargs((), None, cores(2)) == ((), ())


def test_arguments_without_any_tensor_go_to_every_device():
    assert scatter_kwargs((1, "a"), {"b": None}, cores(2)) == (((1, "a"),) * 2, ({"b": None},) * 2)
    assert scatter_kwargs((1,), {}, cores(3)) == (((1,),) * 3, ({},) * 3)
    assert scatter_kwargs((), {"b": 1}, cores(3)) == (((),) * 3, ({"b": 1},) * 3)


def test_arguments_without_a_tensor_make_as_many_parts_as_there_are_chunks():
    batch = torch.arange(2)
    inputs, kwargs = scatter_kwargs((batch,), {"mask": None}, cores(4))
    assert_same((inputs, kwargs), (((batch[:1],), (batch[1:],)), ({"mask": None},) * 2))
    inputs, kwargs = scatter_kwargs((2.5,), {"x": batch}, cores(4))
    assert_same((inputs, kwargs), (((2.5,),) * 2, ({"x": batch[:1]}, {"x": batch[1:]})))


def test_each_call_has_its_own_kwargs():
    _, kwargs = scatter_kwargs((torch.ones(3), {}), {"options": {"a": 1}}, cores(3))
    kwargs[0]["options"]["a"] = 2
    assert kwargs[1:] == ({"options": {"a": 1}}, {"options": {"a": 1}})
    _, filled = scatter_kwargs((torch.ones(3),), {"y": torch.ones(1)}, cores(3))
    filled[1]["new"] = 1
    assert filled[2] == {}


# gather


@pytest.mark.parametrize("dim", [0, -1])
def test_scalars_become_a_vector(dim):
    joined = gather([torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)], "cpu", dim)
    assert joined.tolist() == [1, 2, 3]
    assert gather([torch.tensor(5)], "cpu", dim).tolist() == [5]


def test_scalars_in_a_nest_become_vectors():
    outputs = [{"loss": torch.tensor(float(i)), "rows": torch.full((2, 1), i)} for i in range(2)]
    expected = {"loss": torch.tensor([0.0, 1.0]), "rows": torch.tensor([[0], [0], [1], [1]])}
    assert_same(gather(outputs, "cpu"), expected)


@pytest.mark.parametrize(
    ("dim", "expected"), [(0, [[1], [1], [2], [2]]), (1, [[1, 2], [1, 2]]), (-1, [[1, 2], [1, 2]])]
)
def test_tensors_are_joined_along_dim(dim, expected):
    ones = torch.ones(2, 1)
    assert gather([ones, 2 * ones], "cpu", dim).tolist() == expected


def test_none_stays_none():
    assert gather([None, None], "cpu") is None
    assert_same(gather([(None, torch.ones(1))] * 2, "cpu"), (None, torch.ones(2)))


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_nests_are_joined_field_by_field(nest):
    def only_tensors(value):  # what else is in the nests cannot be joined
        if isinstance(value, Plain | Typed):
            return value._replace(label=None) if isinstance(value.label, str) else value
        if isinstance(value, dict):
            kept = {k: only_tensors(v) for k, v in value.items() if not isinstance(v, str | bool)}
            return type(value)(kept)
        if isinstance(value, tuple | list):
            return type(value)(
                only_tensors(v) for v in value if not isinstance(v, str | int | float)
            )
        return value

    first, second = torch.arange(3.0), torch.arange(3.0, 5.0)
    joined = gather([only_tensors(nest(first)), only_tensors(nest(second))], "cpu")
    assert_same(joined, only_tensors(nest(torch.arange(5.0))))


def test_keys_may_come_in_another_order():
    joined = gather([{"a": torch.ones(1), "b": None}, {"b": None, "a": torch.zeros(1)}], "cpu")
    assert_same(joined, {"a": torch.tensor([1.0, 0.0]), "b": None})


def test_parameters_and_tensors_are_the_same_kind():
    assert gather([nn.Parameter(torch.ones(1)), torch.zeros(1)], "cpu").tolist() == [1, 0]


def test_single_output_is_a_copy():
    output = torch.ones(2)
    joined = gather([output], "cpu")
    output.zero_()
    assert joined.tolist() == [1, 1]


def test_gradient_flows_back_to_each_output():
    scalars = [torch.zeros((), requires_grad=True) for _ in range(3)]
    (gather(scalars, "cpu") * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert [scalar.grad.item() for scalar in scalars] == [1, 2, 3]
    rows = [torch.zeros(1, 2, requires_grad=True), torch.zeros(1, 1, requires_grad=True)]
    (
        gather([{"a": row} for row in rows], "cpu", 1)["a"] * torch.tensor([4.0, 5.0, 6.0])
    ).sum().backward()
    assert [row.grad.tolist() for row in rows] == [[[4, 5]], [[6]]]


@pytest.mark.parametrize(
    ("outputs", "dim", "message"),
    [
        ([], 0, "outputs is empty; gather needs the output of at least one replica"),
        (
            [{"a": None}, {"b": None}],
            0,
            "outputs[1] has the fields ['b'], outputs[0] has ['a']; replicas must agree",
        ),
        (
            [[{"a": None}], [{"a": None, 3: None}]],
            0,
            "outputs[1][0] has the fields ['3', 'a'], outputs[0][0] has ['a']; replicas must agree",
        ),
        (
            [(None, None), (None,)],
            0,
            "outputs[1] has the fields ['0'], outputs[0] has ['0', '1']; replicas must agree",
        ),
        (
            [{"a": (torch.ones(1),)}, {"a": [torch.ones(1)]}],
            0,
            "outputs[1]['a'] is list, outputs[0]['a'] is tuple; replicas must agree",
        ),
        (
            [torch.ones(1), None],
            0,
            "outputs[1] is NoneType, outputs[0] is Tensor; replicas must agree",
        ),
        (
            [None, torch.ones(1)],
            0,
            "outputs[1] is Tensor, outputs[0] is NoneType; replicas must agree",
        ),
        (
            [{"a": torch.ones(2, 3)}, {"a": torch.ones(2, 4)}],
            0,
            "cannot join outputs[i]['a'] along dim=0: shapes (2, 3), (2, 4)",
        ),
        (
            [torch.ones(2), torch.tensor(1.0)],
            0,
            "cannot join outputs[i] along dim=0: shapes (2,), ()",
        ),
        (
            [torch.ones(2), torch.ones(2)],
            1,
            "cannot join outputs[i] along dim=1: shapes (2,), (2,)",
        ),
        ([torch.tensor(1.0)] * 2, 1, "cannot join outputs[i] along dim=1: shapes (), ()"),
    ],
    ids=[
        "none at all",
        "other key",
        "more keys",
        "shorter",
        "other structure",
        "None last",
        "None first",
        "other shape",
        "scalar and vector",
        "no such dim",
        "scalars along dim 1",
    ],
)
def test_gather_refuses(outputs, dim, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the whole message is compared)
        gather(outputs, "cpu", dim)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (3, "gather joins tensors; outputs[0] is 3 (int)"),
        (
            {"loss": (torch.ones(1), [2.5])},
            "gather joins tensors; outputs[0]['loss'][1][0] is 2.5 (float)",
        ),
        (Plain(torch.ones(1), "a"), "gather joins tensors; outputs[0][1] is 'a' (str)"),
        (torch.Size([2]), "gather joins tensors; outputs[0][0] is 2 (int)"),
    ],
)
def test_what_is_no_tensor_cannot_be_gathered_and_its_field_is_named(output, message):
    with pytest.raises(TypeError) as error:
        gather([output, output], "cpu")
    assert str(error.value) == message


# With GPUs: torch's own functions give the same. The twins of these tests are those above.

GPUS = [
    pytest.param(["cuda:0"], marks=pytest.mark.gpu, id="one GPU"),
    pytest.param(["cuda:0"] * 3, marks=pytest.mark.gpu, id="three shares of a GPU"),
    pytest.param(["cuda:0", "cuda:1"], marks=pytest.mark.two_gpus, id="two GPUs"),
]


def indices(devices):
    return [torch.device(device).index for device in devices]


@pytest.mark.parametrize("home", ["cpu", "cuda:0"])
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("devices", GPUS)
def test_scatter_gives_what_torch_gives_on_gpus(devices, nest, home):
    for rows in range(1, 10):
        batch = torch.arange(float(rows), device=home)
        theirs = nn.parallel.scatter(nest(batch), indices(devices))
        assert_same(scatter(nest(batch), devices), list(theirs))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("devices", GPUS)
def test_gather_gives_what_torch_gives_on_gpus(devices, dim):
    outputs = [
        {"rows": torch.full((2, 2), float(i), device=device), "more": (Plain(None, None), [])}
        for i, device in enumerate(devices)
    ]
    for target in ("cuda:0", "cpu"):
        theirs = nn.parallel.gather(outputs, target, dim)
        assert_same(gather(outputs, target, dim), theirs)


@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0")
@pytest.mark.parametrize("devices", GPUS)
def test_gather_makes_the_vector_of_scalars_that_torch_makes_on_gpus(devices):
    outputs = [torch.tensor(float(i), device=device) for i, device in enumerate(devices)]
    assert_same(gather(outputs, "cuda:0"), nn.parallel.gather(outputs, "cuda:0"))


@pytest.mark.parametrize("devices", GPUS)
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


@pytest.mark.parametrize("devices", GPUS)
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
