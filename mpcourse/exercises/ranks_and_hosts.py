"""Exercises of page `ranks_and_hosts`: who brought a run down, how it goes on and loses little."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, count, islice
from math import expm1

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from mpcourse.exercises.exercise import Exercise, NotYet, expected_and_got, numbers, same, short

# 1. The step to go on at


def my_resume_step(names, world_size):
    """For each rank the set of its complete steps, then what all sets share, then the largest.

    The whole name has to fit, so a `.part` is left out and rank10 is not taken for rank1. A rank
    without files has an empty set, and then nothing is shared. Steps are compared as numbers.
    """
    steps = [set() for _ in range(world_size)]
    for name in names:
        match = re.fullmatch(r"rank(\d+)-step(\d+)\.pt", name)
        if match and int(match[1]) < world_size:
            steps[int(match[1])].add(int(match[2]))
    return max(set.intersection(*steps), default=None)


def folder(saved, parts=(), world_size=None):
    """The names of each rank's complete files, and of those of which a part is written."""
    named = [(rank, step, "pt") for rank, steps in enumerate(saved) for step in steps]
    named += [(rank, step, "part") for rank, step in parts]
    names = [f"rank{rank}-step{step:06d}.{end}" for rank, step, end in named]
    names.sort(key=lambda name: name[::-1])  # a folder promises no order
    return names, world_size or len(saved)


def counting(is_enough):
    """The last step of which there are enough complete files, whosever they are."""

    def attempt(names, world_size):
        saved = Counter(int(re.search(r"step(\d+)", n)[1]) for n in names if n.endswith(".pt"))
        return max((s for s in saved if is_enough(saved[s], world_size)), default=None)

    return attempt


def by_trying(names, world_size):
    steps = {int(re.search(r"step(\d+)", name)[1]) for name in names}
    for step in sorted(steps, reverse=True):
        if all(f"rank{rank}-step{step:06d}.pt" in names for rank in range(world_size)):
            return step
    return None


check_resume = Exercise(
    my_resume_step,
    read_again='"Where does a killed run go on?"',
    cases=[
        folder([[2], [2]]),
        folder([[4, 8], [4, 8]]),
        folder([[2, 3], [1, 2]]),
        folder([[4, 8], [4, 6]]),
        folder([[4, 5], [4, 5], [3]], parts=[(3, 5)], world_size=2),
        folder([[4, 5], [4], [4, 5]], world_size=2),
        folder([[3, 4], [3], [3, 4]], parts=[(1, 4)]),
        folder([[], []]),
        folder([[1], []]),
        folder([[999_999, 1_000_000]] * 2),
        folder([[7, 8], [7], *[[7, 8]] * 9]),
    ],
    given=lambda names, world_size: (
        f"{world_size} ranks and the files {', '.join(names[:5]) or '(none)'}"
        + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    ),
    hint="For each rank the set of its complete steps; then what all the sets share.",
    wrong={
        "A .part is a file that was never finished: its rank was killed.": r"\.pt => \..*",
        "Files of ranks that are no more, of a larger run before, do not count.": [
            lambda names, n: my_resume_step(
                names, max([n, *(int(name[4 : name.index("-")]) + 1 for name in names)])
            ),
            counting(lambda files, ranks: files >= ranks),
            counting(lambda files, ranks: files == ranks),
        ],
        "A rank that has saved nothing counts too: world_size says how many.": (
            "*steps => *[each for each in steps if each] or [set()]"
        ),
        "Not every rank has a file of that step: its stages would go on from another.": [
            "set.intersection => set.union",
            lambda names, _: max([int(re.search(r"step(\d+)", n)[1]) for n in names] or [None]),
            "set.intersection(*steps) => steps[0] & steps[-1]",
        ],
        "The oldest of the newest is not common to all: one lacks it.": [
            "max(set.intersection(*steps) => min(map(max, steps) if all(steps) else []",
            "max(set.intersection(*steps) => min(map(max, filter(None, steps))",
        ],
        "Nothing is common to all: return None, and the run begins anew.": [
            "default=None => default=0",
            "default=None => default=-1",
        ],
        "That is a text: int(...) makes a number of it.": "int(match[2]) => match[2]",
        "That is a number of files; the step stands in their names.": (
            "max(set.intersection(*steps), default=None) => len(steps[0])"
        ),
        "The number in a name counts finished steps: the run goes on at that index, not one "
        "later.": "int(match[2]) => int(match[2]) + 1",
        "None says that no step is common to all ranks; {expected} is one.": lambda *given: None,
        "Compare steps as numbers: as texts 999999 is after 1000000.": (
            "default=None => default=None, key=str"
        ),
        "rank10 begins like rank1: look for the whole number.": [
            "int(match[2]) => int(match[2])), steps[int(match[1][0])].add(int(match[2])",
            r"rank(\d+) => rank(\d)",
        ],
        "A .part takes nothing away from the files that are whole.": (
            "*steps => *steps, {n for n in range(9) if f'{n}.part' not in str(names)}"
        ),
        "An older step; the last is asked.": "return max => return min",
        "it raised ValueError: max()": ", default=None => ",
        "For each rank the set of its complete steps": lambda *given: 5_000_000,
    },
    errors={"IndexError": "There may be files of more ranks than world_size, of a larger run."},
    also_right=[by_trying],
)

