"""Exercises of page `start_here`: two devices, a clock, a worker."""

import contextlib
import math
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from numbers import Number

import torch

from mpcourse.devices.devices import Device, get_devices, synchronize
from mpcourse.devices.streams import StreamContext
from mpcourse.exercises.exercise import Exercise, NotYet, expected_and_got, short

# 1. Two devices at the same time


def my_both_at_once(devices, half_a, half_b):
    """Hand both jobs over before you wait for one.

    `run` hands over and waits, so a second `run` begins when the first has ended.
    """
    result_a = devices[0].submit(half_a)
    result_b = devices[1].submit(half_b)
    first_half, second_half = result_a.result(), result_b.result()
    return [a + b.to(a.device) for a, b in zip(first_half, second_half, strict=True)]


ONCE = "{} ran {} times; once is asked for."
ITS_PLACE = "{} is for devices[{}]: hand the function itself to that device."
TURNS = "The second began when the first had ended: hand both over before you wait for one."
RESULTS = "A Result is no value yet: ask each for its value with result()."
UNCALLED = "Hand over the function itself, half_a, without calling it."
SIDE_BY_SIDE = "Those are the tensors of both, side by side: add the matching ones."
DIVIDED_ALREADY = "Each half is divided by all rows already: add, and divide no more."
ONE_IS_MISSING = "One half is missing: add both."
A_LIST = "Return a list: each tensor of half A plus the matching one of half B."


def two_jobs(attempt):
    """What came of two jobs that note where they run and wait a second to meet each other."""
    devices = get_devices(2)
    begun, in_place, met = [threading.Event(), threading.Event()], ([], []), []

    def half(own, values):
        in_place[own].append(devices[own].worker.is_here())
        begun[own].set()
        met.append(begun[1 - own].wait(1.0))
        return [torch.tensor(value, device=devices[own].device) for value in values]

    half_a, half_b = ([1.0, 2.0], [[3.0]]), ([10.0, 20.0], [[30.0]])
    found = attempt(devices, lambda: half(0, half_a), lambda: half(1, half_b))
    synchronize(devices)  # work that was handed over, but not waited for
    for own, there in enumerate(in_place):
        name = ("half_a", "half_b")[own]
        if len(there) != 1:
            raise NotYet(ONCE.format(name, len(there)))
        if not there[0]:
            raise NotYet(ITS_PLACE.format(name, own))
    if not all(met):
        raise NotYet(TURNS)
    if isinstance(found, list | tuple) and any(isinstance(each, Future) for each in found):
        raise NotYet(RESULTS)
    return found


def by_threads(devices, half_a, half_b):
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda device, half: device.run(half), devices, (half_a, half_b))
        return tuple(sum(tensors) for tensors in zip(*parts, strict=True))


ADDED = "[a + b.to(a.device) for a, b in zip(first_half, second_half, strict=True)]"

check_both_at_once = Exercise(
    my_both_at_once,
    read_again='"One batch, two devices: how much faster?"',
    given="two jobs, each of which waits a second for the other to begin",
    play=two_jobs,
    hint=A_LIST,
    correct="Both were under way at the same time, each on its device, and were added.",
    errors={
        "a worker runs functions": UNCALLED,
        "'(Result|method)'": RESULTS,
    },
    wrong={
        TURNS: [
            (".submit => .run", ".result() => "),
            "result_b = => result_a.result(); result_b =",
        ],
        ITS_PLACE.format("half_a", 0): [
            ("devices[0] => devices[-1]", "devices[1] => devices[0]"),
            lambda devices, half_a, half_b: [
                a + b for a, b in zip(half_a(), half_b(), strict=True)
            ],
        ],
        ITS_PLACE.format("half_b", 1): "devices[1] => devices[0]",
        ONCE.format(
            "half_a", 2
        ): "first_half, second_half = => devices[0].run(half_a); first_half, second_half =",
        ONCE.format("half_a", 0): lambda devices, half_a, half_b: None,
        UNCALLED: "submit(half_a) => submit(half_a())",
        RESULTS: [".result() => ", f"{ADDED} => [result_a, result_b]"],
        SIDE_BY_SIDE: f"{ADDED} => first_half + second_half",
        "They are not added yet.": f"{ADDED} => (first_half, second_half)",
        DIVIDED_ALREADY: "[a + b.to(a.device) => [(a + b.to(a.device)) / 2",
        ONE_IS_MISSING: [f"{ADDED} => first_half", f"{ADDED} => second_half"],
    },
    also_right=[by_threads, "[a + => [a.add_(b) if a.device == b.device else a +"],
)

