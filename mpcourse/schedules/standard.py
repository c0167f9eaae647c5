"""Schedules: who does what, in which order, as plain data (pages `pipeline` and `schedules`).

Standard library only. Each function returns one list of actions per device. The orders are those
of torch/distributed/pipelining/schedules.py; the zero-bubble ones are in `zero_bubble`. A number of
stages, devices or micro-batches that is not a whole number from 1 is refused by name.
"""

from mpcourse.schedules.actions import Schedule, check_count, number_actions


def naive_schedule(num_stages: int, num_microbatches: int) -> Schedule:
    """One micro-batch at a time, forward and backward: one device works, all others wait."""
    check_count("num_stages", num_stages)
    check_count("num_microbatches", num_microbatches)
    # 2 stages, 2 micro-batches (a row is a device, a column a unit of time):
    # 0   F0       B0 F1       B1
    # 1      F0 B0       F1 B1
    return [number_actions([(rank, "FB" * num_microbatches)]) for rank in range(num_stages)]


def gpipe_schedule(num_stages: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards, both in the order of the micro-batches.

    Every device holds the activations of all micro-batches when the backwards begin.

    Source: Huang et al. 2019, arXiv:1811.06965; the order of torch's ScheduleGPipe.
    """
    check_count("num_stages", num_stages)
    check_count("num_microbatches", num_microbatches)
    # 3 stages, 3 micro-batches:
    # 0   F0 F1 F2             B0 B1 B2
    # 1      F0 F1 F2       B0 B1 B2
    # 2         F0 F1 F2 B0 B1 B2
    kinds = "F" * num_microbatches + "B" * num_microbatches
    return [number_actions([(rank, kinds)]) for rank in range(num_stages)]


def one_f_one_b_schedule(num_stages: int, num_microbatches: int) -> Schedule:
    """As few forwards ahead as keep everyone busy, then one backward, one forward, in turn.

    As long as GPipe when all stages take the same time, but device r holds the activations of at
    most num_stages - r micro-batches, however many there are.
    There may be fewer micro-batches than stages (torch refuses that).

    Source: Narayanan et al. 2021, arXiv:2104.04473; the order of torch's Schedule1F1B.
    """
    check_count("num_stages", num_stages)
    check_count("num_microbatches", num_microbatches)
    # 3 stages, 4 micro-batches:
    # 0   F0 F1 F2       B0 F3 B1    B2    B3
    # 1      F0 F1    B0 F2 B1 F3 B2    B3
    # 2         F0 B0 F1 B1 F2 B2 F3 B3
    schedule = []
    for rank in range(num_stages):
        ahead = min(num_microbatches, num_stages - rank)
        warm_up = "F" * ahead
        steady = "BF" * (num_microbatches - ahead)
        cool_down = "B" * ahead
        schedule.append(number_actions([(rank, warm_up + steady + cool_down)]))
    return schedule


def interleaved_schedule(
    num_devices: int, num_microbatches: int, stages_per_device: int
) -> Schedule:
    """1F1B with several small stages a device: a smaller bubble, more transfers.

    Device r has the stages r, r + num_devices, r + 2 num_devices, … Micro-batches go in rounds of
    about num_devices: a device takes a whole round through one of its stages, then through its
    next one; backwards the same, from its last stage to its first.

    Args:
        num_devices: Devices, 1 or more.
        num_microbatches: Micro-batches, 1 or more. There are num_microbatches // num_devices rounds
            (at least one), and they must be of the same size. That takes any number up to
            2 num_devices - 1, every multiple of num_devices, and some in between.
        stages_per_device: Stages on each device, 1 or more.

    Raises:
        ValueError: The rounds would differ.

    Source: Narayanan et al. 2021, arXiv:2104.04473; the order of torch's ScheduleInterleaved1F1B.
    """
    check_count("num_devices", num_devices)
    check_count("num_microbatches", num_microbatches)
    check_count("stages_per_device", stages_per_device)
    round_size = _round_size(num_devices, num_microbatches)
    num_steps = num_microbatches * stages_per_device
    chunks = [step // round_size % stages_per_device for step in range(num_steps)]
    # 2 devices, 4 micro-batches, 2 stages each: the chunks are 0 0 1 1 0 0 1 1
    # 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
    # 1       1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
    schedule = []
    for rank in range(num_devices):
        last = rank + num_devices * (stages_per_device - 1)
        forwards = [(rank + num_devices * chunk, "F") for chunk in chunks]
        backwards = [(last - num_devices * chunk, "B") for chunk in chunks]

        ahead = (stages_per_device - 1) * round_size + 2 * (num_devices - 1 - rank)
        ahead = min(num_steps, ahead)
        warm_up = forwards[:ahead]
        steady = []
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            steady += [forward, backward]
        cool_down = backwards[num_steps - ahead :]
        schedule.append(number_actions(warm_up + steady + cool_down))
    return schedule


def _round_size(num_devices: int, num_microbatches: int) -> int:
    """How many micro-batches make a round of the interleaved schedule."""

    def left_over(count: int) -> int:
        return count % max(1, count // num_devices)

    if left_over(num_microbatches):
        fits = [n for n in range(1, 2 * num_microbatches) if not left_over(n)]
        fewer = max(n for n in fits if n < num_microbatches)
        more = min(n for n in fits if n > num_microbatches)
        rounds = num_microbatches // num_devices
        raise ValueError(
            f"num_microbatches={num_microbatches} does not fall into {rounds} rounds of one size "
            f"({num_microbatches} // {num_devices} devices); take {fewer} or {more}, or any "
            f"multiple of {num_devices}"
        )
    return num_microbatches // max(1, num_microbatches // num_devices)
