"""Locks that a forked child finds free.

A fork (a `DataLoader` with workers makes one in every epoch) copies the thread that forks and all
locks: one that another thread held would stay locked in the child, where nobody can free it.
Source: concurrent/futures/thread.py and logging in the standard library.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_locks: weakref.WeakSet = weakref.WeakSet()


def fork_safe_lock(kind: Callable[[], Any] = threading.Lock) -> Any:
    """Make a lock for what outlives a step; this folder and those above it make no other."""
    lock = kind()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in _locks:
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