# 2. Who brought the run down?

LOST, RESET = "RuntimeError: Connection closed by peer", "RuntimeError: Connection reset by peer"
WAITED = "RuntimeError: Timed out waiting 30000ms for send operation to complete"
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE)"
BAD, SHAPES = "ValueError: the batch has no rows", "RuntimeError: shapes cannot be multiplied"
ENDED = -15  # SIGTERM: the launcher ends those that are left
NEIGHBOUR = "That rank's last words speak of another one: it lost its neighbour, who went first."
WAITER = "That rank gave up waiting for another, which never came. NCCL's watchdog says so, too."
LAUNCHER = "Signal 15 (-15) comes from the launcher, which ends those that are left."
WELL = "Exit code 0 is a rank that ended well."
IT_WAS_FIRST = "Of several without an excuse the first counts."
SOMEBODY = "Somebody failed: rank {} has no excuse."
NOBODY = "Nobody is left to blame: return an empty list."
A_LIST = "Return a list, also of one rank alone."
ERROR = "A rank that ended by an error of its own has no excuse either, whatever its code."
NEVER_CAME = (
    "One gave up waiting, and nobody failed: those whom the launcher had to end never came."
)
ONLY_IF_NOBODY = "Those that were ended are suspects only if nobody without an excuse is found."
NOBODY_WAITED = "Nobody gave up waiting here: whom the launcher ended has its excuse."


def my_culprit(ends):
    """Leave out all who have an excuse; the first one left brought the run down.

    An excuse is to have ended well, to have been ended by the launcher, to have lost a connection,
    or to have given up waiting. If nobody is left and one gave up waiting, those that had to be
    ended are the ones who never came.
    """
    lost, waited = ("Connection closed", "Connection reset"), ("Timed out waiting", "timeout")
    gave_up = False
    for rank, code, words in ends:
        if any(piece in words for piece in waited):
            gave_up = True
        elif code not in (0, -15) and not any(piece in words for piece in lost):
            return [rank]
    return [rank for rank, code, _ in ends if gave_up and code == -15]


def blamed(attempt, ends):
    found = attempt(list(ends))
    return numbers(list(found) if isinstance(found, Iterator) else found), ends


def why_not(outcome, expected):
    """What those that were blamed had for an excuse."""
    (found, ends), (right, _) = outcome, expected
    if not isinstance(found, list | tuple):
        return A_LIST if right else NOBODY
    said = {rank: (code, words) for rank, code, words in ends}
    late = any(said[rank][0] == ENDED for rank in right)
    if len(found) > 1 and not late:
        return IT_WAS_FIRST if right else NOBODY
    if not found:
        return NEVER_CAME if late else SOMEBODY.format(right[0])
    if found[0] not in [*said]:  # which may be anything
        return "Leave out everybody with an excuse; these numbers are no ranks of the run."
    code, words = said[found[0]]
    if late and code == ENDED:
        return "Several had to be ended, and each may be the one that never came: return them all."
    if code == ENDED and not right:
        return NOBODY_WAITED
    if code == ENDED and any(re.search("imeout|Timed", words) for *_, words in ends):
        return ONLY_IF_NOBODY
    excuses = {0: WELL, ENDED: LAUNCHER}
    spoken = {LOST: NEIGHBOUR, RESET: NEIGHBOUR, WAITED: WAITER, WATCHDOG: WAITER}
    return excuses.get(code) or spoken.get(words, IT_WAS_FIRST)