# 2. A clock


def my_time(device, fn):
    """Wait for older work, read the clock, hand over, wait, read it again.

    Without the second wait the clock shows how long handing over took; without the first it counts
    what the device still had to do. On a GPU `result()` is not enough: the kernels may still be
    queued. Calling `fn()` here would measure the notebook's own thread, not the device.
    """
    synchronize([device])
    start = time.perf_counter()
    device.submit(fn).result()
    synchronize([device])
    return time.perf_counter() - start


def as_number(value):
    """A number in whatever form it comes: float, fraction, numpy's or torch's; None for others."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    fits = isinstance(value, Number) and not isinstance(value, bool | complex)
    return float(value) if fits else None


NAP_S = 0.2
OLDER_S = 0.4


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

EARLY = "the clock was read before the work had ended."
QUEUED = (
    " On this device run returns early: synchronize before that reading too,"
    " and hand synchronize the device that you were given."
)
NEVER = "fn was never called."
ELSEWHERE = "fn ran in another thread; hand it to the device with device.submit(fn)."
TIMES = "fn ran {} times; one is asked for."
A_NUMBER = "expected a number of seconds, got {}"
ROUNDED = "that is rounded; return the difference of the two readings as it is."
BACKWARDS = "subtract the first reading from the second."
MILLISECONDS = "give seconds, not milliseconds."
LONGER = "but your function returned after"
SILENT = "a time of work that failed. Ask for the result with result(): its error comes out."
OLDER = "The device was busy with older work: wait for it before the first reading too."


def napping(attempt, kind):
    """What the attempt measured of a function that takes a known time, and what was seen of it."""
    if kind == "fails":
        with contextlib.suppress(ZeroDivisionError):
            return short(attempt(get_devices(1)[0], lambda: 1 / 0))
        return None
    device = device_that(kind)
    threads, naps = [], []

    def sleep():
        start = time.perf_counter()
        time.sleep(NAP_S)
        naps.append(time.perf_counter() - start)

    def nap():
        threads.append(threading.current_thread().name)
        if kind != "queues":
            return sleep()
        device.later(sleep)

    if kind == "busy":
        device.submit(time.sleep, OLDER_S)
    if kind == "queues":
        device.later(time.sleep, OLDER_S)
    start = time.perf_counter()
    measured = attempt(device, nap)
    whole = time.perf_counter() - start
    synchronize([device])  # work that was handed over, but not waited for
    return as_number(measured), short(measured), whole, threads, naps


def device_that(kind):
    return stand_in if kind == "queues" else get_devices(1)[0]


def look_at_clock(found, kind):
    if kind != "fails":
        return judge_clock(*found, device_that(kind), kind)
    if found is not None:
        raise NotYet(f"got {found}: {SILENT}")


def judge_clock(seconds, got, whole, threads, naps, device, kind):
    if not threads:
        raise NotYet(NEVER)
    if device.name not in threads[0]:
        raise NotYet(ELSEWHERE)
    if len(threads) > 1:
        raise NotYet(TIMES.format(len(threads)))
    if seconds is None or math.isnan(seconds):  # nan is neither too short nor too long
        raise NotYet(A_NUMBER.format(got))
    if seconds == round(seconds, 3):
        raise NotYet(f"got {got}: {ROUNDED}")
    if seconds < 0:
        raise NotYet(f"got {got}: {BACKWARDS}")
    if seconds < 0.9 * naps[0]:
        raise NotYet(f"got {got}: {EARLY}{QUEUED * (kind == 'queues')}")
    if seconds > 100 * whole:
        raise NotYet(f"got {got}: {MILLISECONDS}")
    if seconds > 1.01 * whole:
        raise NotYet(f"got {got}, {LONGER} {whole:.3f} s.")
    if seconds > naps[0] + OLDER_S / 2:
        raise NotYet(f"got {got}. {OLDER}{QUEUED * (kind == 'queues')}")


def by_all_devices(device, fn):
    synchronize()
    start = time.monotonic_ns()
    device.run(fn)
    synchronize([device])
    return (time.monotonic_ns() - start) / 1e9


TAKEN = "time.perf_counter() - start"
NO_LAST_WAIT = "synchronize([device])\n    return => return"

check_time = Exercise(
    my_time,
    read_again='"You handed the work over. What did the clock see?"',
    cases=[("idle",), ("busy",), ("queues",), ("fails",)],
    given=lambda kind: {
        "idle": f"a device and a function that naps {NAP_S:g} seconds",
        "busy": f"a device, busy with {OLDER_S:g} seconds of older work, and a nap",
        "queues": "a device that queues, as GPUs do, older work in its queue, and a nap",
        "fails": "a device and a function that raises an error",
    }[kind],
    play=napping,
    look=look_at_clock,
    correct="A nap was measured as such on three devices, and an error came out.",
    wrong={
        EARLY: [
            (".result() => ", NO_LAST_WAIT),
            f"{TAKEN} => ({TAKEN}) / 2",
            f"{TAKEN} => time.process_time() * 1e-9",
        ],
        QUEUED: [NO_LAST_WAIT, (".result() => ; device.run(lambda: None)", NO_LAST_WAIT)],
        ROUNDED: [f"{TAKEN} => round({TAKEN}, 1)", f"{TAKEN} => round({TAKEN}, 3)"],
        BACKWARDS: f"{TAKEN} => start - time.perf_counter()",
        MILLISECONDS: f"{TAKEN} => ({TAKEN}) * 1000",
        ELSEWHERE: "device.submit(fn).result() => fn()",
        LONGER: f"{TAKEN} => ({TAKEN}) * 2",
        TIMES.format(2): "device.submit => device.run(fn); device.submit",
        A_NUMBER.format("None"): "return time => time",
        A_NUMBER.format("nan"): f"{TAKEN} => math.nan",
        NEVER: lambda device, fn: 0.2,
        OLDER: "synchronize([device])\n    start => start",
        f"{OLDER}{QUEUED}": "synchronize([device])\n    start => device.run(int)\n    start",
        SILENT: ".result() => ",
        "it raised TypeError": "submit(fn) => submit(fn, 1)",
    },
    also_right=[by_all_devices, "[device] => ", "submit(fn).result() => run(fn)"],
)

# 3. A worker


def my_worker():
    """The thread catches what a job raises and puts it into the box, marked as an error.

    The caller looks at the mark and returns or raises. Catching outside the loop would end the
    thread. An error that a job returns is a value, so the mark cannot be its type.
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


