"""Exercises of page `start_here`: two devices, a clock, a worker."""

import contextlib
import inspect
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from numbers import Real

import torch

from mpcourse.devices.devices import Device, get_devices, synchronize
from mpcourse.devices.streams import StreamContext
from mpcourse.exercises.exercise import (
    NO_RETURN,
    Exercise,
    NotYet,
    first_difference,
    raised,
    short,
)


def in_time(wait, seconds=1):
    """Whether `wait(seconds)` comes true in that time; a pause of the machine is one tick of it."""
    return any(wait(0.1) for _ in range(10 * seconds))


# 1. Two devices at the same time


def my_both_at_once(devices, half_a, half_b):
    """Hand both jobs over before you wait for one.

    `run` hands over and waits, so a second `run` begins when the first has ended.
    """
    result_a = devices[0].submit(half_a)
    result_b = devices[1].submit(half_b)
    first_half, second_half = result_a.result(), result_b.result()
    return [a + b.to(a.device) for a, b in zip(first_half, second_half, strict=True)]


def two_jobs(attempt):
    """What came of two jobs that note where they run and wait a second to meet each other."""
    devices = get_devices(2)
    begun, ran, met = [threading.Event(), threading.Event()], ([], []), []

    def half(own, gradients):
        here = [f"on devices[{k}]" for k in (0, 1) if devices[k].worker.is_here()]
        ran[own].append(*here or ["elsewhere"])
        begun[own].set()
        met.append(in_time(begun[1 - own].wait))
        return [torch.tensor(values, device=devices[own].device) for values in gradients]

    half_a, half_b = ([1.0, 2.0], [[3.0]]), ([10.0, 20.0], [[30.0]])
    found = attempt(devices, lambda: half(0, half_a), lambda: half(1, half_b))
    if inspect.iscoroutine(found):
        found.close()
        raise NotYet(ASYNC)
    synchronize(devices)  # work that was handed over, but not waited for
    if isinstance(found, list | tuple):
        found = [each if torch.is_tensor(each) else type(each).__name__ for each in found]
    return {
        "half_a ran": ", then ".join(ran[0]) or "never",
        "half_b ran": ", then ".join(ran[1]) or "never",
        "both under way at the same time": all(met),
        "returned": found,
    }


SUMS = "Return a list: each tensor of half A plus the matching one of half B."
PLACES = "Run half_a once, on devices[0], and half_b once, on devices[1], at the same time."
RESULTS = "A Result is no value yet: ask each for its value with result()."
ASYNC = "An async function only prepares its work, and nothing ran: leave out async."
MOVE = "Half B's tensors lie on the second device, as on two GPUs: bring each over, b.to(a.device)."
ADDED = "[a + b.to(a.device) for a, b in zip(first_half, second_half, strict=True)]"

check_both_at_once = Exercise(
    my_both_at_once,
    read_again='"One batch, two devices: how much faster?"',
    given="two jobs, each of which waits a second for the other to begin",
    play=two_jobs,
    compared=first_difference,
    hint=lambda found, right: (
        SUMS if found | {"returned": 0} == right | {"returned": 0} else PLACES
    ),
    correct="Both were under way at the same time, each on its device, and were added.\n"
    "On two GPUs, half B's tensors have to be brought over first: b.to(a.device).",
    errors={
        "runs|'function' object is not": "Hand over half_a itself.",
        "Result|'method'": RESULTS,
        "'submit'": PLACES,
        "must be Tensor|equal size|number of dimensions|'int' and '(list|tuple)'": SUMS,
        "on the same device": MOVE,
    },
    wrong={
        "One began after the other's end: which call waited?": [
            (".submit => .run", ".result() => "),
            (".submit => .run", ".result() => ", f"{ADDED} => first_half + second_half"),
        ],
        "Hand over half_a itself.": ["(half_a) => (lambda: half_a)", "(half_a) => (half_a())"],
        "Results are no values yet: use result().": f"{ADDED} => [result_a, result_b]",
        "Side by side is not added: add the matching ones.": f"{ADDED} => first_half + second_half",
        "Do not halve the sum: both are parts of it.": f"{ADDED} => [each / 2 for each in {ADDED}]",
        PLACES: ["devices[1] => devices[0]", "submit(half_b) => submit(half_a)", "s[0].s => s.s"],
        RESULTS: ".result() => .wait()",
        SUMS: [
            f"{ADDED} => (first_half, second_half)",
            f"{ADDED} => torch.add(first_half, second_half)",
            f"{ADDED} => torch.stack({ADDED})",
            f"{ADDED} => torch.cat({ADDED})",
        ],
        ASYNC: "def my => async def my",
    },
    also_right=[
        "[a + => [a.add_(b) if a.device == b.device else a +",
        "b.to(a.device) => b.to(devices[0].device)",
        "a + b.to(a.device) => sum((a.cpu(), b.cpu()))",
        f"{ADDED} => tuple(torch.add(a, b.to(a)) for a, b in zip(first_half, second_half))",
    ],
)