check_culprit = Exercise(
    my_culprit,
    read_again='"Who is to blame?"',
    cases=[
        ([(0, 1, LOST), (1, -9, "")],),
        ([(0, 1, RESET), (2, 1, SHAPES), (1, ENDED, "")],),
        ([(0, -6, ""), (1, 1, LOST)],),
        ([(1, ENDED, ""), (0, 1, LOST), (3, 1, BAD), (2, 0, "")],),
        ([(0, 1, LOST), (1, 1, RESET), (2, 17, "")],),
        ([(0, ENDED, ""), (2, 1, BAD), (1, -9, "")],),
        ([(0, 0, ""), (1, 0, "")],),
        ([(1, 1, WAITED), (2, 1, RESET), (0, ENDED, "")],),
        ([(1, -6, WATCHDOG), (0, ENDED, ""), (2, -9, "")],),
        ([(0, ENDED, ""), (3, -6, WATCHDOG), (1, 0, ""), (2, ENDED, "")],),
        ([(1, 1, LOST), (0, 1, RESET), (2, ENDED, "")],),
    ],
    given=lambda ends: "; ".join(f"rank {r}: code {c}, {w!r}" for r, c, w in ends),
    play=blamed,
    same=lambda out, right: any(same(some, right[0]) for some in (out[0], out[0][::-1])),
    compared=lambda outcome, expected: expected_and_got(outcome[0], expected[0]),
    hint=why_not,
    wrong={
        NEIGHBOUR: [
            lambda ends: [rank for rank, code, _ in ends if code][:1],
            lambda ends: [rank for rank, _, words in ends if words][:1],
            ("Connection reset => Connection closed", "if any => if False and any"),
            "Connection reset => Connection closed",
        ],
        LAUNCHER: [
            lambda ends: [r for r, c, words in ends if c < 0 or re.search("Val|sha", words)][:1],
            "(0, -15) => (0,)",
        ],
        "A RuntimeError of its own is no excuse; a lost connection is.": (
            "Connection reset => RuntimeError"
        ),
        "Code -6 is any abort; only the watchdog's words say that a rank gave up waiting.": (
            "(0, -15) => (0, -6, -15)"
        ),
        ERROR: ["code not in (0, -15) => -15 != code < 0", "(0, -15) => (0, 1, -15)"],
        SOMEBODY.format(1): lambda ends: [],
        IT_WAS_FIRST: ["return [rank] => yield rank", "in ends: => in ends[::-1]:"],
        NOBODY: [lambda ends: my_culprit(ends) or None, lambda ends: my_culprit(ends) or -1],
        A_LIST: "return [rank] => return rank",
        WELL: "(0, -15) => (-15,)",
        WAITER: ["gave_up = True => return [rank]", '"timeout" => '],
        NEVER_CAME: "gave_up and code == -15 => False",
        ONLY_IF_NOBODY: "gave_up = True => return [rank for rank, code, _ in ends if code == -15]",
        "Several had to be ended": "code == -15] => code == -15][:1]",
        NOBODY_WAITED: "gave_up and => ",
        "these numbers are no ranks": [lambda ends: [77], "return [rank] => return [(rank, code)]"],
    },
    also_right=[
        ("return [rank] => yield rank; return", "return [rank for => yield from [rank for"),
        "code == -15] => code == -15][::-1]",
    ],
)

# 3. The batches of a run that goes on


def my_batches(data, size, step):
    """Draw the same orders as a run that was never killed, and pass over what it has read.

    The generator is seeded, so each epoch's order comes out as before; the first `step` batches
    are read and dropped. With large data one draws the order alone, from a seed of the epoch, and
    begins at the place `step % steps_in_an_epoch`.
    """
    seeded = torch.Generator().manual_seed(2)
    loader = torch.utils.data.DataLoader(data, size, shuffle=True, generator=seeded)
    read = 0
    while True:
        for batch in loader:
            if read >= step:
                yield batch
            read += 1


OWN = (
    "torch's own generator has moved: give the order a generator of its own, and the DataLoader "
    "too (generator=): else it draws a number from torch's in each epoch."
)
AGAIN = "It begins with the first batch again: samples are read twice, others never."
EPOCH_AGAIN = "The right epoch, but from its beginning: skip what the run has read of it."
FIRST_EPOCH = "The right place, but in the order of the first epoch: `step` counts all epochs."
NEW_ORDER = "Not the order of the run that was not killed: samples are read twice, others never."
ONE_OFF = "`step` steps are done: the next batch has that number, counted from 0."
ONE_ORDER = "Two of four epochs have the same order: shuffle anew for each."
TOGETHER = "The same samples are together in each epoch: shuffle the samples, not the batches."
SIZE = "size is {}, and a batch has {} samples."
UNSHUFFLED = "The samples come in the order of the data: shuffle them."
UNSEEDED = "Called twice, it gives two orders: seed the generator, with the same number each time."
NOT_EACH = "An epoch has to read each sample once; one of {} reads {}."
A_BATCH = "A batch is a list or a tuple of tensors, as a DataLoader or data[numbers] gives it."
NEXT_EPOCH = "The rest of the epoch is right; the next one begins with its first batch."
NO_ITERATOR = "Give back an iterator, as a function with `yield` does."


