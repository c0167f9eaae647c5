"""Exercises of page `choose_a_layout`: layer sums, waiting, held bytes, a search."""

import inspect
import math
from dataclasses import replace
from itertools import product
from math import prod

from mpcourse.exercises.exercise import Exercise, NotYet, borrowed, call_for_numbers, refuse, short
from mpcourse.transformer import BAND, Cluster, DecoderSizes, Layout, layouts, step_seconds

SMALL = DecoderSizes(width=64, layers=12, heads=16, vocabulary=500, context=32)
HOSTS = Cluster(inside=3e8, between=2e7, moved=7e8)  # 8 ranks in a host


def named(layout):
    """A layout in words."""
    words = f"{layout.tensor} tensor x {layout.data} data x {layout.pipeline} pipeline"
    words += f", {layout.chunks} chunks" * (layout.chunks > 1)
    return words + f", sharded={layout.sharded}" * (layout.sharded > 0)


def without(package, last, instead, play=call_for_numbers):
    """Plays an attempt; that it is not the package's function at work is asked in the last case."""

    def played(attempt, *case):
        outcome, name = play(attempt, *case), package.__name__
        if case == last:
            itself = inspect.unwrap(attempt) is package
            refuse([name] if itself else borrowed(attempt, {name}), instead)
        return outcome

    return played


# 1. The seconds of the layer sums


def my_layer_sums(sizes, batch, layout, cluster):
    """Two sums forward, two when the forward runs again, two backward: six for each block.

    Each is of all tokens of the rank, whole, with 2 bytes a number, and a ring of t ranks sends
    2 (t - 1) / t of it. With one rank that is nothing.
    """
    tokens, t = batch * sizes.context / layout.data, layout.tensor
    ring = 2 * (t - 1) / t * tokens * sizes.width * 2
    return 6 * sizes.layers / layout.pipeline * ring / layout.speed("tensor", cluster)


def as_if(factor=1.0, **others):
    """The solution, `factor` times, for other numbers of ranks."""
    return lambda sizes, batch, layout, cluster: (
        factor * my_layer_sums(sizes, batch, replace(layout, **others), cluster)
    )


def scaled(factor):
    """The solution times a function of sizes, batch, layout and cluster."""
    return lambda *given: my_layer_sums(*given) * factor(*given)


def over(speed):
    """The solution's bytes over another speed."""
    return scaled(lambda s, b, layout, c: layout.speed("tensor", c) / speed(layout, c))


def of_weights(sizes, batch, layout, cluster):
    own = sizes.parameters / layout.tensor / layout.pipeline
    sent = 2 * (layout.tensor - 1) / layout.tensor * own * 2
    return sent / layout.speed("tensor", cluster)