def by_future():
    pool = ThreadPoolExecutor(1)
    return lambda fn: pool.submit(fn).result


def which_thread(_, attempt):
    made = []  # in a thread that is no daemon, as a notebook's is none: a new one is what it is
    maker = threading.Thread(target=lambda: made.append(attempt()), daemon=False)
    maker.start()
    maker.join()
    thread = made[0](threading.current_thread)()
    if thread is threading.current_thread():
        return "the caller's thread"
    if not thread.daemon:
        raise NotYet("Python cannot end while this thread waits for jobs.", DAEMON)
    return "a thread of its own"


def when_it_returns(hand_over, _):
    go = threading.Event()
    wait = hand_over(lambda: go.wait(1.0))
    go.set()
    return "it waited for the job" if wait() is False else "it returned at once"


def values_in_order(hand_over, _):
    waits = [hand_over(lambda number=number: number) for number in range(3)]
    return [wait() for wait in reversed(waits)][::-1]


class Held:
    """A job that tells when it begins, and in which thread, and lasts until it may go, or 2 s."""

    def __init__(self):
        self.begun, self.may_go, self.thread = threading.Event(), threading.Event(), None

    def __call__(self):
        """Run as a job does."""
        self.thread = threading.current_thread()  # kept, so that no other takes its number
        self.begun.set()
        return self.may_go.wait(2.0)