def read(attempt, data, size, step, batches):
    """The sample numbers of the first batches."""
    found = attempt(data, size, step)
    if not isinstance(found, Iterator):
        raise NotYet(f"got {short(found)}", NO_ITERATOR)
    found = list(islice(found, batches))
    if not all(isinstance(batch, list | tuple) for batch in found):
        raise NotYet(f"got {short(found[0])}", A_BATCH)
    found = [numbers(batch[0]) for batch in found]
    if sizes := {len(each) if isinstance(each, list) else 1 for each in found} - {size}:
        raise NotYet(SIZE.format(size, min(sizes)))
    if len(found) < batches:
        raise NotYet(f"It ends after {len(found)} batches: epochs follow one another for ever.")
    return found


def go_on(attempt, samples, size, step):
    """The batches from the beginning, twice, and from the step on; whose generator has moved."""
    data, epoch = TensorDataset(torch.arange(samples)), samples // size
    state = torch.get_rng_state()
    whole = read(attempt, data, size, 0, 4 * epoch)
    moved = not torch.equal(state, torch.get_rng_state())
    again = read(attempt, data, size, 0, 4 * epoch)
    found = read(attempt, data, size, step, epoch)
    moved_later = moved or not torch.equal(state, torch.get_rng_state())
    read(attempt, data, size, step, 37 * epoch + 1)  # for ever, as far as one can see
    return whole, again, found, moved, moved_later


def as_never_killed(outcome, samples, size, step):
    (whole, again, found, moved, moved_later), epoch = outcome, samples // size
    epochs = [[*chain(*whole[i : i + epoch])] for i in range(0, 4 * epoch, epoch)]
    for each in epochs:
        if sorted(each) != list(range(samples)):
            shifted = (whole[i : i + 3 * epoch] for i in range(1, epoch))
            one_off = sorted([*range(samples)] * 3) in (sorted(chain(*some)) for some in shifted)
            raise NotYet(ONE_OFF if one_off else NOT_EACH.format(samples, short(each)))
    if epochs[0] == sorted(epochs[0]):
        raise NotYet(UNSHUFFLED)
    if whole != again:
        raise NotYet(OWN if moved else UNSEEDED)
    if samples > 6:  # few samples may come in the same order by chance
        if len({*map(tuple, epochs)}) < 4:
            raise NotYet(ONE_ORDER)
        if {*map(frozenset, whole[:epoch])} == {*map(frozenset, whole[epoch : 2 * epoch])}:
            raise NotYet(TOGETHER)
    wanted = whole[step : step + epoch]
    if found != wanted:
        usual = [(AGAIN, 0), (EPOCH_AGAIN, step - step % epoch), (FIRST_EPOCH, step % epoch)]
        usual += [(ONE_OFF, step - 1), (ONE_OFF, step + 1)]
        fitting = [words for words, i in usual if found == whole[i : i + epoch]]
        rest = epoch - step % epoch
        fitting += [NEXT_EPOCH] * (found[:rest] == wanted[:rest])
        raise NotYet(f"expected {short(wanted)}", f"got {short(found)}", [*fitting, NEW_ORDER][0])
    if moved_later:
        raise NotYet(OWN)


