"""Solutions of page `start_here`: a speed-up, a timeline, a worker, a clock."""

import queue
import threading
import time

from mpcourse.devices.devices import synchronize


def my_speedup(before_s, after_s):
    """Before over after: half the time is twice as fast.

    Upside down it says 0.5 where something became faster. The time saved has a unit and says
    nothing without the time it was saved from; in percent it can never reach 100, however fast
    the new code is.
    """
    return before_s / after_s


idle_device = "B"
"""Device A's row is filled from 0 to 8. Device B's is white before its job and after it."""

idle_share = 6 / 8
"""B works from 1 to 3, and the run lasts until A has ended, at 8. So B waits for 6 of 8 units.

The caption's share counts both devices. 1 / 3 would be right if the run ended with B.
"""


def my_worker():
    """The thread catches what a job raises and puts it into the box, marked as an error.

    The caller looks at the mark and returns or raises. Catching outside the loop would end the
    thread; without catching, the caller waits for a box that nobody fills.
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
