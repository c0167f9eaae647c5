"""Exercises of page `ranks_and_hosts`: who brought a run down, how it goes on and loses little."""

import random
from collections.abc import Iterator
from itertools import chain, count, islice
from math import expm1

import numpy as np
import torch
from torch.utils.data import TensorDataset

from mpcourse.exercises.exercise import Exercise, NotYet, leaving_alone, numbers, same, short

# 1. Who brought the run down?

LOST, RESET = "RuntimeError: Connection closed by peer", "RuntimeError: Connection reset by peer"
WAITED = "RuntimeError: Timed out waiting 30000ms for send operation to complete"
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE)"
BAD, SHAPES = "ValueError: I/O operation on closed file", "RuntimeError: shapes do not fit"
ENDED = -15  # by the launcher
DUMP = "Current thread 0x1 (most recent call first):\n  File files.py, line 20 in save"


def my_culprit(ends):
    """Leave out all who have an excuse. If nobody is left: those who never came or still waited.

    A list that keeps those that gave up before their -15 is right, too.
    """
    lost = "Connection closed", "Connection reset"
    waited = "Timed out waiting", "operation timeout"
    gave_up = False
    for rank, code, words in ends:
        if any(piece in words for piece in waited):
            gave_up = True
        elif code not in (0, -15) and not any(piece in words for piece in lost):
            return [rank]
    ends = [each for each in ends if not any(piece in each[2] for piece in waited)]
    return [rank for rank, code, _ in ends if gave_up and code == -15]


EMPTIED = "The list that was handed in has changed: only look at it."


def blamed(attempt, ends):
    found = attempt(ends)
    return numbers(list(found) if isinstance(found, (Iterator, set)) else found)