# 2. A clock


def my_time(device, fn):
    """Wait for older work, read the clock, hand over, wait, read it again.

    Without the first wait the clock counts older work, without the last it misses queued kernels.
    """
    synchronize([device])
    start = time.perf_counter()
    device.submit(fn).result()
    synchronize([device])
    return time.perf_counter() - start


NAP_S, OLDER_S = 0.2, 0.4


class QueueingDevice(Device):
    """A stand-in for a GPU, whose work goes on after the call has returned."""

    queue, queued = ThreadPoolExecutor(1), []  # of all, for all are equal and have one worker

    def later(self, fn, *args):
        """Queue `fn(*args)` and return at once, as a call queues a GPU's kernels."""
        self.queued.append(self.queue.submit(fn, *args))

    def submit(self, fn, /, *args, **kwargs):
        """As a device's; `synchronize` waits in the worker for what was queued."""
        if isinstance(getattr(fn, "__self__", None), StreamContext):  # of `synchronize`
            return super().submit(lambda: [future.result() for future in self.queued])
        return super().submit(fn, *args, **kwargs)


stand_in = QueueingDevice(0, torch.device("cpu"), "cpu core", "a device that queues")

ROUNDED = "that is rounded, or a constant: return the difference of two readings, as it is."
EARLY = "the clock was read before the work had ended."
STILL = " Or does your clock stand still in a nap, as process_time does?"
OLDER = "The device was busy with older work: wait before the first reading too."
IDLE = "The device was idle, so this is not fn's: between the readings only fn and waits belong."
TWICE = "a warm-up is a run too, also one of Timer's; hand it over once, with device.submit(fn)."
SLEPT = "nobody knows how long older work takes; synchronize waits for as long as it needs."
ALONE = "Return the seconds alone, without what fn returned."
ANY_DEVICE = "torch.cuda.synchronize waits for GPUs only, synchronize([device]) for any device."
GPUS = " This device queues, so run returns early: synchronize([device]) before both readings."


def napping(attempt, kind, given):
    """What the attempt measured of a nap, what was seen of it, and how long all of it took."""
    device = stand_in if kind == "queues" else get_devices(1)[0]
    in_place, naps = [], []

    def sleep():
        start = time.perf_counter()
        time.sleep(NAP_S if kind == "idle" else NAP_S / 2)
        naps.append(time.perf_counter() - start)

    def nap():
        in_place.append(device.name in threading.current_thread().name)
        if kind == "fails":
            raise ZeroDivisionError
        device.later(sleep) if kind == "queues" else sleep()

    if kind in ("busy", "queues"):
        (device.later if kind == "queues" else device.submit)(time.sleep, OLDER_S)
    start, measured = time.perf_counter(), "its error"
    with contextlib.suppress(ZeroDivisionError):
        measured = attempt(device, nap)
    whole = time.perf_counter() - start
    synchronize([device])  # work that was handed over, but not waited for
    return measured, in_place, naps, whole


