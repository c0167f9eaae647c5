"""Exercises of page `choose_a_layout`: layer sums, held bytes, a factor, what to run."""

import inspect
from dataclasses import replace
from itertools import groupby
from numbers import Real

from mpcourse.exercises.exercise import (
    Exercise,
    NotYet,
    borrowed,
    call_for_numbers,
    leaving_alone,
    refuse,
)
from mpcourse.transformer import Cluster, DecoderSizes, Layout, step_seconds

SMALL = DecoderSizes(width=64, layers=12, heads=16, vocabulary=500, context=32)
HOSTS = Cluster(inside=3e8, between=2e7, moved=7e8)  # 8 ranks in a host


def named(layout):
    """A layout in words."""
    words = f"{layout.tensor} tensor x {layout.pipeline} pipeline x {layout.data} data"
    words += f", {layout.chunks} chunks" * (layout.chunks > 1)
    return words + f", sharded={layout.sharded}" * (layout.sharded > 0)


# 1. The seconds of the layer sums


def my_layer_sums(sizes, batch, layout, cluster):
    """Two sums forward, two when it runs again, two backward: six for each block.

    Each has all tokens of the rank, 2 bytes a number. A ring of t ranks sends 2 (t - 1) / t of it.
    """
    tokens, t = batch * sizes.context / layout.data, layout.tensor
    ring = 2 * (t - 1) / t * tokens * sizes.width * 2
    return 6 * sizes.layers / layout.pipeline * ring / layout.speed("tensor", cluster)


