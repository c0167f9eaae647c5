"""Which stages of a pipeline recompute: standard library only.

Page `does_it_fit`.

A stage that recomputes keeps a micro-batch's input from the start of F to the end of B (or W), and
its activations only from the start of B (or I), where its forward runs once more.
"""

from collections.abc import Sequence


def recompute_flags(recompute: bool | Sequence[bool], num_stages: int) -> list[bool]:
    """One flag per stage.

    Args:
        recompute: One flag for all stages, or a list with one per stage.
        num_stages: How many there are.

    Raises:
        TypeError: Something else than flags.
        ValueError: A list of another length.
    """
    is_list = isinstance(recompute, Sequence)
    flags = list(recompute) if is_list else [recompute] * num_stages
    if not all(isinstance(flag, bool) for flag in [*flags, *([] if is_list else [recompute])]):
        raise TypeError(
            f"recompute is True or False, or a list with one of them per stage; got {recompute!r}"
        )
    if len(flags) != num_stages:
        raise ValueError(f"recompute has {len(flags)} flags, there are {num_stages} stages")
    return flags
