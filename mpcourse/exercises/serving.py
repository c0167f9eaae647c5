"""Exercises of page `serving`: attention over a cache, shared heads, two groups in flight."""

import inspect
from collections import Counter

import torch
from torch.nn.functional import scaled_dot_product_attention

from mpcourse.exercises.a_transformer import (
    ROUNDED,
    my_attend,
    same_weights,
    tensor_of,
)
from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    expected_and_got,
    refuse_borrowed,
)
from mpcourse.transformer import attention_weights

SCALED = "Divide the scores by the square root of `columns`, the numbers of a key."
UNSCALED = [
    " / query.shape[-1] ** 0.5 => ",
    "query.shape[-1] ** => (query.shape[1] * query.shape[-1]) **",
    " ** 0.5 => ",
    "/ query => * query",
]

# 1. Attention over a cache


def my_cached_attend(query, key, value, old_key, old_value):
    """Put the old ones in front; then the new tokens are the last rows of the whole table.

    In the whole table the mask starts one diagonal above the main one, `triu(1)`. Of its rows only
    the last are left, so the same diagonal starts as many places further right as there are old
    tokens. Queries of old tokens are not needed: their tokens have collected already.
    """
    key, value = torch.cat([old_key, key], dim=-2), torch.cat([old_value, value], dim=-2)
    rows, columns = query.shape[-2], key.shape[-2]
    ahead = query.new_ones(rows, columns, dtype=torch.bool).triu(1 + columns - rows)
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.masked_fill(ahead, float("-inf")).softmax(dim=-1) @ value, key, value


A_ROW = "What is collected comes first: a row for each new token, as many numbers as a value has."


def over_a_cache(attempt, old, new, texts, heads):
    """What comes out for the last `new` of `old + new` tokens."""
    chance = torch.Generator().manual_seed(old)
    shape = texts, heads, old + new, heads + 1
    whole = 2 * torch.randn(3, *shape, generator=chance, dtype=torch.double)
    given = *whole[..., old:, :], *whole[1:, ..., :old, :]
    result = attempt(*given)
    expected = scaled_dot_product_attention(*whole, is_causal=True)[..., old:, :], *whole[1:]
    if not isinstance(result, tuple | list) or [*map(torch.is_tensor, result)] != [True] * 3:
        raise NotYet("Three tensors are asked: what is collected, all keys, all values.")
    if result[0].shape != given[0].shape:
        raise NotYet(f"{A_ROW} Yours is {tuple(result[0].shape)}, not {tuple(given[0].shape)}.")
    if same_three(result, expected):
        refuse_borrowed(attempt, {"attention_weights"}, "write the mask for rows that come last.")
        if not torch.allclose(tensor_of(result[0]), expected[0], 1e-9, 1e-9):
            raise NotYet(ROUNDED)
    return [*map(tensor_of, result)]


def same_three(result, expected):
    three = isinstance(result, tuple | list) and len(result) == 3
    return three and all(map(same_weights, result, expected))


def one_that_differs(result, expected):
    """The first of the three that is wrong, beside what it should be; keys and values first."""
    for number, name in ((1, "keys"), (2, "values"), (0, "collected")):
        if not same_weights(result[number], expected[number]):
            lines = expected_and_got(result[number], expected[number])
            return [f"{name}: {line}" for line in lines]


def one_token_at_a_time(query, key, value, old_key, old_value):
    found = []
    for place in range(query.shape[-2]):
        old_key = torch.cat([old_key, key[..., place : place + 1, :]], -2)
        old_value = torch.cat([old_value, value[..., place : place + 1, :]], -2)
        one = query[..., place : place + 1, :]
        found.append(scaled_dot_product_attention(one, old_key, old_value))
    return [torch.cat(found, -2), old_key, old_value]


def queries_in_front(query, key, value, old_key, old_value):
    """The whole table, with any queries for the old tokens; its last rows are the right ones."""
    key, value = torch.cat([old_key, key], -2), torch.cat([old_value, value], -2)
    whole = my_attend(torch.cat([torch.zeros_like(old_key), query], -2), key, value)
    return whole[..., old_key.shape[-2] :, :], key, value


