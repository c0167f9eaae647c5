"""Locks that a forked child finds free.

A fork (a `DataLoader` with workers makes one in every epoch) copies the thread that forks and all
locks: one that another thread held would stay locked in the child, where nobody can free it.
Source: concurrent/futures/thread.py and logging in the standard library.
"""

import os
import threading
import weakref

_locks: "weakref.WeakSet[threading.Lock]" = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    """Make a lock for what outlives a step; this folder and those above it make no other."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in _locks:
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