def by_epochs(data, size, step):
    steps = len(data) // size
    for each in count(step):
        seeded = torch.Generator().manual_seed(7 + each // steps)
        order = torch.randperm(len(data), generator=seeded)
        at = each % steps * size
        yield data[order[at : at + size]]


def from_sampler(**own):
    def attempt(data, size, step):
        sampler = DistributedSampler(data, num_replicas=1, rank=0)
        loader = DataLoader(data, batch_size=size, sampler=sampler, **own)
        for epoch in count(step // len(loader)):
            sampler.set_epoch(epoch)
            done = max(0, step - epoch * len(loader))
            yield from islice(loader, done, None)

    return attempt


check_batches = Exercise(
    my_batches,
    read_again='"Where does the loader go on?"',
    cases=[(6, 2, 5), (6, 2, 3), (12, 3, 6), (40, 4, 25)],
    given="{} samples in batches of {}, and a run that goes on at step {}",
    play=go_on,
    look=as_never_killed,
    wrong={
        AGAIN: "read >= step => True",
        ONE_OFF: [
            "read >= step => read >= step - 1",
            "read >= step => read > step or not step",
            "read >= step => read > step",
        ],
        EPOCH_AGAIN: "read >= step => read >= step - step % len(loader)",
        FIRST_EPOCH: "read >= step => read >= step % len(loader)",
        NEW_ORDER: ("seed(2) => seed(2 + step)", "read >= step => read >= step % len(loader)"),
        ONE_ORDER: [
            "while True => while seeded.manual_seed(2)",
            "while True => while seeded.manual_seed(read // len(loader) % 2)",
        ],
        "An epoch has to read each sample once": "read += 1 => read += 1; break",
        OWN: ["torch.Generator().manual_seed(2) => torch.manual_seed(2)", from_sampler()],
        UNSEEDED: "().manual_seed(2) => (); seeded.seed()",
        UNSHUFFLED: "shuffle=True => shuffle=False",
        "It ends after": ["while True => if True", "while True => for _ in range(5)"],
        TOGETHER: (
            "read = 0 => read, loader = 0, [*loader]",
            "in loader => in sorted(loader, key=lambda _: torch.rand(1, generator=seeded))",
        ),
        SIZE.format(2, 1): "DataLoader(data, size => DataLoader(data, 1",
        NEXT_EPOCH: "read >= step => read >= step and read % len(loader) >= step % len(loader)",
        A_BATCH: "yield batch => yield batch[0]",
        NO_ITERATOR: [lambda *given: None, lambda data, size, step: DataLoader(data, size)],
    },
    errors={"had not returned": "step may exceed an epoch: what is left out is counted over all."},
    correct="Killed at any step, the run reads what it would have read.",
    also_right=[
        by_epochs,
        lambda data, size, step: islice(my_batches(data, size, 0), step, None),
        from_sampler(generator=torch.Generator()),
    ],
)

# 4. How often to save


def my_lost_share(every_s, save_s, hosts, failure_s):
    """A save is paid once in each interval; a failure loses half an interval on average.

    With more hosts failures come more often: the time between two is that of one host, divided by
    their number. Both costs are shares of the time, so they add up.
    """
    return save_s / every_s + every_s / 2 / (failure_s / hosts)


def exactly(every_s, save_s, hosts, failure_s):
    """For failures at random, also during a save and during work that is done again."""
    between = failure_s / hosts
    return between * expm1((every_s + save_s) / between) / every_s - 1


check_lost_share = Exercise(
    my_lost_share,
    read_again='"How often should a run save?"',
    cases=[(101, 5, 1, 10_007), (75, 4, 30, 10_001), (3601, 60, 107, 10_000_000)],
    given="a save every {} s that takes {} s, {} hosts, each failing once in {} s",
    hint="What does a save cost of each interval, and what does a failure lose of the time between "
    "two failures?",
    wrong={
        "A failure comes in the middle of an interval on average: half of it is lost.": " / 2 => ",
        "More hosts fail more often: the time between two failures is divided by their number.": [
            " / hosts => ",
            " / hosts =>  * hosts",
        ],
        "The saves take their time, too: save_s of every every_s.": "save_s / every_s + => ",
        "Work that a failure loses has to be done again: count it, too.": (
            " + every_s / 2 / (failure_s / hosts) => "
        ),
        "// drops what does not divide: use /.": ["/ 2 => // 2", "/ hosts => // hosts"],
        "First order is asked: each failure by itself, and none of them during a save.": [
            exactly,
            "+ every_s / 2 => + (every_s + save_s) / 2",
            "+ every_s / 2 => + (every_s / 2 + save_s)",
        ],
        "A share of the work is asked, not of all the time: saves are no work.": (
            lambda *given: 1 - 1 / (1 + my_lost_share(*given))
        ),
        "save_s goes to every_s of work: divide by every_s alone.": (
            "save_s / every_s => save_s / (every_s + save_s)"
        ),
        "A share is asked, not per cent.": lambda *given: 100 * my_lost_share(*given),
        "A share of the time is asked, not the best interval.": (
            lambda every, save, n, fails: (2 * save * fails / n) ** 0.5
        ),
        "Hosts save side by side: a save takes save_s, however many they are.": (
            "return save_s => return hosts * save_s"
        ),
    },
)