def look_at_clock(found, kind, given):
    measured, in_place, naps, whole = found
    if kind == "fails":
        if measured != "its error":
            raise NotYet(f"got {short(measured)}, and no error: wait with result(), catch nothing.")
        return
    seconds = measured.item() if hasattr(measured, "item") else measured
    gpus = GPUS * (kind == "queues")
    if len(in_place) > 1:
        raise NotYet(f"fn ran {len(in_place)} times: {TWICE}")
    if in_place != [True]:
        raise NotYet("fn runs once, on the device: hand it over once, with device.submit(fn).")
    if not isinstance(seconds, Real) or not abs(seconds) < 1e9:
        why = ALONE if isinstance(measured, tuple | list) else NO_RETURN * (measured is None)
        raise NotYet(f"expected a number of seconds, got {short(measured)}", why)
    if seconds < 0:
        raise NotYet(f"got {seconds}: take the first reading from the second.")
    if seconds == round(seconds, 3):
        raise NotYet(f"got {seconds}: {ROUNDED}")
    if seconds < 0.9 * naps[0]:
        raise NotYet(f"got {seconds}: {EARLY}{gpus}{STILL * (kind == 'idle' and whole > naps[0])}")
    if seconds > 1.01 * whole:
        raise NotYet(f"got {seconds}, but your function took {whole:.3f}: return seconds.")
    if seconds > naps[0] + OLDER_S / 2:
        raise NotYet(f"got {seconds}. {IDLE if kind == 'idle' else OLDER}{gpus}")
    if kind == "idle" and whole - seconds > OLDER_S / 2:
        raise NotYet(f"your function took {whole:.1f} seconds: {SLEPT}")


TAKEN = "time.perf_counter() - start"
NO_LAST_WAIT = "synchronize([device])\n    return => return"

check_time = Exercise(
    my_time,
    read_again='"When may you read the clock?"',
    cases=[
        ("idle", "a device and a nap of 0.2 seconds"),
        ("busy", "a device, busy with 0.4 seconds of older work, and a nap"),
        ("queues", "a device that queues, as GPUs do, older work in its queue, and a nap"),
        ("fails", "a device and a function that raises an error"),
    ],
    given="{1}",
    play=napping,
    look=look_at_clock,
    errors={
        "a worker runs functions": "Hand over fn itself, not what fn() returned.",
        "(?i)cuda|nvidia": ANY_DEVICE,
    },
    correct="A nap was measured as such on three devices, and an error came out.",
    wrong={
        EARLY: (".result() => ", NO_LAST_WAIT),
        GPUS: NO_LAST_WAIT,
        ANY_DEVICE: 'synchronize([device]) => torch.cuda.synchronize("cpu")',
        STILL: "perf_counter => process_time",
        "take the first reading from the second": f"{TAKEN} => start - time.perf_counter()",
        OLDER: "synchronize([device])\n    start => start",
        "over once": "device.submit(fn).result() => fn()",
        TWICE: "start = => device.run(fn); start =",
        IDLE: "    return => \n    time.sleep(0.3)\n    return",
        "and no error": [".result() => ", ".result() => .exception()"],
        SLEPT: "synchronize([device])\n    start => time.sleep(0.5)\n    start",
        ROUNDED: [f"{TAKEN} => {w}" for w in (f"round({TAKEN}, 1)", f"max(0.2, {TAKEN})", "0.2")],
        NO_RETURN: f"return {TAKEN} => print({TAKEN})",
        ALONE: (
            "device.submit => value = device.submit",
            f"return {TAKEN} => return value, {TAKEN}",
        ),
        "return seconds": f"{TAKEN} => ({TAKEN}) * 1000",
    },
    also_right=["[device] => ", "submit(fn).result() => run(fn)"],
)

# 3. A worker