FROM_THE_FIRST = "The new tokens are the last rows of the table: here the first of them sees the "
FROM_THE_FIRST += "first column alone, as with `is_causal=True`. Start the mask further right."

check_cached_attend = Exercise(
    my_cached_attend,
    read_again='"What does a cache save?"',
    cases=[(2, 1, 1, 1), (0, 2, 1, 1), (2, 2, 1, 1), (1, 3, 1, 1), (3, 2, 2, 3)],
    given="old tokens: {}, new tokens: {}, texts: {}, heads: {}",
    play=over_a_cache,
    same=same_three,
    compared=one_that_differs,
    hint="Join old and new along the tokens, dimension -2; mask; softmax; sum the values.",
    errors={
        "size|shape|dimension": "Tokens are dimension -2. There are as many rows as new tokens, "
        "and as many columns as tokens in all: `query.shape[-2]` and, once joined, `key.shape[-2]`."
    },
    wrong={
        FROM_THE_FIRST: [
            "triu(1 + columns - rows) => triu(1)",
            lambda q, k, v, old_k, old_v: (
                scaled_dot_product_attention(
                    q,
                    k := torch.cat([old_k, k], -2),
                    v := torch.cat([old_v, v], -2),
                    is_causal=True,
                ),
                k,
                v,
            ),
        ],
        "Right for one new token. For several, start the mask further right, by the old ones.": (
            "1 + columns - rows => 1 if rows > 1 else columns"
        ),
        A_ROW: [
            ("rows, columns = => query = torch.cat([old_key, query], -2); rows, columns ="),
            (
                "scores.masked_fill => key, value, scores.masked_fill",
                "@ value, key, value => @ value",
            ),
            "@ value, key, value => , key, value",
            "rows, columns = => query = query[..., -1:, :]; rows, columns =",
        ],
        "One softmax runs over old and new tokens together; two give each part a sum of 1.": (
            lambda q, k, v, old_k, old_v: (
                (q @ old_k.mT / q.shape[-1] ** 0.5).softmax(-1) @ old_v + my_attend(q, k, v),
                torch.cat([old_k, k], -2),
                torch.cat([old_v, v], -2),
            )
        ),
        "Of several new tokens, the first sees those behind it: they need a mask, too.": [
            "masked_fill(ahead, => masked_fill(ahead & False,",
            "1 + columns - rows => 1 + columns",
            "1 + columns - rows => 1 + columns * (columns > rows)",
        ],
        "A new token does not see itself: start the mask one diagonal further right.": (
            "1 + columns => columns"
        ),
        "Each new token sees the next one: start the mask one diagonal further left.": (
            "1 + columns => 2 + columns"
        ),
        "As many places further right as there are old tokens, not as new ones.": (
            "1 + columns - rows => 1 + rows"
        ),
        "With more old tokens, the mask starts further right: this one moves to the left.": [
            "columns - rows => rows - columns",
            "1 + columns - rows => rows - columns",
        ],
        "The wrong half is hidden: the old tokens are what a new one may see.": (
            "(ahead, => (~ahead,"
        ),
        "Old ones come first: `torch.cat([old, new])`, or the rows of the mask do not fit.": (
            "[old_key, key] => [key, old_key]",
            "[old_value, value] => [value, old_value]",
        ),
        "Keys in one order, values in another: a weight meets the value of another token.": [
            "[old_key, key] => [key, old_key]",
            "[old_value, value] => [value, old_value]",
        ],
        "Keys belong to keys, values to values: two are exchanged.": [
            "[old_key, key] => [old_value, key]",
            "[old_value, value] => [old_key, value]",
            "@ value, key, value => @ value, value, key",
        ],
        "The new tokens look at old ones alone: their own keys and values belong to it, too.": (
            lambda q, k, v, old_k, old_v: (
                (q @ old_k.mT / q.shape[-1] ** 0.5).softmax(-1) @ old_v,
                torch.cat([old_k, k], -2),
                torch.cat([old_v, v], -2),
            )
        ),
        "The old tokens are missing: the new ones saw themselves alone.": [
            lambda q, k, v, old_k, old_v: (my_attend(q, k, v), k, v),
            lambda q, k, v, old_k, old_v: (
                my_attend(q, k, v),
                torch.cat([old_k, k], -2),
                torch.cat([old_v, v], -2),
            ),
        ],
        "The next token will ask for all: return the joined keys and values, not the new alone.": (
            "@ value, key, value => @ value, key[..., -rows:, :], value[..., -rows:, :]"
        ),
        "The old ones come back without the new: return what you have joined.": (
            "@ value, key, value => @ value, old_key, old_value"
        ),
        SCALED: [
            *UNSCALED,
            "query.shape[-1] ** => query.shape[-2] **",
            "query.shape[-1] ** => columns **",
            "query.shape[-1] ** => 2 **",
        ],
        "The softmax is missing: the weights of a token sum to 1.": (
            'float("-inf")).softmax(dim=-1) => 0.0)'
        ),
        "Hidden after the softmax: a row no longer sums to 1.": (
            'masked_fill(ahead, float("-inf")).softmax(dim=-1) => softmax(-1).masked_fill(ahead, 0)'
        ),
        "A hidden score of 0, or a little less, is a score like others: only -inf hides.": [
            f'float("-inf") => {low}' for low in (0.0, -1.0, -10.0)
        ],
        "0 times inf is nan: let `masked_fill` put -inf where it belongs, and nowhere else.": (
            'scores.masked_fill(ahead, float("-inf")) => (scores - ahead * float("inf"))'
        ),
        "torch's `attn_mask` is true where a token is seen: hand over `~ahead`.": (
            "return scores => return scaled_dot_product_attention(query, key, value, ahead), "
            "key, value; scores"
        ),
        "The rows sum to 1, not the columns: take the softmax along -1.": (
            ".softmax(dim=-1) => .softmax(dim=-2)"
        ),
        "Tokens are dimension -2.": "old_key, key], dim=-2 => old_key, key], dim=-1",
        "Three tensors are asked": "@ value, key, value => @ value",
        "write the mask": lambda q, k, v, old_k, old_v: (
            attention_weights(q, k := torch.cat([old_k, k], -2)) @ (v := torch.cat([old_v, v], -2)),
            k,
            v,
        ),
    },
    also_right=[one_token_at_a_time, queries_in_front],
)