check_culprit = Exercise(
    my_culprit,
    read_again='"Who is to blame?"',
    cases=[
        ([(0, 1, LOST), (1, -9, "")],),
        ([(0, 1, RESET), (2, 1, SHAPES), (1, ENDED, "")],),
        ([(0, -6, ""), (1, 1, LOST)],),
        ([(2, 0, ""), (1, ENDED, DUMP), (0, 1, LOST), (3, 1, BAD)],),
        ([(0, 1, LOST), (1, 1, RESET), (2, 17, "")],),
        ([(2, 1, BAD), (1, -9, ""), (0, ENDED, "")],),
        ([(0, 0, ""), (1, 0, "")],),
        ([(1, 1, WAITED), (2, 1, RESET), (0, ENDED, DUMP)],),
        ([(1, -6, WATCHDOG), (0, ENDED, ""), (2, -9, "")],),
        ([(1, 0, ""), (3, -6, WATCHDOG), (0, ENDED, ""), (2, ENDED, "")],),
        ([(3, 0, ""), (1, 1, LOST), (0, 1, RESET), (2, ENDED, "")],),
        ([(1, -9, ""), (0, 1, BAD)],),
        ([(2, 1, RESET), (0, ENDED, DUMP), (1, 1, WAITED + "\ndestroyed its group")],),
    ],
    given=lambda ends: "; ".join(f"rank {r}: code {c}, {w!r}" for r, c, w in ends),
    play=leaving_alone(EMPTIED, blamed),
    same=lambda found, right: same(found, right) or same(found[::-1], right),
    hint="The first rank without an excuse, in a list. If there is none: those that the launcher "
    "had to end, if one gave up waiting; else an empty list.",
    wrong={
        "Who was killed says nothing, and may be the first all the same.": lambda ends: next(
            ([r] for r, c, w in ends if c == 1 and my_culprit([(r, c, w)])), my_culprit(ends)
        ),
        "That rank's last words speak of another one: it lost its neighbour, who went first.": [
            lambda ends: [rank for rank, code, _ in ends if code][:1],
            "Connection reset => Connection closed",
        ],
        "Signal 15 (-15) is the launcher's, which ends those that are left.": [
            "(0, -15) => (0,)",
            lambda ends: [rank for rank, code, _ in ends if code < 0][:1],
            lambda ends: [rank for rank, _, words in ends if not words][:1],
            lambda ends: [ends[-1][0]],
        ],
        "Signal 15 (-15) is the launcher's also where the rank's words say in which call it was.": [
            "_ in ends if gave_up and => words in ends if gave_up and not words and",
            "code not in (0, -15) => code and (code != -15 or words)",
        ],
        EMPTIED: lambda ends: [my_culprit(ends), ends.clear()][0],
        "Code 0 is an excuse: that rank has done its work.": "(0, -15) => (-15,)",
        "Of the signals, only 15 is an excuse: -9 and -6 are none.": "not in (0, -15) => > 0",
        "The rank's own number is asked, not its place in the list.": (
            "for rank, code, words in ends => for rank, (_, code, words) in enumerate(ends)"
        ),
        "A RuntimeError is no excuse; a lost connection is.": "Connection reset => RuntimeError",
        "Not signals alone: an error of its own, as of a closed file, is no excuse, either.": [
            lambda ends: [rank for rank, code, _ in ends if code < 0 and code != ENDED][:1],
            "Connection closed => closed",
        ],
        "Of several without an excuse the first alone counts.": [
            "in ends: => in ends[::-1]:",
            lambda ends: [r for r, c, w in ends if c not in (0, ENDED) and "Connection" not in w],
        ],
        "Return a list, also of one rank alone.": "return [rank] => return rank",
        "No code but 0 and -15 is an excuse. Or rank 0 counts as False: ask for None.": [
            "return [rank] => return [rank] * (rank > 0)",
            "(0, -15) => (0, -15, -6)",
        ],
        "That rank gave up waiting, as a line of its words says. NCCL's watchdog says so, too.": [
            "gave_up = True => return [rank]",
            '"operation timeout" => ',
            'in words for piece in waited => in words.split("\\n")[-1] for piece in waited',
        ],
        "Not only the first may have given up.": "gave_up = True => gave_up = rank == ends[0][0]",
        "One gave up waiting: look on, for a later rank may have no excuse.": (
            "gave_up = True => return [rank for rank, code, _ in ends if code == -15]"
        ),
        "One gave up waiting: whom the launcher ended never came, or had not yet given up.": (
            "gave_up and code == -15 => []"
        ),
        "Nobody gave up waiting here: whom the launcher ended has its excuse.": "gave_up and => ",
        "Nobody gave up waiting here: code 0 stays an excuse.": lambda ends: (
            my_culprit(ends)
            or [r for r, c, _ in ends if c == 0 and any("Connection" in w for *_, w in ends)]
        ),
        "The ranks' own numbers are asked, as numbers, not as text.": lambda ends: [
            str(rank) for rank in my_culprit(ends)
        ],
        "Look at all that the launcher had to end (-15), early or late, and at no other.": [
            "code == -15] => code in (0, -15)]",
            "_ in ends if gave_up and code == -15 => s in ends if gave_up and 'T' not in s",
            "code == -15] => code == -15][:1]",
            "gave_up = True => gave_up, ends = True, ends[ends.index((rank, code, words)) :]",
            "code == -15] => code == -15][-1:]",
        ],
        "Go once through the ends of the ranks; then return.": (
            "gave_up = True => gave_up = True; ends.append(ends[0])"
        ),
    },
    errors={
        "had not returned": "Go once through the ends of the ranks; then return.",
        "in <string>.*tuple": "`LOST` holds two texts: any(piece in words for piece in LOST).",
    },
    also_right=["code == -15] => code == -15][::-1]", lambda ends: set(my_culprit(ends))],
)

# 2. The batches of a run that goes on


def my_batches(data, size, step):
    """Draw the orders of a run never killed. Pass over what it has read."""
    seeded = torch.Generator().manual_seed(2)
    loader = torch.utils.data.DataLoader(data, size, shuffle=True, generator=seeded)
    read = 0
    while True:
        for batch in loader:
            if read >= step:
                yield batch
            read += 1