def sum_by_sum(sizes, batch, layout, cluster):
    part = batch // layout.data * sizes.context * sizes.width * 2 / layout.tensor
    sums = [2 * part * (layout.tensor - 1)] * 6 * (sizes.layers // layout.pipeline)
    return sum(sums) / layout.speed("tensor", cluster)


check_layer_sums = Exercise(
    my_layer_sums,
    read_again='"What do the layer sums take?"',
    cases=[
        (SMALL, 8, Layout(tensor=4), HOSTS),
        (SMALL, 8, Layout(tensor=2, data=8, pipeline=3), HOSTS),
        (SMALL, 4, Layout(tensor=16, data=2, pipeline=2), HOSTS),
        (SMALL, 8, Layout(tensor=2, pipeline=3, chunks=2), HOSTS),
        (replace(SMALL, heads=6), 4, Layout(tensor=3), HOSTS),
        (SMALL, 4, Layout(data=2), HOSTS),
    ],
    given=lambda sizes, batch, layout, cluster: f"{named(layout)}, {batch} samples",
    play=without(step_seconds, (SMALL, 4, Layout(data=2), HOSTS), "count the sums of a stage."),
    hint="Sums of a block, times the blocks of a stage, times what a ring sends of each, over the "
    "speed of the link.",
    wrong={
        "Four sums are those of one forward and the backward: here the forward runs twice.": (
            as_if(2 / 3)
        ),
        "That is a third: two sums for each of three passes, 2 bytes a number.": as_if(1 / 3),
        "The backward sends as often as one forward: six sums, not eight.": as_if(4 / 3),
        "Half of it: a ring sends 2 (t - 1) / t of each sum, a number has 2 bytes, and attention "
        "and MLP have a sum each.": as_if(1 / 2),
        "A stage has its share of the blocks only.": scaled(
            lambda s, b, layout, c: layout.pipeline
        ),
        "That is one block: a stage has many.": scaled(
            lambda s, b, layout, c: layout.pipeline / s.layers
        ),
        "A rank sees its share of the batch only.": scaled(lambda s, b, layout, c: layout.data),
        "That is one sample: a data rank has many.": scaled(
            lambda s, b, layout, c: layout.data / b
        ),
        "A sample has many tokens.": scaled(lambda s, b, layout, c: 1 / s.context),
        "Each token has `width` numbers.": scaled(lambda s, b, layout, c: 1 / s.width),
        "The sums are whole tensors on every rank, not shares.": scaled(
            lambda s, b, layout, c: 1 / layout.tensor
        ),
        "Between the layers a number has 2 bytes.": as_if(2.0),
        "One rank sends nothing, and t ranks 2 (t - 1) / t, not 2.": scaled(
            lambda s, b, layout, c: layout.tensor / max(layout.tensor - 1, 1)
        ),
        "A ring passes on parts: 2 (t - 1) / t of each sum, not 2 (t - 1).": scaled(
            lambda s, b, layout, c: layout.tensor
        ),
        "These are bytes: divide by the speed of the link.": over(lambda layout, c: 1),
        "16 tensor ranks leave the host: ask `layout.speed`.": over(lambda layout, c: c.inside),
        "These ranks stand in one host: ask `layout.speed`.": over(lambda layout, c: c.between),
        "Three do not divide a host of eight, so some group spans two hosts: ask `layout.speed`.": (
            over(lambda layout, c: c.inside if layout.tensor <= c.host else c.between)
        ),
        "Chunks order the same blocks otherwise: they add no sums and remove none.": [
            scaled(lambda s, b, layout, c: layout.chunks),
            scaled(lambda s, b, layout, c: 1 / layout.chunks),
        ],
        "Ask for the speed between tensor ranks.": [
            over(lambda layout, c: layout.speed("data", c)),
            over(lambda layout, c: layout.speed("pipeline", c)),
        ],
        "`moved` is the speed of a rank's memory; a message takes a link.": (
            over(lambda layout, c: c.moved)
        ),
        "What is summed are tokens, not weights.": of_weights,
        "step_seconds did the work: count the sums of a stage.": (
            lambda *given: step_seconds(*given)["layer sums"]
        ),
        "over the speed of the link": lambda *given: 1.0,
    },
    also_right=[sum_by_sum],
)

# 2. Waiting


def my_waiting(busy, batch, layout):
    """Of p stages with m micro-batches each waits for (p - 1) / m of its own work.

    Its own work is all that it computes and sends for its micro-batches, one sample each, so m is
    the batch of one data rank. With v chunks the waiting is v times shorter.
    """
    microbatches = batch / layout.data
    return busy * (layout.pipeline - 1) / (layout.chunks * microbatches)


def waits(share):
    """`busy` times a function of stages, micro-batches, chunks and layout."""
    return lambda busy, batch, it: (
        busy * share(it.pipeline, batch / it.data, it.chunks, it.data, batch)
    )


check_waiting = Exercise(
    my_waiting,
    read_again='"How long do stages wait?"',
    cases=[
        (10.0, 8, Layout(pipeline=4)),
        (12.0, 64, Layout(data=4, pipeline=8)),
        (9.0, 12, Layout(data=2, pipeline=3, chunks=2)),
        (5.0, 8, Layout(data=2)),
    ],
    given=lambda busy, batch, layout: f"{busy:g} s of work, {batch} samples, {named(layout)}",
    play=call_for_numbers,
    hint="What one chunk of one micro-batch takes a stage, as often as there are other stages.",
    wrong={
        "That is a share of the whole step; `busy` is the work alone.": [
            waits(lambda p, m, v, d, b: (p - 1) / (m + p - 1)),
            waits(lambda p, m, v, d, b: (p - 1) / (v * m + p - 1)),
        ],
        "Micro-batches of one data rank: the batch is shared out first.": [
            waits(lambda p, m, v, d, b: (p - 1) / v / b),
            waits(lambda p, m, v, d, b: (p - 1) / b),
        ],
        "The first of p stages waits for p - 1 others.": [
            waits(lambda p, m, v, d, b: p / v / m),
            waits(lambda p, m, v, d, b: p / m),
        ],
        "There are chunks: the others need to work on one of them only.": [
            waits(lambda p, m, v, d, b: (p - 1) / m),
            waits(lambda p, m, v, d, b: (p - 1) * v / m),
        ],
        "Other stages are p - 1, with v chunks, too: chunks are shorter work, not more ranks.": (
            waits(lambda p, m, v, d, b: (p * v - 1) / (v * m))
        ),
        "`//` rounds the seconds down: divide by `/`.": (
            lambda busy, batch, it: busy * (it.pipeline - 1) // (it.chunks * batch / it.data)
        ),
        "That is work and waiting: return the waiting alone.": [
            waits(lambda p, m, v, d, b: 1 + (p - 1) / v / m),
            waits(lambda p, m, v, d, b: 1 + (p - 1) / m),
        ],
        "That is a share: times the work it is seconds.": (
            lambda busy, batch, it: (it.pipeline - 1) / it.chunks / (batch / it.data)
        ),
        "Upside down: more micro-batches, less waiting.": [
            waits(lambda p, m, v, d, b: m / max(p - 1, 1)),
            waits(lambda p, m, v, d, b: m * (p - 1)),
        ],
        "That waits for every micro-batch anew; the pipeline fills once.": waits(
            lambda p, m, v, d, b: p - 1
        ),
        "Each stage waits for all others once: what waits at the start does not at the end.": waits(
            lambda p, m, v, d, b: 2 * (p - 1) / v / m
        ),
        "`busy` is one stage's work already, so it is not shared among stages again.": [
            waits(lambda p, m, v, d, b: (p - 1) / v / m / p),
            waits(lambda p, m, v, d, b: (p - 1) / m / p),
        ],
        "What one chunk of one micro-batch takes": lambda *given: 1.0,
    },
    also_right=[
        lambda busy, batch, it: (it.pipeline - 1) * (busy / (batch / it.data)) / it.chunks,
    ],
)

# 3. The bytes of the fullest rank


def my_held(parts, batch, layout):
    """States, as far as data ranks share them, and what is kept at the fuller of two moments.

    Either the first stage, which has the most micro-batches in flight, runs a block again, or the
    last one, which has a single one, runs the loss. There are no more in flight than a rank has.
    """
    p, d = layout.pipeline, layout.data
    weights = parts["weights"] / (d if layout.sharded == 3 else 1)
    adam = parts["Adam"] / (d if layout.sharded else 1)
    first = min(p, batch // d) * parts["inputs"] + parts["block"]
    last = parts["inputs"] + parts["logits"]
    return weights + adam + max(first, last)


def parts_with(logits):
    return {"weights": 40.0, "Adam": 120.0, "inputs": 6.0, "block": 10.0, "logits": logits}


def holding(
    weights=lambda z, d: d if z == 3 else 1,
    adam=lambda z, d: d if z else 1,
    flying=lambda p, m, d: min(p, m),
    first=lambda n, it: n * it["inputs"] + it["block"],
    last=lambda n, it: it["inputs"] + it["logits"],
    of=max,
):
    """The solution with some of it made otherwise: who shares, how many are in flight, what counts.

    `z`, `d` and `p` are `sharded`, data ranks and stages, `m` the micro-batches of a data rank, `n`
    those in flight in the first stage, `it` the parts.
    """

    def attempt(parts, batch, layout):
        z, d, p = layout.sharded, layout.data, layout.pipeline
        n = flying(p, batch // d, d)
        states = parts["weights"] / weights(z, d) + parts["Adam"] / adam(z, d)
        return states + of(first(n, parts), last(n, parts))

    return attempt


def changed(names, over):
    """The solution, with some parts divided once more."""
    return lambda parts, batch, layout: my_held(
        {**parts, **{name: parts[name] / over(layout) for name in names}}, batch, layout
    )


check_held = Exercise(
    my_held,
    read_again='"What does the fullest rank hold?"',
    cases=[
        (parts_with(30.0), 8, Layout(tensor=2)),
        (parts_with(5.0), 8, Layout(pipeline=4)),
        (parts_with(5.0), 4, Layout(data=2, pipeline=6)),
        (parts_with(5.0), 16, Layout(data=2, pipeline=3, sharded=1)),
        (parts_with(30.0), 64, Layout(data=4, pipeline=2, sharded=1)),
        (parts_with(5.0), 8, Layout(data=4, sharded=3)),
    ],
    given=lambda parts, batch, layout: f"{named(layout)}, {batch} samples, parts {parts}",
    play=call_for_numbers,
    hint="States, those that are shared over the data ranks; then the larger of two: inputs in "
    "flight and a block that runs, or inputs of one micro-batch and its logits.",
    wrong={
        "With sharded=0 data ranks hold copies of the states.": [
            holding(adam=lambda z, d: d),
            holding(weights=lambda z, d: d, adam=lambda z, d: d),
        ],
        "sharded=1 shares Adam's numbers over the data ranks, and nothing else.": [
            holding(adam=lambda z, d: d if z == 3 else 1),
            holding(weights=lambda z, d: d if z else 1),
            holding(lambda z, d: d if z else 1, lambda z, d: 1),
        ],
        "sharded=3 shares the weights, their gradients and Adam's numbers.": [
            holding(weights=lambda z, d: 1),
            holding(weights=lambda z, d: 2 * d / (1 + d) if z == 3 else 1),
            holding(adam=lambda z, d: d if z == 1 else 1),
        ],
        "Nobody shares the states here, but for sharded=1 and 3.": holding(
            lambda z, d: 1, lambda z, d: 1
        ),
        "`parts` are of one rank: tensor ranks and stages have been divided by.": [
            changed(("weights", "Adam"), lambda it: it.tensor * it.pipeline),
            changed(("inputs",), lambda it: it.tensor * it.pipeline),
            changed(("logits",), lambda it: it.tensor * it.pipeline),
            changed(tuple(parts_with(0.0)), lambda it: it.tensor * it.pipeline),
        ],
        "The block that runs is of a rank's own samples, its weights gathered: nobody shares it.": (
            changed(("block",), lambda it: it.data if it.sharded == 3 else 1)
        ),
        "Weights and their gradients are missing.": changed(("weights",), lambda it: math.inf),
        "Adam's numbers are missing.": changed(("Adam",), lambda it: math.inf),
        "That is without states: add weights and Adam's numbers.": changed(
            ("weights", "Adam"), lambda it: math.inf
        ),
        "In 1F1B the first stage has at most p micro-batches in flight.": [
            holding(flying=lambda p, m, d: m),
            holding(flying=lambda p, m, d: max(p, m)),
        ],
        "There are fewer micro-batches than stages: not more than m are in flight.": holding(
            flying=lambda p, m, d: p
        ),
        "Micro-batches of one data rank: the batch is shared out first.": [
            holding(flying=lambda p, m, d: min(p, m * d)),
            holding(flying=lambda p, m, d: m * d),
        ],
        "More than one micro-batch is in flight in the first stage.": holding(
            flying=lambda p, m, d: 1
        ),
        "From the first stage to the last there are p stages, both counted.": holding(
            flying=lambda p, m, d: min(p - 1, m)
        ),
        "The last stage has one micro-batch in flight, however many the first has.": [
            holding(last=lambda n, it: n * it["inputs"] + it["logits"]),
            holding(last=lambda n, it: n * (it["inputs"] + it["logits"])),
        ],
        "One block at a time runs: micro-batches in flight keep inputs alone.": holding(
            first=lambda n, it: n * (it["inputs"] + it["block"])
        ),
        "The inputs are missing: they are what a recomputed block keeps.": holding(
            lambda z, d: d if z == 3 else 1,
            first=lambda n, it: it["block"],
            last=lambda n, it: it["logits"],
        ),
        "At the loss the last stage keeps inputs, too.": holding(last=lambda n, it: it["logits"]),
        "While a block runs, it is there beside the inputs.": holding(
            first=lambda n, it: n * it["inputs"]
        ),
        "At the loss no block runs, and where a block runs there is no loss: take the larger.": [
            holding(of=lambda first, last: first + last),
            holding(last=lambda n, it: n * it["inputs"] + it["block"] + it["logits"]),
            holding(last=lambda n, it: it["inputs"] + it["block"] + it["logits"]),
        ],
        "The fullest rank counts: take the larger of the two stages, not the smaller.": holding(
            of=min
        ),
        "That is the last stage alone: in other cases the first one is fuller.": holding(
            of=lambda first, last: last
        ),
        "That is the first stage alone: in the last one the loss may hold more.": holding(
            of=lambda first, last: first
        ),
        "Return bytes, as `parts` has them.": [
            lambda *given, unit=unit: my_held(*given) / unit for unit in (1e6, 1e9, 2**20, 2**30)
        ],
        "States, those that are shared": lambda *given: 1.0,
    },
    errors={
        "KeyError|indices must be|has no attribute": 'Look parts up by name: `parts["inputs"]`.'
    },
    also_right=[
        holding(),
        holding(last=lambda n, it: min(n, 1) * it["inputs"] + it["logits"]),
    ],
)

# 4. A search

LIST = "Return a list of layouts; got {}"
A_LAYOUT = "`seconds` and `held` take one layout, made by `Layout(tensor=t, data=d, ...)`."


def my_search(sizes, batch, ranks, seconds, held, memory):
    """All products of three numbers that give the ranks and come out even, then those that fit.

    Heads are shared by tensor ranks, layers by stages, samples by data ranks. Without stages all
    states can be shared, too. Sorted by seconds, the fastest stands first; whoever sorts before the
    limit is asked finds the same.
    """
    found = []
    for t in range(1, ranks + 1):
        for p in range(1, ranks // t + 1):
            d, rest = divmod(ranks, t * p)
            if rest or sizes.heads % t or sizes.layers % p or batch % d:
                continue
            for z in (1, 3) if p == 1 else (1,):
                layout = Layout(tensor=t, data=d, pipeline=p, sharded=z)
                if held(layout) <= memory:
                    found.append(layout)
    return sorted(found, key=seconds)


def made_up(batch):
    """Seconds and bytes of a layout, all different; the fastest hold most."""

    def seconds(layout):
        waits = 2.3 * (layout.pipeline - 1) / batch
        return 40 / layout.ranks + layout.tensor + waits + 0.13 * layout.sharded

    def held(layout):
        copies = layout.data if layout.sharded == 3 else 1
        return 1000 / layout.tensor / layout.pipeline / copies + 0.37 * layout.pipeline

    return seconds, held


def searched(attempt, sizes, batch, ranks, memory):
    """What the attempt finds, as (tensor, data, pipeline, sharded)."""
    found = attempt(sizes, batch, ranks, *made_up(batch), memory)
    if isinstance(found, Layout):
        raise NotYet(LIST.format("one layout: keep the others, to see which are equal"))
    if not isinstance(found, list | tuple) or not all(isinstance(x, Layout) for x in found):
        raise NotYet(LIST.format(short(found)))
    return [(it.tensor, it.data, it.pipeline, it.sharded) for it in found]


def finding(
    even=("heads", "layers", "samples"),
    fit=True,
    order=None,
    kept=None,
    used=None,
    states=lambda p: (1, 3) if p == 1 else (1,),
):
    """The search without some of its conditions, in another order, or among other numbers."""

    def attempt(sizes, batch, ranks, seconds, held, memory):
        found = []
        for t in range(1, ranks + 1):
            for p in range(1, ranks // t + 1):
                d, rest = divmod(ranks, t * p)
                uneven = {
                    "heads": sizes.heads % t,
                    "layers": sizes.layers % p,
                    "samples": batch % d,
                }
                if (rest and not used) or any(uneven[each] for each in even):
                    continue
                for z in states(p):
                    layout = Layout(tensor=t, data=d, pipeline=p, sharded=z)
                    if (kept is None or kept(layout)) and (not fit or held(layout) <= memory):
                        found.append(layout)
        ordered = {
            None: seconds,
            "none": lambda _: 0,
            "held": held,
            "slowest": lambda x: -seconds(x),
        }
        return sorted(found, key=ordered[order])

    return attempt


def halves_of(number):
    return number & (number - 1) == 0


def mixed_up(sizes, batch, ranks, seconds, held, memory):
    """`Layout(t, p, d)`: stages and shares exchanged."""
    fine = finding(fit=False, order="none")(sizes, batch, ranks, seconds, held, memory)
    found = [Layout(it.tensor, it.pipeline, it.data, sharded=it.sharded) for it in fine]
    return sorted((it for it in found if held(it) <= memory), key=seconds)


def by_package(sizes, batch, ranks, seconds, held, memory):
    all_of_them = layouts(sizes, batch, ranks, sharded=(1, 3))
    return sorted((x for x in all_of_them if held(x) <= memory), key=seconds)


def by_shares(sizes, batch, ranks, seconds, held, memory):
    """Products of what comes out even; the limit is asked last."""
    wholes = sizes.heads, batch, sizes.layers
    shares = [[n for n in range(1, whole + 1) if whole % n == 0] for whole in wholes]
    even = [numbers for numbers in product(*shares) if prod(numbers) == ranks]
    found = [Layout(*numbers, sharded=1) for numbers in even]
    found += [replace(it, sharded=3) for it in found if it.pipeline == 1]
    return [it for it in sorted(found, key=seconds) if held(it) <= memory]


check_search = Exercise(
    my_search,
    read_again='"Which layout is fastest?"',
    cases=[
        (SMALL, 8, 4, 1e9),
        (SMALL, 8, 16, 300.0),
        (SMALL, 12, 48, 300.0),
        (SMALL, 12, 1, 1000.37),
        (replace(SMALL, heads=9, layers=10), 30, 6, 600.0),
    ],
    given=lambda sizes, batch, ranks, memory: (
        f"{sizes.heads} heads, {sizes.layers} layers, {batch} samples, {ranks} ranks, "
        f"{memory:g} bytes each"
    ),
    play=without(
        layouts,
        (replace(SMALL, heads=9, layers=10), 30, 6, 600.0),
        "try the numbers of ranks yourself.",
        searched,
    ),
    compared=lambda found, expected: [
        f"expected, as (tensor, data, pipeline, sharded), {short(expected)}",
        f"got {short(found)}",
    ],
    hint="Try all numbers of ranks; keep what comes out even and fits; the fastest first.",
    correct="All layouts are there that come out even and fit, the fastest first.",
    wrong={
        "Each tensor rank takes whole heads: t divides them.": finding(("layers", "samples")),
        "Each stage takes whole layers: p divides them.": finding(("heads", "samples")),
        "Each data rank takes whole samples: d divides the batch.": finding(("heads", "layers")),
        "Cuts have to come out even: heads, layers, samples.": finding(()),
        "Some of these need more than `memory`: ask `held`.": [
            finding(fit=False),
            finding((), fit=False),
        ],
        "What fills `memory` exactly fits, too: compare with <=.": (
            lambda sizes, batch, ranks, seconds, held, memory: my_search(
                sizes, batch, ranks, seconds, held, memory * (1 - 1e-12)
            )
        ),
        "That `d` is not more than the samples is too little: d divides them.": finding(
            ("heads", "layers"), kept=lambda it: it.data <= 12
        ),
        "Return all that fit: which are equal is asked later.": (
            lambda sizes, batch, ranks, seconds, held, memory: [
                it
                for it in my_search(sizes, batch, ranks, seconds, held, memory)
                if seconds(it)
                <= BAND * seconds(my_search(sizes, batch, ranks, seconds, held, memory)[0])
            ]
        ),
        "With one data rank sharded=3 shares with nobody, but it is asked for, too.": finding(
            kept=lambda it: it.data > 1 or it.sharded == 1
        ),
        "The fastest comes first: sort by `seconds`.": [
            finding(order="none"),
            finding(order="held"),
        ],
        "The fastest comes first, not the slowest.": finding(order="slowest"),
        "`range` ends before its last number: up to all ranks may be tensor ranks, or stages.": [
            finding(kept=lambda it: it.tensor < it.ranks),
            finding(kept=lambda it: it.pipeline < it.ranks),
            finding(kept=lambda it: max(it.tensor, it.pipeline) < it.ranks),
            finding(kept=lambda it: it.data > 1),
        ],
        "Ranks and sizes need not be powers of 2.": finding(
            kept=lambda it: all(map(halves_of, (it.tensor, it.data, it.pipeline)))
        ),
        "Let the seconds decide about more tensor ranks than a host has.": finding(
            kept=lambda it: it.tensor <= 8
        ),
        "Some of these leave ranks without work: t d p has to be `ranks`.": finding(used=True),
        "`Layout` takes tensor, data, pipeline, in this order: name them.": mixed_up,
        "Every layout comes with sharded=1: it sends what sharded=0 does and holds less.": [
            finding(states=lambda p: (0,)),
            finding(states=lambda p: (0, 3) if p == 1 else (0,)),
            finding(states=lambda p: (3,) if p == 1 else (1,)),
        ],
        "Without stages, sharded=3 is there, too.": finding(states=lambda p: (1,)),
        "With stages, sharded=3 is refused: weights would be gathered for each micro-batch.": (
            finding(states=lambda p: (1, 3))
        ),
        "Keep the others, too: which of them are equal to the fastest?": [
            lambda *given: my_search(*given)[:1],
        ],
        "keep the others, to see": lambda *given: my_search(*given)[0],
        LIST.format(""): lambda *given: 7,
        "layouts did the work: try the numbers of ranks yourself.": by_package,
        "Try all numbers of ranks": lambda *given: [],
    },
    errors={"tensor|has no attribute": A_LAYOUT},
    also_right=[by_shares],
)