def my_worker():
    """The thread catches what a job raises and puts it into the box, marked as an error.

    The caller looks at it and returns or raises. An error that a job returns is only a value.
    """
    jobs = queue.SimpleQueue()

    def serve():
        while True:
            fn, box = jobs.get()
            try:
                box.put((fn(), None))
            except Exception as error:
                box.put((None, error))

    def hand_over(fn):
        box = queue.SimpleQueue()
        jobs.put((fn, box))

        def wait():
            value, error = box.get()
            if error is not None:
                raise error
            return value

        return wait

    threading.Thread(target=serve, daemon=True).start()
    return hand_over


LATE, WAITER = "had not returned after a second", "a thread of the check that waits"


def came_from(wait, seconds=1):
    """How `wait()` ended, and what it gave; in a thread of its own, for it may never return."""
    found = [(LATE, None)]

    def waiting():
        try:
            found.append(("returned", wait()))
        except Exception as error:
            found.append(("raised", error))

    thread = threading.Thread(target=waiting, daemon=True, name=WAITER)
    thread.start()
    in_time(lambda tick: thread.join(tick) or len(found) > 1, seconds)
    return found[-1]


def outcomes_of(waits, own_error=None):
    """In words, up to the first that comes too late."""
    words = []
    for how, what in map(came_from, waits):
        if how == LATE:
            return [*words, LATE]
        alike = how == "raised" and repr(what) == repr(own_error)
        own = "what the job raised" if what is own_error else "a copy of what the job raised"
        words.append(f"{how} {own if alike else short(what)}")
    return words


def came_of(*jobs):
    return lambda hand_over, _: outcomes_of(map(hand_over, jobs))


def nap_then(value, seconds):
    return lambda: time.sleep(seconds) or value


def without_loops(hand_over, _):
    """What a job gives that naps; neither its worker nor who waits for it may run a loop."""
    # on a busy machine, a loop gets a part of a core
    wait, used_s = hand_over(nap_then(42, 0.2)), []

    def waiting():
        start = time.thread_time()
        value = wait()
        used_s.append(time.thread_time() - start)
        return value

    words = outcomes_of([waiting])
    if words != ["returned 42"]:
        return words
    _, start_s = came_from(hand_over(time.thread_time))
    time.sleep(0.2)
    _, end_s = came_from(hand_over(time.thread_time))
    if {type(start_s), type(end_s)} == {float} and end_s - start_s > MOST_USED_S:
        raise NotYet(POLLS)
    if used_s[0] > MOST_USED_S:
        raise NotYet(WAIT_POLLS)
    return words


def own_thread(_, attempt):
    waits = []  # in a thread that is no daemon, as a notebook's is none: a new one is what it is
    maker = threading.Thread(
        target=lambda: waits.append(attempt()(threading.current_thread)), name=WAITER, daemon=False
    )
    maker.start()
    maker.join()
    _, thread = came_from(waits[0])
    own = getattr(thread, "name", WAITER) not in (WAITER, threading.current_thread().name)
    return {"own thread": own, "daemon": getattr(thread, "daemon", None)}


def behind_a_long_job(hand_over, attempt):
    attempt()  # a second worker, which gets none of these jobs
    begun, may_go, order = threading.Event(), threading.Event(), []
    waits = [hand_over(lambda: begun.set() or in_time(may_go.wait) or order.append("gave up"))]
    if order:  # the job has waited in vain for what comes after this call
        raise NotYet(WAITED)
    in_time(begun.wait)
    waits += [hand_over(lambda n=n: order.append(n) or n) for n in (1, 2, 3)]
    time.sleep(0.2)
    before = list(order)
    may_go.set()
    return {"done before the long job": before, "wait": outcomes_of(waits[::-1]), "order": order}


def longer_job(hand_over, _):
    how, what = came_from(hand_over(nap_then(43, 1.2)), 3)  # longer than the timeout that many take
    if isinstance(what, queue.Empty):
        raise NotYet(f"it raised {short(what)}", NO_TIMEOUT)
    return [how if how == LATE else f"{how} {short(what)}"]