# 2. Heads that share


def my_grouped_attend(query, key, value):
    """Heads that share keys are rows of one table, as several new tokens would be.

    So a key is read once for all heads that share it, and nothing is copied. `reshape` keeps
    neighbours together: with 4 heads over 2, heads 0 and 1 are the rows of the first.
    """
    rows = query.reshape(len(query), key.shape[1], -1, query.shape[-1])
    scores = rows @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return (scores.softmax(dim=-1) @ value).reshape(query.shape)


A_ROW_A_HEAD = "What is collected has a row for each head that asks: (N, heads, 1, columns)."


def grouped(attempt, texts, heads, shared, tokens):
    chance = torch.Generator().manual_seed(heads)
    new, kept = (texts, heads, 1, 3), (2, texts, shared, tokens, 3)
    given = [2 * torch.randn(size, generator=chance, dtype=torch.double) for size in (new, kept)]
    given = given[0], *given[1]
    result = tensor_of(attempt(*given))
    expected = scaled_dot_product_attention(*given, enable_gqa=True)
    if result.shape != expected.shape:
        got = f"Yours is {tuple(result.shape)}, not {tuple(expected.shape)}."
        raise NotYet(f"{A_ROW_A_HEAD} {got}")
    if same_weights(result, expected):
        code = getattr(inspect.unwrap(attempt), "__code__", None)
        if "enable_gqa" in str(getattr(code, "co_consts", "")):
            raise NotYet("The result is right, but `enable_gqa` did the work: share the heads.")
        if not torch.allclose(result, expected, 1e-9, 1e-9):
            raise NotYet(ROUNDED)
    return result


def repeated(query, key, value):
    times = query.shape[1] // key.shape[1]
    return scaled_dot_product_attention(
        query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    )


