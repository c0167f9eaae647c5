"""Bytes of a training step: accounted for, rehearsed, counted, and saved by recomputing."""

from mpcourse.memory.account import (
    Account,
    StepBytes,
    account,
    count_step,
    nbytes,
    optimizer_bytes,
    rehearse_step,
)
from mpcourse.memory.counting import ByteCounter, saved_for_backward
from mpcourse.memory.recompute import (
    best_segments,
    recomputed,
    recomputed_bytes,
    recomputed_in_segments,
)

__all__ = [
    "Account",
    "ByteCounter",
    "StepBytes",
    "account",
    "best_segments",
    "count_step",
    "nbytes",
    "optimizer_bytes",
    "recomputed",
    "recomputed_bytes",
    "recomputed_in_segments",
    "rehearse_step",
    "saved_for_backward",
]
