"""Zero-bubble schedules: split the backward, and fill the holes with weight gradients.

Page `zero_bubble`.

Standard library only. The stage before waits for the input gradient (I) and for nothing else. No
stage waits for the weight gradients (W), so a device does them when it would have to wait.
Source: Qi et al., ICLR 2024, arXiv:2401.10241; more V shapes: arXiv:2405.15362.
"""

from mpcourse.schedules.actions import Schedule, check_count, number_actions

VARIANTS = ("h1", "h2", "v")


def zero_bubble_schedule(num_devices: int, num_microbatches: int, variant: str) -> Schedule:
    """A schedule with split backwards (I and W), in one of three forms.

    With p devices, and F, I and W taking the same time t:

    | variant | stages | every device holds    | device r waits, once it has begun | if          |
    |---------|--------|-----------------------|-----------------------------------|-------------|
    | "h1"    | p      | p, as 1F1B's device 0 | (p - 1 - r) t; 1F1B: 3 times that | m >= p      |
    | "h2"    | p      | 2p - 1                | never                             | m >= 2p - 1 |
    | "v"     | 2p     | 2p, half as large     | never                             | m >= 2p - 1 |

    Activations are held from the start of F to the end of W: a late W costs memory, which is why
    every device holds as much as the first one. With fewer micro-batches the schedules run too and
    hold no more, but devices wait. In "v", device r has the stages r and 2p - 1 - r, so the first
    stage and the last one are both on device 0.

    Source: arXiv:2401.10241; the order of "v" is that of torch's ScheduleZBVZeroBubble.
    """
    check_count("num_devices", num_devices)
    check_count("num_microbatches", num_microbatches)
    if variant not in VARIANTS:
        allowed = ", ".join(map(repr, VARIANTS))
        raise ValueError(f"variant is one of {allowed}; got {variant!r}")
    if variant == "v":
        return _v_schedule(num_devices, num_microbatches)
    return _h_schedule(num_devices, num_microbatches, extra=1 if variant == "h1" else 2)


def _h_schedule(num_devices: int, num_microbatches: int, *, extra: int) -> Schedule:
    """ZB-H1 (`extra` = 1) and ZB-H2 (2): 1F1B in which W starts late.

    Each device runs `extra` forwards further ahead than the next one (1F1B: 1), and is `extra`
    weight gradients later than the one before. So all hold the same number of activations.
    """
    # ZB-H1, 3 devices, 5 micro-batches:
    # 0   F0 F1 F2       I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    # 1      F0 F1    I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    # 2         F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4
    # ZB-H2: more forwards ahead, and nobody waits once it has begun
    # 0   F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
    # 1      F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
    # 2         F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
    schedule = []
    for rank in range(num_devices):
        ahead = min(num_microbatches, extra * (num_devices - 1 - rank) + 1)
        late = min(num_microbatches, extra * rank)
        warm_up = "F" * ahead
        steady = cool_down = ""
        for backward in range(num_microbatches):
            halves = "IW" if backward >= late else "I"
            if backward < num_microbatches - ahead:
                steady += halves + "F"
            else:
                cool_down += halves
        cool_down += "W" * late
        schedule.append(number_actions([(rank, warm_up + steady + cool_down)]))
    return schedule


def _v_schedule(num_devices: int, num_microbatches: int) -> Schedule:
    """ZB-V: each device has one stage on the way down the V and one on the way up."""
    # 2 devices, 3 micro-batches; stages 0 and 3 on device 0, stages 1 and 2 on device 1:
    # 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
    # 1       1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
    count = max(num_microbatches, 2 * num_devices - 1)  # fewer cannot fill the V: dropped below
    schedule = []
    for rank in range(num_devices):
        down, up = rank, 2 * num_devices - 1 - rank
        after = num_devices - rank  # devices from here to the point of the V, this one included

        warm_up = [(down, "F")] * (2 * after - 1)
        warm_up += [(up, "F"), (down, "F")] * rank
        warm_up += [(up, "FIW")] * after

        steady = [(down, "FIW"), (up, "FIW")] * (count - num_devices - after + 1)
        steady += [(down, "IW"), (up, "FIW")] * (after - 1)

        cool_down = [(down, "I"), (up, "I")] * rank
        cool_down += [(down, "IW")] * after
        cool_down += [(up, "W" * rank), (down, "W" * rank)]

        actions = number_actions(warm_up + steady + cool_down)
        schedule.append([a for a in actions if a.microbatch_index < num_microbatches])
    return schedule