def head_by_head(query, key, value):
    times = query.shape[1] // key.shape[1]
    found = [
        scaled_dot_product_attention(query[:, i], key[:, i // times], value[:, i // times])
        for i in range(query.shape[1])
    ]
    return torch.stack(found, 1)


check_grouped_attend = Exercise(
    my_grouped_attend,
    read_again='"How many bytes is a cache?"',
    cases=[(1, 2, 1, 3), (1, 2, 2, 3), (1, 4, 2, 3), (2, 6, 2, 4), (3, 6, 3, 1)],
    given="requests: {}, heads: {}, heads of keys and values: {}, tokens: {}",
    play=grouped,
    same=same_weights,
    hint="Which head of keys belongs to query head i? `heads // shared` neighbours have the same.",
    errors={
        "size|shape|dimension|invalid": "Heads are dimension 1. Of the queries there are more: "
        "turn those that share into rows, or repeat keys and values along dimension 1."
    },
    wrong={
        "Neighbours share. `repeat` deals the heads out in turn: 0, 1, 0, 1, and not 0, 0, 1, 1.": (
            lambda q, k, v: scaled_dot_product_attention(
                q,
                k.repeat(1, q.shape[1] // k.shape[1], 1, 1),
                v.repeat(1, q.shape[1] // k.shape[1], 1, 1),
            )
        ),
        "Right numbers in the wrong heads: the heads of one group come out side by side.": (
            "@ value).reshape => @ value).transpose(1, 2).reshape"
        ),
        "Keys are shared one way, values another: a weight meets the value of another head.": (
            lambda q, k, v: scaled_dot_product_attention(
                q,
                k.repeat_interleave(q.shape[1] // k.shape[1], 1),
                v.repeat(1, q.shape[1] // k.shape[1], 1, 1),
            )
        ),
        "All heads ask the first head of keys: each group has one of its own.": (
            lambda q, k, v: scaled_dot_product_attention(q, k[:, :1], v[:, :1])
        ),
        A_ROW_A_HEAD: [
            ".reshape(query.shape) => ",
            "rows = query => query = query.unflatten(1, (key.shape[1], -1)).mean(2); rows = query",
            ".reshape(query.shape) => .flatten(1, 2)",
        ],
        "Heads that share keys still ask each for itself: do not average their queries.": (
            lambda q, k, v: scaled_dot_product_attention(
                q.unflatten(1, (k.shape[1], -1)).mean(2), k, v
            ).repeat_interleave(q.shape[1] // k.shape[1], 1)
        ),
        "The value of token 0 alone: one new token sees all that is kept, so leave the mask out.": (
            lambda q, k, v: v[:, :, :1].repeat_interleave(q.shape[1] // k.shape[1], 1)
        ),
        SCALED: [
            *UNSCALED,
            "query.shape[-1] ** => key.shape[-2] **",
            "query.shape[-1] ** => query.shape[1] **",
        ],
        "The softmax is missing: the weights of a head sum to 1.": ".softmax(dim=-1) => ",
        "The softmax runs over the tokens, along -1.": [
            "softmax(dim=-1) => softmax(dim=-2)",
            "softmax(dim=-1) => softmax(dim=1)",
        ],
        "share the heads": lambda q, k, v: scaled_dot_product_attention(q, k, v, enable_gqa=True),
    },
    also_right=[
        repeated,
        head_by_head,
        "rows = query => key, value = key.clone(), value.clone(); rows = query",
    ],
)

# 3. Two groups in flight


def my_alternate(devices, first, second, starts, count):
    """Hand over all groups; then, whenever a group has a new token, hand that back at once.

    While you wait for one group at device 1, device 0 has another in its queue. With two groups,
    neither device waits after the first token; the last token of a group is not handed back.
    """
    hidden = [devices[0].submit(first, group, tokens) for group, tokens in enumerate(starts)]
    written = [[] for _ in starts]
    for step in range(count):
        for group in range(len(starts)):
            new = devices[1].submit(second, group, hidden[group].result()).result()
            written[group].append(new)
            if step < count - 1:
                hidden[group] = devices[0].submit(first, group, new)
    return written


class World:
    """Two devices on a clock that no other program disturbs: each part takes one unit."""

    def __init__(self) -> None:
        self.now, self.here, self.end, self.jobs, self.seen = 0, None, 0, Counter(), Counter()
        self.devices = [Place(self, 0), Place(self, 1)]

    def part(self, name, factor):
        """What a device runs of the model: a unit of time, and numbers that tell the order."""

        def run(group, value):
            if not torch.is_tensor(value):
                raise TypeError(f"{name} takes a tensor; got a {type(value).__name__}")
            where = "by the caller" if self.here is None else f"on device {self.here}"
            self.jobs[f"{name} {where}"] += 1
            self.seen[name, group] += 1
            self.now += 1
            self.end = max(self.end, self.now)
            return (value * factor + 7 * group + self.seen[name, group]) % 97

        return run


class Place:
    """As a device of the page: it runs what it is handed in order, on the clock of its world."""

    def __init__(self, world, index) -> None:
        self.world, self.index, self.free = world, index, 0

    def submit(self, fn, /, *args, **kwargs):
        """Run it when the device is free; the caller's clock does not move."""
        world = self.world
        caller = world.now, world.here
        world.now, world.here = max(self.free, world.now), self.index
        try:
            value = fn(*args, **kwargs)
        finally:
            self.free, (world.now, world.here) = world.now, caller
        return Result(world, value, self.free)

    def run(self, fn, /, *args, **kwargs):
        """Submit, then wait."""
        return self.submit(fn, *args, **kwargs).result()


class Result:
    """What a device will have computed: whoever asks for it waits."""

    def __init__(self, world, value, when) -> None:
        self._kept = world, value, when

    def result(self, timeout=None):
        """Wait for the end; the caller's clock moves there."""
        world, value, when = self._kept
        world.now = max(world.now, when)
        return value


def in_flight(attempt, groups, count, requests):
    """The tokens of each group, who ran what how often, and when the last part ended."""
    world = World()
    starts = [torch.arange(requests)[:, None] + 10 * group for group in range(groups)]
    written = attempt(world.devices, world.part("first", 5), world.part("second", 3), starts, count)
    if written is None:
        return None
    if isinstance(written, torch.Tensor | list | tuple) and len(written) != groups:
        raise NotYet(
            f"{groups} groups, so a list with {groups} lists is asked; yours has {len(written)}."
        )
    try:
        tokens = [rows_of(group) for group in written]
    except (TypeError, ValueError, RuntimeError, AttributeError):
        raise NotYet(
            "For each group a list of its new tokens is asked, tensors as `second` gives them, "
            "after `.result()`."
        ) from None
    return [tokens, dict(world.jobs), world.end]


def rows_of(group):
    """The tokens of a group as a list for each request; no tokens yet are an empty list."""
    if isinstance(group, list | tuple) and not group:
        return []
    columns = group if torch.is_tensor(group) else torch.cat([*map(torch.as_tensor, group)], dim=1)
    return columns.reshape(columns.shape[0], -1).tolist()


def tokens_jobs_length(result, expected):
    names = ("tokens of each group", "who ran what, how often", "units until the last part ends")
    for name, ours, theirs in zip(names, result or [None], expected, strict=False):
        if ours != theirs:
            return [f"{name}: {line}" for line in expected_and_got(ours, theirs)]
    return expected_and_got(result, expected)


def wait_each(devices, first, second, starts, count):
    written = [[] for _ in starts]
    new = list(starts)
    for _ in range(count):
        for group in range(len(starts)):
            hidden = devices[0].run(first, group, new[group])
            new[group] = devices[1].run(second, group, hidden)
            written[group].append(new[group])
    return written


def wait_each_round(devices, first, second, starts, count):
    written, new = [[] for _ in starts], list(starts)
    for _ in range(count):
        hidden = [devices[0].submit(first, group, each) for group, each in enumerate(new)]
        new = [devices[1].submit(second, group, h.result()) for group, h in enumerate(hidden)]
        new = [each.result() for each in new]
        for group, each in enumerate(new):
            written[group].append(each)
    return written


def called_here(devices, first, second, starts, count):
    written, new = [[] for _ in starts], list(starts)
    for _ in range(count):
        for group in range(len(starts)):
            new[group] = second(group, first(group, new[group]))
            written[group].append(new[group])
    return written


def jobs_that_wait(devices, first, second, starts, count):
    """Device 1 waits itself for what device 0 will have computed."""

    def then(group, coming):
        return second(group, coming.result())

    written, new = [[] for _ in starts], list(starts)
    coming = [devices[0].submit(first, group, each) for group, each in enumerate(new)]
    for step in range(count):
        for group in range(len(starts)):
            new[group] = devices[1].submit(then, group, coming[group]).result()
            written[group].append(new[group])
            if step + 1 < count:
                coming[group] = devices[0].submit(first, group, new[group])
    return tuple(written)


check_alternate = Exercise(
    my_alternate,
    read_again='"Who works when?"',
    cases=[(2, 1, 1), (2, 3, 1), (1, 3, 2), (3, 2, 2), (2, 5, 3)],
    given="groups: {}, count: {}, requests in a group: {}",
    play=in_flight,
    compared=tokens_jobs_length,
    hint="Go round the groups: each hands its newest tokens back before you wait for the next.",
    errors={
        "got a Result": "`submit` gives a Result back at once; what the next part needs is "
        "its `.result()`.",
        "attribute 'wait'": "Ask each Result itself: `.result()` waits.",
        "index|unpack": "There may be one group, or three: loop over `range(len(starts))`.",
        "takes \\d|missing|positional|callable": (
            "It is `devices[0].submit(first, group, tokens)`: the function, then what it takes."
        ),
    },
    wrong={
        "While one group is on its way, one device waits: hand over another before you wait.": [
            wait_each,
            lambda devices, first, second, starts, count: [
                wait_each(
                    devices,
                    lambda _, tokens, group=group: first(group, tokens),
                    lambda _, hidden, group=group: second(group, hidden),
                    [tokens],
                    count,
                )[0]
                for group, tokens in enumerate(starts)
            ],
        ],
        "All groups wait for the last one of each round: hand a new token back as it comes.": (
            wait_each_round
        ),
        "The caller did the work itself: `submit` hands it to a device.": called_here,
        "After the last token nobody needs another `first`: it would fill the cache further.": (
            "if step < count - 1: => if True:"
        ),
        "`first` belongs to device 0, `second` to device 1: each has the weights of its part.": [
            "devices[1] => devices[0]",
            "devices[0] => devices[1]",
            ("devices[0] => devices[2]", "devices[1] => devices[0]", "devices[2] => devices[1]"),
        ],
        "Each group has a cache of its own: both parts need the group's number.": [
            "second, group, => second, 0,",
            "(first, group, => (first, 0,",
            ("second, group, => second, 0,", "(first, group, => (first, 0,"),
        ],
        "The new token goes in next, not the start again.": (
            "first, group, new => first, group, starts[group]"
        ),
        "`count` new tokens are asked: yours are fewer.": (
            "range(count) => range(count - 1)",
            "count - 1: => count - 2:",
        ),
        "`count` new tokens are asked: yours are more.": (
            "range(count) => range(count + 1)",
            "count - 1: => count:",
        ),
        "The start is known: only what is new is asked.": (
            "[[] for _ in starts] => [[each] for each in starts]"
        ),
        "All new tokens of a group are asked, not the last alone.": (
            "written[group].append(new) => written[group] = [new]"
        ),
        "The hidden rows of device 0 are no tokens: keep what `second` gives.": (
            "append(new) => append(hidden[group].result())"
        ),
        "so a list with": (
            "return written => return [each for group in written for each in group] + [0]"
        ),
        "after `.result()`": ("return written => return [[hidden[g]] for g in range(len(starts))]"),
    },
    also_right=[
        jobs_that_wait,
        "return written => return [torch.cat(each, dim=1) for each in written]",
    ],
)