def after(kind):
    """What comes of a job that raises such an error, and whether the same thread runs the next."""

    def failing(hand_over, _):
        error = kind("a job's")

        def fail():
            raise error

        _, before = came_from(hand_over(threading.current_thread))
        jobs = fail, lambda: threading.current_thread() is before
        words = outcomes_of(map(hand_over, jobs), error)
        if words[-1] == "returned False" and isinstance(before, threading.Thread):
            if not in_time(lambda tick: before.join(tick) or not before.is_alive()):
                raise NotYet(OWN_QUEUE)
        return words

    return failing


def failing_first(_, attempt):
    """What comes of a new worker's first two jobs, each of which raises an error of its own."""
    hand_over, errors = attempt(), [KeyError("the first"), KeyError("the second")]

    def fail(error):
        raise error

    waits = [hand_over(partial(fail, error)) for error in errors]
    return [outcomes_of([wait], error)[0] for wait, error in zip(waits, errors, strict=True)]


def meeting_of_two(hand_over, attempt):
    barrier = threading.Barrier(2)
    return outcomes_of([hand(lambda: barrier.wait(1.0) >= 0) for hand in (hand_over, attempt())])


def at_work(attempt, given, trial, hint):
    died, hook = [], threading.excepthook
    threading.excepthook = lambda args: died.append(raised(args.exc_value))  # said, not printed
    try:
        hand_over = attempt()
        if not callable(hand_over):
            raise NotYet(f"expected the function hand_over, got {short(hand_over)}")
        outcome = trial(hand_over, attempt)
    finally:
        threading.excepthook = hook
    if died and LATE in outcome:
        hint = LEFT if "raised" in outcome[0] else hint * (hint != ITS_VALUE)
        raise NotYet(f"wait() {LATE}. {DIED} {died[0]}.", hint)
    return outcome


MOST_USED_S = 0.02  # a thread that waits uses less than a thousandth of this, one in a loop all
GOES_ON = "Restart the kernel: such a thread goes on, and slows all that you time."
POLLS = f"While there is no job, your worker runs a loop, on a core: let get wait. {GOES_ON}"
WAIT_POLLS = "While it waits, wait runs a loop, on a core and with the GIL: let the box's get wait."
Unforeseen = type("Unforeseen", (Exception,), {})  # errors which no attempt can name
DIED = "The worker's thread has ended:"
LEFT = "The thread has ended: no error may leave the loop."
ITS_VALUE = "wait waits for the value and returns it."
NO_TIMEOUT = "wait waits for as long as the job takes: no timeout."
DAEMON = "The worker's own thread, a daemon (daemon=True), runs the jobs."
IN_ORDER = "A worker: own queue, one thread; it runs each job once, in order; wait gives its value."
MARKED = "0, None, errors, tuples are values too: mark beside the value whether fn() has raised."
POOL = "Its thread is no daemon, as a pool's is none: start your own, with daemon=True."
UNCALLED = (
    "Hand the thread serve, not serve(), which never returns. Or does hand_over wait on a queue?"
)
SIGNATURES = "Who takes what? It is my_worker(), then hand_over(fn), then wait()."
THE_ERROR = (
    "Catch what fn() raises, put it into the box (inside except: after it, its name is gone), and "
    "raise that very error in that job's wait alone."
)
SAME = "Each error must leave the same thread running: start no new one."
OWN_QUEUE = "Two threads take from one queue: each worker needs its own, made inside my_worker."
WAITED = "hand_over waited until the job was done: only wait may wait."
OWN_BOX = "An error goes into its own job's box; if the first job raises, no value is set yet."

TAKE, GOT = "            fn, box = jobs.get()", "            value, error = box.get()"
LOOP = "            end = time.perf_counter() + 0.4  # its thread goes on in this process\n"
LOOP += "            while {}.empty() and time.perf_counter() < end:\n                pass\n"