OWN = (
    "A generator that others draw from has moved, torch's, Python's or numpy's: give the order one "
    "of its own, and each DataLoader, too (generator=)."
)
AGAIN = "It begins with the first batch again: samples are read twice, others never."
NEW_ORDER = "`step` counts batches, over all epochs; each epoch keeps the order that it had."
ONE_OFF = "`step` steps are done: the next batch has that number, counted from 0."
ONE_ORDER = "Two of four epochs have one order, or the same one moved on: shuffle anew for each."
TOGETHER = "The same samples are together in each epoch: shuffle the samples, not the batches."
UNSHUFFLED = "The samples come in the order of the data: shuffle them."
ALONE = (
    "Give batch after batch: `data[numbers]`, or a DataLoader's. Not numbers alone, nor one batch."
)
COLUMN = 1, 9, 99  # times a sample's number
COLUMNS = "A batch holds columns, all of the same samples: the inputs, then their targets; no rows."
BEYOND = "`step` may exceed an epoch: count over all, and begin the next when one has ended."
NOTHING = "Give an iterator: return one, or yield the batches."
UNSEEDED = "Called twice, it gives two orders: seed the generator, with the same number each time."


def shared_states():
    """Of the generators that everybody draws from, as values that can be compared."""
    _, keys, *rest = np.random.get_state()  # noqa: NPY002
    torchs = torch.get_rng_state().numpy().tobytes()
    return torchs, random.getstate(), keys.tobytes(), rest


def read(attempt, data, size, step, batches):
    """The sample numbers of the first batches; if a shared generator has moved at one of them."""
    state, moved, taken = shared_states(), False, []
    for each in islice(attempt(data, size, step), batches):
        taken.append([*map(numbers, each)])
        moved |= state != shared_states()
    if not all(isinstance(column, list) for each in taken for column in each):
        raise NotYet(ALONE)
    found = [each[0] for each in taken]
    if taken != [[[by * number for number in each] for by in COLUMN] for each in found]:
        raise NotYet(COLUMNS)
    if sizes := {*map(len, found)} - {size}:
        raise NotYet(f"size is {size}, a batch has {min(sizes)} samples.")
    if len(found) < batches:
        raise NotYet(f"It ends after {len(found)} batches: epochs follow one another for ever.")
    return found, moved


def go_on(attempt, samples, size, step):
    """The batches from 0, twice, and from the step on; if a shared generator has moved."""
    data = TensorDataset(*(by * torch.arange(samples) for by in COLUMN))
    epoch = samples // size
    whole, moved = read(attempt, data, size, 0, 4 * epoch)
    again, _ = read(attempt, data, size, 0, 4 * epoch)
    found, moved_later = read(attempt, data, size, step, epoch)
    read(attempt, data, size, step, 37 * epoch + 1)  # for ever
    return whole, again, found, moved, moved or moved_later


def as_never_killed(outcome, samples, size, step):
    (whole, again, found, moved, moved_later), epoch = outcome, samples // size
    epochs = [[*chain(*whole[i : i + epoch])] for i in range(0, 4 * epoch, epoch)]
    if wrong := [each for each in epochs if sorted(each) != [*range(samples)]]:
        words = f"An epoch has to read each sample once; one of {samples} reads {short(wrong[0])}."
        late = sorted(chain(*whole[epoch - 1 : 2 * epoch - 1])) == [*range(samples)]
        raise NotYet(ONE_OFF if late else words)
    if epochs[0] == sorted(epochs[0]):
        raise NotYet(UNSHUFFLED)
    if whole != again:
        raise NotYet(OWN if moved else UNSEEDED)
    if samples > 6:  # few may repeat an order by chance
        moved_on = [epochs[0][by:] + epochs[0][:by] for by in range(samples)]
        if len({*map(tuple, epochs)}) < 4 or epochs[1] in moved_on:
            raise NotYet(ONE_ORDER)
        if {*map(frozenset, whole[:epoch])} == {*map(frozenset, whole[epoch : 2 * epoch])}:
            raise NotYet(TOGETHER)
    wanted = whole[step : step + epoch]
    if found != wanted:
        one_off = found in (whole[step + by : step + by + epoch] for by in (-1, 1))
        why = AGAIN if found == whole[:epoch] else ONE_OFF if one_off else NEW_ORDER
        raise NotYet(f"expected {short(wanted)}", f"got {short(found)}", why)
    if moved_later:
        raise NotYet(OWN)