def sum_by_sum(sizes, batch, layout, cluster):
    part = batch // layout.data * sizes.context * sizes.width * 2 / layout.tensor
    sums = [2 * part * (layout.tensor - 1)] * 6 * (sizes.layers // layout.pipeline)
    return sum(sums) / layout.speed("tensor", cluster)


ALONE = (SMALL, 4, Layout(data=2), HOSTS)


def without_step_seconds(attempt, *case):
    """Plays an attempt; that it does not let the package work is asked in the last case."""
    outcome = call_for_numbers(attempt, *case)
    if case == ALONE:
        itself = inspect.unwrap(attempt) is step_seconds
        names = ["step_seconds"] if itself else borrowed(attempt, {"step_seconds"})
        refuse(names, "count the sums of a stage.")
    return outcome


SPEED = 'layout.speed("tensor", cluster) => '

check_layer_sums = Exercise(
    my_layer_sums,
    read_again='"What do the layer sums take?"',
    cases=[
        (SMALL, 6, Layout(tensor=8), HOSTS),
        (SMALL, 8, Layout(tensor=2, data=8, pipeline=3), HOSTS),
        (SMALL, 4, Layout(tensor=16, data=2, pipeline=2), HOSTS),
        (SMALL, 8, Layout(tensor=2, pipeline=3, chunks=2), HOSTS),
        (replace(SMALL, heads=6), 4, Layout(tensor=3), HOSTS),
        ALONE,
    ],
    given=lambda sizes, batch, layout, cluster: f"{named(layout)}, {batch} samples",
    play=without_step_seconds,
    hint="A block's sums x blocks of a stage x what a ring sends, over the speed of the link.",
    wrong={
        "Four are those of one forward and the backward: the forward runs twice.": "6 * => 4 *",
        "That is a third: two sums for each of three passes, 2 bytes a number.": "6 * => 2 *",
        "The backward sends as often as one forward: six sums.": ["6 * => 8 *", "6 * => 5 *"],
        "Half of it: a ring sends 2 (t - 1) / t of each sum, a number has 2 bytes, and attention "
        "and MLP have a sum each.": "6 * => 3 *",
        "A stage has its share of the blocks only, and waiting sends nothing.": [
            " / layout.pipeline => ",
            "* ring => * (1 + (layout.pipeline - 1) * layout.data / batch) * ring",
        ],
        "That is one block: a stage has many.": "sizes.layers / layout.pipeline * => ",
        "A rank sees its share of the batch only.": " / layout.data => ",
        "That is one sample: a data rank has many.": (
            "batch * sizes.context / layout.data => sizes.context"
        ),
        "The tokens of all samples are in each sum: do not count micro-batches again.": (
            "6 * => 6 * batch / layout.data *"
        ),
        "A ring has the tensor ranks, no others.": "* (t - 1) / t => * (1 - 1 / layout.ranks)",
        "A sample has many tokens.": "* sizes.context => ",
        "Each token has `width` numbers.": [
            "* sizes.width => ",
            "width * => width * sizes.heads *",
            "* sizes.width => * sizes.heads",
        ],
        "What an MLP adds up has `width` numbers, as in attention.": "width * 2 => width * 8",
        "That is one token: a data rank has many.": "batch * sizes.context / layout.data => 1",
        "A block has two sums in each of three passes: six.": ["6 * => 9 *", "6 * => 1 *"],
        "Return one number, the layer sums' seconds.": lambda *given: step_seconds(*given),
        "The sums are whole tensors on every rank, not shares.": "* tokens => * tokens / t",
        "Twice too much: a block has six sums, and a number 2 bytes.": "width * 2 => width * 4",
        "A ring passes on parts, 2 (t - 1) / t of each sum: with one rank nothing.": [
            "* (t - 1) / t => ",
            "2 * (t - 1) / t * => ",
            "/ t * => *",
            "2 * (t - 1) / t * => (t - 1) *",
            *(f"2 * (t - 1) / t * => {n} * (t - 1).bit_length() *" for n in (1, 2)),  # a tree
        ],
        "The batch is shared over the data ranks once.": " / layout.data => / layout.data**2",
        "All tokens of a data rank pass each stage.": (
            " / layout.data => / layout.data / layout.pipeline"
        ),
        "These are bytes: divide by the speed of the link.": [
            SPEED + some for some in ("1", '(1 / layout.speed("tensor", cluster))')
        ],
        "`layout.speed` gives bytes, not bits, per second, and seconds are asked for.": [
            SPEED + f'(layout.speed("tensor", cluster) / {unit})' for unit in ("8", "1e9")
        ],
        "These are milliseconds: return seconds.": lambda *given: 1e3 * my_layer_sums(*given),
        "These seconds are far below 1: do not round them, nor divide by `//`.": [
            lambda *given, n=n: round(my_layer_sums(*given), n) for n in (0, 3)
        ],
        "16 tensor ranks leave the host: ask `layout.speed`.": SPEED + "cluster.inside",
        "These ranks stand in one host: ask `layout.speed`.": SPEED + "cluster.between",
        "Three do not divide a host of eight, so some group spans two hosts: ask `layout.speed`.": (
            SPEED + "(cluster.inside if t <= cluster.host else cluster.between)"
        ),
        "Chunks order the same blocks otherwise: they add no sums and remove none.": [
            f"6 * => 6 {times} layout.chunks *" for times in "*/"
        ],
        "Ask for the speed between tensor ranks.": ['"tensor" => "data"', '"tensor" => "pipeline"'],
        "`moved` is the speed of a rank's memory; a message takes a link.": SPEED + "cluster.moved",
        "Count the sums of blocks alone: those of embedding and loss are left out.": (
            "sizes.layers / layout.pipeline => (sizes.layers / layout.pipeline + 1)"
        ),
        "What is summed are tokens, not weights.": (
            "tokens * sizes.width => sizes.parameters / t",
            "6 * sizes.layers => 1",
        ),
        "step_seconds did the work: count the sums of a stage.": (
            lambda *given: step_seconds(*given)["layer sums"]
        ),
        "over the speed of the link": lambda *given: 1.0,
    },
    also_right=[sum_by_sum],
)

# 2. The bytes of the fullest rank


def my_held(parts, batch, layout):
    """States, as far as data ranks share them, and what is kept at the fuller of two moments.

    Either the first stage, with the most micro-batches in flight, runs a block again, or the last,
    with a single one, runs the loss. No more are in flight than a rank has.
    """
    p, d = layout.pipeline, layout.data
    weights = parts["weights"] / (d if layout.sharded == 3 else 1)
    adam = parts["Adam"] / (d if layout.sharded else 1)
    first = min(p, batch // d) * parts["inputs"] + parts["block"]
    last = parts["inputs"] + parts["logits"]
    return weights + adam + max(first, last)


def parts_with(logits):
    return {"weights": 40.0, "Adam": 120.0, "inputs": 6.0, "block": 10.0, "logits": logits}


WEIGHTS, ADAM = "(d if layout.sharded == 3 else 1) => ", "(d if layout.sharded else 1) => "
FLYING = "min(p, batch // d) => "
SHARED = ["d", *(each.removesuffix(" => ") for each in (ADAM, WEIGHTS))]

check_held = Exercise(
    my_held,
    read_again='"What does the fullest rank hold?"',
    cases=[
        (parts_with(30.0), 8, Layout(tensor=2)),
        (parts_with(5.0), 8, Layout(pipeline=4)),
        (parts_with(5.0), 4, Layout(data=2, pipeline=6)),
        (parts_with(5.0), 16, Layout(data=2, pipeline=3, chunks=2, sharded=1)),
        (parts_with(30.0), 64, Layout(tensor=2, data=4, pipeline=2, sharded=1)),
        (parts_with(5.0), 8, Layout(tensor=2, data=4, sharded=3)),
        (parts_with(30.0), 8, Layout(tensor=2, data=4, sharded=3)),
    ],
    given=lambda parts, batch, layout: f"{named(layout)}, {batch} samples, parts {parts}",
    play=call_for_numbers,
    hint="States, those that are shared over data ranks; then the larger of: inputs in flight and "
    "a block that runs, or one micro-batch's inputs and logits.",
    wrong={
        "With sharded=0 data ranks hold copies of the states.": [
            ADAM + "d",
            WEIGHTS + "d",
            (WEIGHTS + "d", ADAM + "d"),
            lambda *given: my_held(*given) / given[2].data,
        ],
        "sharded=1 shares Adam's numbers over the data ranks, and nothing else.": [
            "layout.sharded else => layout.sharded == 3 else",
            " == 3 => ",
            (ADAM + "1", " == 3 => "),
            WEIGHTS + "{3: d, 1: 2 * d / (1 + d)}.get(layout.sharded, 1)",
        ],
        "sharded=3 shares the weights, their gradients and Adam's numbers.": [
            WEIGHTS + "1",
            WEIGHTS + "(2 * d / (1 + d) if layout.sharded == 3 else 1)",
            "layout.sharded else => layout.sharded == 1 else",
        ],
        "sharded=1 shares Adam's numbers, sharded=3 all states.": (WEIGHTS + "1", ADAM + "1"),
        "`parts` are of one rank: tensor ranks and stages have been divided by.": [
            "weights + adam => (weights + adam) / layout.tensor / p",
            "weights + adam => (weights + adam) / p",
            *(f'parts["{n}"] => parts["{n}"] / layout.tensor / p' for n in ("inputs", "logits")),
            lambda parts, batch, it: my_held(parts, batch, it) / it.tensor / it.pipeline,
        ],
        "States are shared over the data ranks: the others hold parts of their own.": [
            ADAM + "(d * layout.tensor if layout.sharded else 1)",
            ADAM + "(layout.ranks if layout.sharded else 1)",
            ADAM + "layout.ranks",
        ],
        "With sharded=3 `parts` has all samples of the rank already: they are one micro-batch.": [
            FLYING + "(batch // d if layout.sharded == 3 else min(p, batch // d))",
            'parts["block"] => parts["block"] * (batch // d if layout.sharded == 3 else 1)',
        ],
        "The block that runs is of a rank's own samples, its weights gathered: nobody shares it.": (
            'parts["block"] => parts["block"] / (d if layout.sharded == 3 else 1)'
        ),
        "Weights and their gradients are missing.": "weights + adam => adam",
        "Adam's numbers are missing.": "weights + adam => weights",
        "That is without states: add weights and Adam's numbers.": "weights + adam + => ",
        "In 1F1B the first stage has at most p micro-batches in flight.": [
            FLYING + "batch // d",
            (FLYING + "batch // d", "last = => last = batch // d *"),
            "min(p => max(p",
            "min(p => min(2 * p",
        ],
        "There are fewer micro-batches than stages: not more than m are in flight.": FLYING + "p",
        "Micro-batches of one data rank: the batch is shared out first.": [
            "batch // d => batch",
            "batch // d => batch // p",
            FLYING + "batch",
        ],
        "More than one micro-batch is in flight in the first stage.": FLYING + "1",
        "From the first stage to the last there are p stages, both counted.": [
            f"min(p => min(p {off}" for off in ("- 1", "+ 1")
        ],
        "The last stage has one micro-batch in flight, however many the first has.": [
            "last = => last = min(p, batch // d) *",
            "first, last) => first, min(p, batch // d) * last)",
            '+ parts["logits"] => + min(p, batch // d) * parts["logits"]',
            'last = parts["inputs"] => last = p * parts["inputs"]',
            'last = parts["inputs"] => last = min(p, batch // d) * parts["inputs"]',
        ],
        "`inputs` are of all blocks of a rank, whatever its chunks.": (
            'parts["inputs"] => parts["inputs"] / layout.chunks'
        ),
        "Chunks change nothing here: at most p micro-batches are in flight, with all chunks.": [
            "min(p => min(p * layout.chunks",
            "min(p => min(p + (p - 1) / layout.chunks * (layout.chunks > 1)",  # as Megatron's
            "min(p => min(p + (p - 1) / layout.chunks",
        ],
        "One block at a time runs: micro-batches in flight keep inputs alone.": (
            'parts["inputs"] + parts["block"] => (parts["inputs"] + parts["block"])'
        ),
        "The inputs are missing: they are what a recomputed block keeps.": 'parts["inputs"] => 0',
        "At the loss the last stage keeps inputs, too.": 'last = parts["inputs"] + => last =',
        "While a block runs, it is there beside the inputs.": ' + parts["block"] => ',
        "At the loss no block runs, and where a block runs there is no loss: take the larger.": [
            "max(first, last) => first + last",
            'last = parts["inputs"] => last = first',
            'parts["logits"] => parts["logits"] + parts["block"]',
        ],
        "The fullest rank counts: take the larger of the two, not the smaller.": "max => min",
        "States are there at both moments: add them to what is kept.": [
            "weights + adam + max( => max(weights + adam, ",
            " + max(first, last) => ",
        ],
        "Data ranks share states, not activations.": [
            *(f"max(first, last) => max(first, last) / {by}" for by in SHARED),
            *(
                f'parts["{n}"] => parts["{n}"] / {by}'
                for n in ("inputs", "logits")
                for by in SHARED
            ),
            *(f'parts["block"] => parts["block"] / {by}' for by in SHARED[:2]),
            lambda *given: my_held(*given) / (given[2].data if given[2].sharded == 3 else 1),
            'first = => parts["inputs"] /= d if layout.sharded == 3 else 1; first =',
        ],
        "That is the last stage alone: the first, with its inputs in flight, may be fuller.": (
            "max(first, last) => last"
        ),
        "That is the first stage alone: in the last one the loss may hold more.": [
            "max(first, last) => first",
            "max(first, last) => (max(first, last) if p == 1 else first)",
        ],
        "Return bytes, as `parts` has them.": [
            lambda *given, unit=unit: my_held(*given) / unit for unit in (1e6, 1e9, 2**20, 2**30)
        ],
        "States, those that are shared": lambda *given: 1.0,
    },
    errors={"KeyError|indices must be|has no attribute": 'Look up by name: `parts["inputs"]`.'},
    also_right=["// => /", "last = => last = min(p, batch // d, 1) *"],
)

# 3. The factor that fits a program's runs


def my_factor(runs):
    """A factor's spread is the largest ratio of measured to forecast time over the smallest.

    The factor with the smallest spread fits best; `min` takes the first of equal ones.
    """

    def spread(factor):
        ratios = [took / (rest + factor * sums) for rest, sums, took in runs]
        return max(ratios) / min(ratios)

    return min(range(1, 16), key=spread)


RATIOS, LEAST = "took / (rest + factor * sums) => ", "max(ratios) / min(ratios) => "

check_factor = Exercise(
    my_factor,
    read_again='"Can one table mend the forecast?"',
    cases=[
        ([(10.0, 1.0, 26.0), (10.0, 2.0, 32.0), (10.0, 4.0, 44.0)],),
        ([(12.0, 1.0, 27.0), (12.0, 5.0, 87.0)],),
        ([(20.0, 0.0, 24.0), (20.0, 0.0, 30.0)],),
        ([(30.0, 2.0, 32.0), (24.0, 8.0, 32.0)],),
        ([(40.0, 2.0, 65.0), (26.0, 6.0, 65.0), (52.0, 3.0, 70.0), (48.0, 2.0, 81.0)],),
        ([(50.0, 7.0, 84.0), (33.0, 6.0, 82.0), (15.0, 7.0, 59.0)],),
        ([(10.0, 1.0, 30.0), (10.0, 3.0, 70.0)],),
        ([(16.0, 7.0, 110.0), (18.0, 1.0, 84.0), (46.0, 6.0, 76.0), (44.0, 6.0, 113.0)],),
        ([(10.0, 3.0, 30.0), (14.0, 1.0, 20.0)],),
    ],
    given=lambda runs: f"runs (rest, sums, took) {runs}",
    hint=lambda outcome, expected: (
        "For each factor: a ratio of every run, the largest over the smallest; then `min`."
        if isinstance(outcome, Real) and outcome in range(1, 16)
        else "Return one whole number from 1 to 15: the factor."
    ),
    wrong={
        "One factor may miss all runs alike: no ratio need be near 1. Compare the largest with the "
        "smallest.": [
            LEAST + "sum(abs(ratio - 1) for ratio in ratios)",
            LEAST + "max(abs(ratio - 1) for ratio in ratios)",
            LEAST + "abs(sum(ratios) / len(ratios) - 1)",
            LEAST + "abs(sum(ratios) - len(ratios))",
        ],
        "One factor may miss all runs alike: compare ratios, not the errors.": [
            (RATIOS + "abs(took - rest - factor * sums)", LEAST + "sum(ratios)"),
            (RATIOS + "took - rest - factor * sums", LEAST + "abs(sum(ratios))"),
            (RATIOS + "took - rest - factor * sums", LEAST + "(max(ratios) - min(ratios))"),
            (RATIOS + "(took - rest - factor * sums) ** 2", LEAST + "sum(ratios)"),
        ],
        "The spread is the largest ratio over the smallest.": [
            (RATIOS + "(rest + factor * sums) / took", LEAST + "(max(ratios) - min(ratios))"),
            *(
                LEAST + some
                for some in (
                    "max(ratios)",
                    "min(ratios)",
                    "ratios[-1] / ratios[0]",
                    "ratios[0] / ratios[-1]",
                    "sum(ratios)",
                    "(max(ratios) - min(ratios))",
                    "max(ratios) / (sum(ratios) / len(ratios))",
                    "(max(ratios) - min(ratios)) / sorted(ratios)[len(ratios) // 2]",
                    "(max(ratios) - min(ratios)) / (sum(ratios) / len(ratios))",
                    "sum((ratio - sum(ratios) / len(ratios)) ** 2 for ratio in ratios)",
                )
            ),
        ],
        "The smallest spread is asked for, not the largest.": "min(range => max(range",
        "Try all factors: each multiplies the layer sums, and nothing else.": [
            "(rest + factor * sums) => (factor * rest + sums)",
            "(rest + factor * sums) => (factor * (rest + sums))",
            "factor * sums => sums / factor",
        ],
        "Ratios are of measured to forecast time: `took` is missing.": "took / (rest => (rest",
        "`rest` is without the layer sums: add them `factor` times, not once more.": (
            "(rest + factor * sums) => (rest + sums + factor * sums)"
        ),
        "The factors are 1 to 15, both counted.": [
            f"range(1, 16) => {some}"
            for some in (
                "range(1, 15)",
                "range(16)",
                "range(1, 11)",
                "range(2, 16)",
                "range(1, 17)",
                "range(1, 100)",
            )
        ],
        "Of equal factors the smallest.": "range(1, 16) => range(15, 0, -1)",
        "Return the factor, not its spread.": [
            "return min( => return spread(min(range(1, 16), key=spread)) or min(",
            "min(range(1, 16), key=spread) => [spread(n) for n in range(1, 16)]",
            "min(range(1, 16), key=spread) => {n: spread(n) for n in range(1, 16)}",
        ],
        "Return one whole number from 1 to 15": [lambda runs: 3.5, lambda runs: [5]],
        "For each factor: a ratio": lambda runs: 14,
        "Which of two runs is faster has no say: the spread of the ratios does.": lambda runs: max(
            range(1, 16),
            key=lambda n: sum(
                (one[2] < two[2]) == (one[0] + n * one[1] < two[0] + n * two[1])
                for one in runs
                for two in runs
            ),
        ),
        "That is one too small: an index counts from 0, the factors from 1.": (
            "key=spread) => key=spread) - 1"
        ),
        "One run alone says nothing of a spread: compare them all.": lambda runs: min(
            range(1, 16), key=lambda factor: abs(runs[0][2] - runs[0][0] - factor * runs[0][1])
        ),
        "Return the factor alone.": [
            "min(range(1, 16), key=spread) => min((spread(n), n) for n in range(1, 16))" + turned
            for turned in ("", "[::-1]")
        ],
        "A run is (rest, sums, took), in this order: the third is the measured time.": [
            "for rest, sums, took in runs => for took, rest, sums in runs",
            "for rest, sums, took in runs => for took, sums, rest in runs",
            "for rest, sums, took in runs => for rest, took, sums in runs",
        ],
        "A whole factor is asked for.": "range(1, 16) => [n / 10 for n in range(10, 151)]",
    },
    also_right=["took / (rest + factor * sums) => (rest + factor * sums) / took"],
)

# 4. What to run, in order


def my_to_run(told, needed, most, band):
    """Sort what fits by its forecast. The first sets the band; what is beyond it stays out."""
    fitting = sorted((it for it in told if needed[it] <= most), key=told.get)
    return [it for it in fitting if told[it] <= band * told[fitting[0]]]


def offer(text, most=64, band=1.4):
    """A case: tensor, data, stages, seconds and gigabytes of each layout."""
    rows = [[float(each) for each in row.split()] for row in text.split(",")]
    found = {Layout(*map(int, row[:3])): row[3:] for row in rows}
    told, needed = ({it: row[which] for it, row in found.items()} for which in (0, 1))
    return told, needed, most, band


def by_name(attempt, *case):
    """Plays an attempt; the layouts that it lists by their names."""
    outcome = attempt(*case)
    if not isinstance(outcome, list | tuple | None):
        raise NotYet("Return a list: its order counts.")
    if not all(isinstance(it, Layout) for it in outcome or ()):
        raise NotYet("List the layouts, not their seconds, names or numbers of ranks.")
    alike = groupby(outcome or (), key=case[0].get)  # equal seconds: in either order
    return outcome and [name for _, each in alike for name in sorted(map(named, each))]


def as_words(told, needed, most, band):
    rows = [f"{named(it)}: {told[it]:g} s, {needed[it]:g} GB" for it in told]
    return "; ".join([f"room for {most} GB, a band of {band}", *rows])


IN_ORDER = "in fitting if => in sorted(fitting, key="

check_to_run = Exercise(
    my_to_run,
    read_again='"What would you run?"',
    cases=[
        offer("2 4 8 12 50, 8 4 2 10 40"),
        offer("4 8 2 12 40, 1 8 8 7 90, 2 8 4 10 50"),
        offer("2 2 16 40 50, 8 2 4 20 40, 4 2 8 26 60"),
        offer("4 2 8 12.5 40, 8 1 8 10 20, 2 16 2 11 9, 8 2 4 15 35, 1 64 1 13 64, 4 1 16 14 45"),
        offer("2 4 8 12 70, 8 4 2 10 80"),
        offer("2 4 8 10 45, 4 4 4 12.5 30, 8 4 2 11 40, 8 8 1 9 60, 1 16 4 8 70", 50, 1.2),
        offer("2 4 8 12 45, 4 4 4 10 30, 8 4 2 12 40"),
        offer("2 4 8 1.2 45, 4 4 4 1 30, 8 4 2 3 40"),
    ],
    given=as_words,
    play=leaving_alone("Leave `told` and `needed` as they are: build a new list.", by_name),
    hint="Those that fit; of these, those within the band of the fastest, in the forecast's order.",
    wrong={
        "What does not fit cannot be run.": [
            " if needed[it] <= most => ",
            "needed[it] => told[it]",
            lambda told, *_: sorted(told, key=told.get),
        ],
        "`needed` has to fit into `most`.": "<= most => >= most",
        "As much as there is room for does fit.": "<= most => < most",
        "`most` and `band` are other numbers in other cases: take what is given.": [
            "<= most => <= 64",
            "<= band * => <= 1.4 *",
            ("<= most => <= 64", "<= band * => <= 1.4 *"),
        ],
        "The fastest that fits sets the band: what does not fit is no rival.": (
            "told[fitting[0]] => min(told.values())"
        ),
        "The fastest sets the band for all; a neighbour in the list sets none.": (
            "told[fitting[0]] => told[fitting[max(fitting.index(it) - 1, 0)]]"
        ),
        "A layout at the very edge of the band stays.": "<= band => < band",
        "All layouts within the band follow, however many.": "in fitting if => in fitting[:3] if",
        "Beyond the band the forecast says that a layout is slower: leave it out.": [
            " if told[it] <= band * told[fitting[0]] => ",
            "<= band * => >=",
        ],
        "The band is a factor between two forecasts, not a number of seconds.": [
            "band * told => band + told",
            "band * told[fitting[0]] => band",
        ],
        "The forecast's first is run first.": [
            "in fitting if => in fitting[::-1] if",
            "in fitting if => in told if it in fitting and",
        ],
        "The list is in the forecast's order, not in that of a rule of thumb.": [
            IN_ORDER + f"lambda it: {key}) if"
            for key in (
                "(it.tensor, -it.pipeline)",
                "(it != fitting[0], it.tensor, -it.pipeline)",
                "(it != fitting[0], [*told].index(it))",
                "(it.tensor, it.pipeline)",
                "(it != fitting[0], it.tensor, it.pipeline)",
                "(-it.tensor, it.pipeline)",
                "it.tensor",
                "(it.tensor * it.pipeline, -it.tensor)",
                "(-it.pipeline, it.tensor)",
            )
        ],
        "Bytes say what fits. They have no say in the order.": [
            IN_ORDER + "needed.get) if",
            lambda told, needed, *more: my_to_run(needed, told, *more),
            IN_ORDER + "lambda it: (it != fitting[0], needed[it])) if",
        ],
        "Two layouts may take equal seconds: list both.": [
            "in fitting if => in {told[it]: it for it in fitting}.values() if",
            "in fitting if => in {told[it]: it for it in fitting[::-1]}.values() if",
            lambda told, needed, most, band: (
                lambda by: [by[s] for s in sorted(by) if s <= band * min(by)]
            )({told[it]: it for it in told if needed[it] <= most}),
        ],
        "The first stands in the list twice.": "return [ => return fitting[:1] + [",
        "That is the first alone: the others within the band follow.": (
            "in fitting if => in fitting[:1] if"
        ),
        "The first is missing.": "in fitting if => in fitting[1:] if",
        "List the layouts, not their seconds": [
            "[it for => [told[it] for",
            lambda *given: [(it.tensor, it.pipeline, it.data) for it in my_to_run(*given)],
        ],
        "Where nothing fits, the list is empty, and not None.": (
            lambda *given: my_to_run(*given) or None
        ),
        "The list is empty only where nothing fits.": lambda *given: [],
        "Nothing fits here: the list stays empty.": (
            lambda told, *given: my_to_run(told, *given) or sorted(told, key=told.get)[:1]
        ),
        "Leave `told` and `needed` as they are": lambda told, *more: (
            my_to_run(told, *more),
            told.clear(),
        )[0],
        "Return a list": lambda *given: {*my_to_run(*given)},
        "Those that fit; of these": lambda *given: [Layout()],
    },
    errors={"(Value|Index)Error": "Where nothing fits there is nothing to run: an empty list."},
    also_right=["in fitting if => in sorted(fitting, key=lambda it: told[it]) if"],
)