def order_of_jobs(hand_over, _):
    held, order = Held(), []
    waits = [hand_over(held)]
    held.begun.wait(1.0)
    waits += [hand_over(lambda number=number: order.append(number)) for number in (1, 2, 3)]
    held.may_go.set()
    for wait in waits:
        wait()
    return order


def threads_of(hand_over):
    """Those in which jobs of one worker are under way at the same time, eight at most."""
    jobs, waits = [], []
    while len(jobs) < 8 and all(job.begun.wait(0.3) for job in jobs):
        jobs.append(Held())
        waits.append(hand_over(jobs[-1]))
    for job in jobs:
        job.may_go.set()
    for wait in waits:
        wait()
    return {job.thread for job in jobs}


def threads_of_two(hand_over, attempt):
    first, second = threads_of(hand_over), threads_of(attempt())
    if first & second:
        raise NotYet("a job of one worker ran in a thread of the other.", OWN_QUEUE)
    most = max(len(first), len(second))
    return "each has one thread" if most == 1 else f"one has {most} threads"


def outcome_of(wait):
    """In words; `wait` is called in a thread, for it may never return."""
    found = ["wait had not returned after 2 seconds"]

    def waiting():
        try:
            found.append(f"wait returned {short(wait())}")
        except Exception as error:
            found.append(f"wait raised {short(error)}")

    thread = threading.Thread(target=waiting, daemon=True)
    thread.start()
    thread.join(2.0)
    return found[-1]


def came_of(job):
    return lambda hand_over, _: outcome_of(hand_over(job))


def after_an_error(hand_over, _):
    before = hand_over(threading.current_thread)()
    outcome_of(hand_over(out_of_range))
    return outcome_of(hand_over(lambda: threading.current_thread() is before))


def meeting_of_two(hand_over, attempt):
    barrier = threading.Barrier(2)
    waits = [hand(lambda: barrier.wait(1.0) >= 0) for hand in (hand_over, attempt())]
    return [wait() for wait in waits]


def at_work(attempt, given, trial, expected, words):
    hand_over = attempt()
    if not callable(hand_over):
        raise NotYet(f"expected the function hand_over, got {short(hand_over)}")
    found = trial(hand_over, attempt)
    if found != expected:
        if words == FNS_VALUE:
            words = next((said for seen, said in OFTEN.items() if seen in found), words)
        raise NotYet(*expected_and_got(found, expected), words)
    return found


FNS_VALUE, RETURNED = "wait returns what fn returned.", "wait returned KeyError(1)"
out_of_range = lambda: [1, 2, 3][5]
OUT_OF_RANGE = "wait raised IndexError('list index out of range')"
DIVIDED = "wait raised ZeroDivisionError('division by zero')"
ONE_THREAD = "Start one thread, when the worker is made."
DAEMON = "Make it a daemon thread: threading.Thread(..., daemon=True)."
WAITING = "Waiting is for wait."
NO_SERVER = "No job was done: is the thread started, and does it take the jobs off the queue?"
THE_FUNCTION = "hand_over returns the function wait, uncalled; the caller calls it."
THE_PAIR = "wait takes the pair out of the box, and returns its value or raises its error."
FIRST_IN = "Take the jobs in the order in which they were handed over: first in, first out."
OWN_BOX = "Each job needs a box of its own for its value."
NO_VALUE = "None, 0 and an error are values too: mark in the box what is in it, value or error."
CATCH = "Catch the error in the thread, put it into the box, and raise that very error in wait."
EVERY_KIND = "Catch every kind of error in the thread: except Exception, not one kind alone."
ENDED = "The thread has ended with the error: catch it inside the loop."
OWN_QUEUE = "Each worker has its own queue: make it inside my_worker."
NO_TURNS = "Two workers run two jobs at the same time: neither waits for the other."
OFTEN = {"not callable": THE_FUNCTION, "had not": NO_SERVER, "returned (": THE_PAIR}
SHARED_LINE, ONE_AT_A_TIME = queue.SimpleQueue(), threading.Lock()
ONE_POOL = ThreadPoolExecutor(1)