def out_of(seed, permuted):
    """Batches whose order comes from a generator that everybody draws from, epoch by epoch."""

    def batches(data, size, step):
        seed(2)
        for epoch in count():
            order = [*permuted(len(data))]
            for number in range(len(data) // size):
                if epoch * (len(data) // size) + number >= step:
                    yield data[order[number * size :][:size]]

    return batches


def by_epochs(data, size, step, anew=1):
    for at in count(step * size, size):
        seeded = torch.Generator().manual_seed(at // len(data) * anew)
        order = torch.randperm(len(data), generator=seeded).roll(at // len(data))
        yield data[order[at % len(data) :][:size]]


check_batches = Exercise(
    my_batches,
    read_again='"Where does the loader go on?"',
    cases=[(6, 2, 5), (6, 2, 3), (12, 3, 6), (40, 4, 25)],
    given="{} samples in batches of {}, and a run that goes on at step {}",
    play=go_on,
    look=as_never_killed,
    wrong={
        AGAIN: "read >= step => True",
        ONE_OFF: ["read >= step => read >= step - 1", "read >= step => read > step"],
        ALONE: "yield batch => yield batch[0]",
        COLUMNS: [
            "yield batch => yield batch[:1]",
            "yield batch => yield [*zip(*batch)]",
            "yield batch => yield [batch[0], batch[1].sort()[0], batch[2]]",
        ],
        NEW_ORDER: [
            "read >= step => read >= step - step % len(loader)",
            "read >= step => read >= step % len(loader)",
            "seed(2) => seed(2 + step)",
            "read >= step => read >= step * size",
        ],
        ONE_ORDER: [
            "while True => while seeded.manual_seed(2)",
            "while True => while read // len(loader) % 2 or seeded.manual_seed(2)",
            lambda data, size, step: by_epochs(data, size, step, 0),
        ],
        OWN: [
            "torch.Generator().manual_seed(2) => torch.manual_seed(2)",
            # gives it back at the end alone
            "seeded = torch.Generator() => held = torch.random.fork_rng([]); held.__enter__(); "
            "seeded = torch",
            out_of(random.seed, lambda n: random.sample(range(n), n)),
            out_of(np.random.seed, np.random.permutation),
        ],
        UNSEEDED: "().manual_seed(2) => (); seeded.seed()",
        UNSHUFFLED: "shuffle=True => shuffle=False",
        "It ends after": "while True => if True",
        BEYOND: [
            "read = 0 => read, it = 0, iter(loader); [next(it) for _ in range(step)]",
            "seeded = => data = torch.utils.data.Subset(data, range(step * size, 6)); seeded =",
        ],
        NOTHING: ["yield batch => return", lambda *_: my_batches],
        TOGETHER: (
            "read = 0 => read, loader = 0, [*loader]",
            "in loader => in sorted(loader, key=lambda _: torch.rand(1, generator=seeded))",
        ),
    },
    errors={
        "had not returned": "Yield each batch at once: a list of all is never done. Or: " + BEYOND,
        "StopIteration|num_samples|index out of range": BEYOND,
        "out of bounds": "`data` and `size` are other ones here: take `len(data)` and `size`.",
        "(NoneType|function).*not iterable": NOTHING,
    },
    correct="Killed at any step, the run reads what it would have read.",
    also_right=[
        by_epochs,
        lambda data, size, step: islice(my_batches(data, size, 0), step, None),
    ],
)

# 3. How often to save


def my_lost_share(every_s, save_s, hosts, failure_s):
    """Each interval has one save. Each failure loses half an interval; more hosts fail more."""
    return save_s / every_s + every_s / 2 / (failure_s / hosts)


check_lost_share = Exercise(
    my_lost_share,
    read_again='"How often should a run save?"',
    cases=[(101, 5, 1, 10_007), (75, 4, 30, 10_001), (3601, 60, 107, 10_000_000)],
    given="a save every {} s that takes {} s, {} hosts, each failing once in {} s",
    hint="What does a save cost of each interval, and what does a failure lose of the time between "
    "two failures?",
    wrong={
        "A failure comes in the middle of an interval on average: half of it is lost.": [
            " / 2 => ",
            "/ 2 => / 4",
            "/ 2 => * 2",
        ],
        "Each failure loses every_s / 2: every_s counts once, in the repeated work, too.": [
            "+ every_s / 2 => + 1 / 2",
            "+ every_s / 2 => + every_s * every_s / 2",
        ],
        "More hosts fail more often: failure_s / hosts.": [" / hosts => ", " / hosts =>  * hosts"],
        "How often? A failure comes every failure_s / hosts: divide by that.": [
            " / (failure_s / hosts) =>  * hosts",
            "/ hosts) => / hosts**0.5)",
            "/ 2 / => / 2 *",
            lambda each, s, *_: (s + each / 2) / (each + s),
        ],
        "The saves take time, too: save_s of every every_s.": [
            "save_s / every_s + => ",
            "save_s / every_s + every_s / 2 => (save_s + every_s / 2)",
        ],
        "All hosts save at once, in save_s.": [
            f"save_s / => {factor} save_s /" for factor in ("hosts *", "1 / hosts *")
        ],
        "Each save costs all of save_s; only repeated work is halved.": "save_s / => save_s / 2 /",
        "Return the lost share alone, without adding 1.": "return => return 1 +",
        "Count the repeated work, too.": " + every_s / 2 / (failure_s / hosts) => ",
        "A share is a fraction: divide by /, not by //.": "/ => //",
        "One number is asked: add the two costs.": [
            lambda each, s, hosts, f: (s / each, each / 2 / (f / hosts)),
            lambda *given: [my_lost_share(*given)],
            "+ every_s => - every_s",
        ],
        "Return a number, not its text: who calls it goes on computing.": [
            lambda *given: f"{my_lost_share(*given):.1%}",
            lambda *given: f"{my_lost_share(*given):.3f}",
            lambda *given: str(my_lost_share(*given)),
        ],
        "Return the share as it is, without rounding.": [
            lambda *given: round(my_lost_share(*given), 3),
            lambda *given: round(my_lost_share(*given), 2),
            lambda *given: round(my_lost_share(*given), 4),
        ],
        "Count failures, not the chance of one: they come every failure_s / hosts.": [
            lambda each, s, hosts, f: s / each + (1 - (1 - each / f) ** hosts) / 2,
            lambda each, s, hosts, f: s / each + each / 2 * (1 - (1 - 1 / f) ** hosts),
            lambda each, s, hosts, f: s / each - expm1(-each * hosts / f) / 2,
        ],
        "Leave out what is rare: two failures in one interval, or one during a save.": [
            "+ every_s / 2 => + (every_s + save_s) / 2",
            "+ every_s / 2 => + (every_s / 2 + save_s)",
            lambda each, s, hosts, f: expm1((each + s) * hosts / f) * f / hosts / each - 1,
            lambda each, s, hosts, f: (1 + s / each) / (1 - each * hosts / f / 2) - 1,
        ],
        "save_s goes to every_s of work: divide by that.": [
            "/ every_s => / (every_s + save_s)",
            "/ every_s => ",
            lambda each, s, hosts, f: my_lost_share(each, s, hosts, f) / (1 + s / each),
        ],
        "Divide save_s by every_s, not every_s by save_s.": "save_s / every_s => every_s / save_s",
        "A share of the work is asked: not per cent, nor of the whole time, nor seconds.": [
            lambda each, *rest: each * my_lost_share(each, *rest),
            lambda each, s, *_: s + each / 2,
            lambda each, s, hosts, f: (2 * s * f / hosts) ** 0.5,  # Young's
            lambda *given: 100 * my_lost_share(*given),
            lambda *given: 1 - 1 / (1 + my_lost_share(*given)),
            lambda *given: 1 - my_lost_share(*given),
        ],
    },
    also_right=["every_s / 2 / (failure_s / hosts) => every_s * hosts / 2 / failure_s"],
)
