"""Solutions: scale and zero point, rounding that learns, when compiling pays."""


def my_qparams(low, high):
    """Widen the range first, so that an integer can mean 0.0.

    256 integers have 255 steps between them. `low` has to become -128, so the integer of 0.0 lies
    `-low / scale` above it, and is rounded, because only an integer can stand for 0.0 exactly.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255 or 1.0
    return scale, round(-128 - low / scale)


def my_fake(values, scale, largest):
    """Add what rounding changes, detached: the forward has it, the backward does not see it.

    `clamp` stays outside, so its own gradient is used: 0 for what is clipped. The scale is divided
    by and multiplied with, so it leaves the gradient as it is.
    """
    steps = values / scale
    rounded = steps + (steps.round() - steps).detach()
    return rounded.clamp(-largest, largest) * scale


def my_payback(startup, eager, compiled):
    """Each call saves `eager - compiled`, and the savings have to add up to the extra start-up.

    Calls come whole, so round up: the floor of the negative number, negated. Where a compiled call
    is no faster, nothing is ever paid back.
    """
    if compiled >= eager:
        return None
    return -int(-startup // (eager - compiled))