check_worker = Exercise(
    my_worker,
    read_again='"A worker in a few lines"',
    cases=[
        ("a job that returns 42", came_of(lambda: 42), "wait returned 42", FNS_VALUE),
        ("a job that says where it runs", which_thread, "a thread of its own", ONE_THREAD),
        ("a job that takes its time", when_it_returns, "it returned at once", WAITING),
        ("two workers", threads_of_two, "each has one thread", ONE_THREAD),
        ("a job that returns 0", came_of(lambda: 0), "wait returned 0", NO_VALUE),
        ("a job that returns None", came_of(lambda: None), "wait returned None", NO_VALUE),
        ("three jobs", values_in_order, [0, 1, 2], OWN_BOX),
        ("three jobs behind a long one", order_of_jobs, [1, 2, 3], FIRST_IN),
        ("a job that raises IndexError", came_of(out_of_range), OUT_OF_RANGE, CATCH),
        ("a job that divides by 0", came_of(lambda: 1 / 0), DIVIDED, EVERY_KIND),
        ("an error, then: the same thread?", after_an_error, "wait returned True", ENDED),
        ("a job that returns an error", came_of(lambda: KeyError(1)), RETURNED, NO_VALUE),
        ("two workers whose jobs meet", meeting_of_two, [True, True], NO_TURNS),
    ],
    given="{0}",
    play=at_work,
    hint="{3}",
    correct="It runs jobs in order, beside another worker, and survives an error.",
    wrong={
        "expected the function hand_over, got 5": lambda: 5,
        ONE_THREAD: [
            "jobs.put((fn, box)) => box.put((fn(), None))",
            lambda: lambda fn: fn,
            lambda: lambda fn: ThreadPoolExecutor(1).submit(fn).result,
            "jobs.put => threading.Thread(target=serve, daemon=True).start(); jobs.put",
            "threading.Thread => for _ in range(4): threading.Thread",
        ],
        FIRST_IN: "jobs = queue.SimpleQueue => jobs = queue.LifoQueue",
        DAEMON: ("while True => for _ in range(1)", ", daemon=True => "),
        NO_SERVER: [".start() => ", "jobs.put((fn, box)) => pass"],
        THE_FUNCTION: ["return wait => return wait()", "return wait => pass"],
        THE_PAIR: "return wait => return box.get",
        WAITING: "return wait => value = wait()\n        return lambda: value",
        OWN_BOX: (
            "box = queue.SimpleQueue() => pass",
            "jobs = => box, jobs = queue.SimpleQueue(),",
        ),
        NO_VALUE: [
            "error is not None => value is None",
            "error is not None => value is not None and not value",
            (
                "error is not None => isinstance(error or value, Exception)",
                "raise error => raise error or value",
            ),
        ],
        CATCH: ["raise error => return error", "raise error => raise type(error)"],
        EVERY_KIND: [
            "box.put((None => isinstance(error, IndexError) and box.put((None",
            "box.put((None => isinstance(error, LookupError) and box.put((None",
        ],
        ENDED: [
            "box.put((None, error)) => return box.put((None, error))",
            "box.put((N => threading.Thread(target=serve, daemon=True).start(); return box.put((N",
        ],
        "wait had not returned": "box.put((None, error)) => return",
        NO_TURNS: "box.put((fn => with ONE_AT_A_TIME: box.put((fn",
        OWN_QUEUE: [
            lambda: lambda fn: ONE_POOL.submit(fn).result,
            "jobs = queue.SimpleQueue() => jobs = SHARED_LINE",
        ],
    },
    also_right=[
        by_future,
        (
            "(None, error) => (error, True)",
            "error is not None => error",
            "raise error => raise value",
        ),
    ],
)