check_worker = Exercise(
    my_worker,
    read_again='"A worker in a few lines"',
    cases=[
        # quick ones first: known wrong answers are played on all up to the one that fails
        ("a job that naps and returns 42", came_of(nap_then(42, 0.05)), ITS_VALUE),
        ("a job that says where it runs", own_thread, DAEMON),
        ("jobs that return 0, None, an error, ()", came_of(int, [].clear, KeyError, tuple), MARKED),
        ("a job that raises an error, then another job", after(IndexError), THE_ERROR),
        ("the same with an error class of its own", after(Unforeseen), "Catch all: Exception."),
        ("a new worker's first two jobs, which raise two errors", failing_first, OWN_BOX),
        ("a long job and three behind it", behind_a_long_job, IN_ORDER),
        ("a job that naps, then a pause without jobs", without_loops, ITS_VALUE),
        ("two workers whose jobs meet", meeting_of_two, IN_ORDER),
        ("a longer job, which returns 43", longer_job, NO_TIMEOUT),
    ],
    given="{0}",
    play=at_work,
    hint="{2}",
    errors={
        "had not returned": UNCALLED,
        "positional arg": SIGNATURES,
        ": a job's": "hand_over has to return at once.",
    },
    correct="It runs jobs in order, beside another worker, and survives an error.",
    wrong={
        "Is the thread started? Or has it died?": ".start() => ",
        SIGNATURES: ["my_worker(): => my_worker(fn):", "return hand_over => return serve"],
        "Return the function wait, uncalled; the caller calls it.": "return wait => return wait()",
        "wait returns the value, not the pair.": "return wait => return box.get",
        ITS_VALUE: "box.get() => box.get_nowait()",
        "That is the job itself: the thread has to call fn().": "((fn(), None)) => ((fn, None))",
        NO_TIMEOUT: ["box.get() => box.get(timeout=0.5)", "box.get() => box.get(timeout=1)"],
        DAEMON: "jobs.put((fn, box)) => box.put((fn(), None))",
        POOL: lambda: (lambda pool: lambda fn: pool.submit(fn).result)(ThreadPoolExecutor(1)),
        UNCALLED: "target=serve => target=serve()",
        "hand_over has to return at once.": "return wait => value = wait(); return lambda: value",
        "Each job needs a box of its own.": (
            "(fn):\n        box = queue.SimpleQueue() => (fn, box=queue.SimpleQueue()):"
        ),
        IN_ORDER: ["SimpleQueue()\n\n => LifoQueue()\n\n", "while True => if True"],
        MARKED: [
            "error is not None => value is None",
            "error is not None => not value",
            "((fn(), None)) => (got if type(got := fn()) is tuple else (got, None))",
        ],
        "The error is returned: raise it.": "raise error => return error",
        LEFT: "box.put((N => return box.put((N",
        THE_ERROR: [
            "None, error => None, None",
            "box.put((None, error)) => pass",
        ],
        DIED: "except Exception => except KeyError",
        SAME: "error)) => error)); threading.Thread(target=serve).start(); return",
        OWN_QUEUE: (
            "my_worker(): => my_worker(jobs=queue.SimpleQueue()):",
            "    jobs = queue.SimpleQueue()\n\n => ",
        ),
        WAITED: f"        def wait():\n{GOT} => {GOT[4:]}\n\n        def wait():",
        OWN_BOX: (
            "jobs = queue.SimpleQueue() => jobs, errors = queue.SimpleQueue(), []",
            "box.put((None, error)) => errors.append(error) or box.put((None, error))",
            "raise error => raise errors.pop()",
        ),
        POLLS: f"{TAKE} => {LOOP.format('jobs')}{TAKE}",
        WAIT_POLLS: f"{GOT} => {LOOP.format('box')}{GOT}",
        "a copy of what the job raised": "raise error => raise type(error)(*error.args)",
        "Catch all: Exception.": "box.put((N => isinstance(error, IndexError) and box.put((N",
    },
    also_right=["except Exception => except BaseException"],
)
