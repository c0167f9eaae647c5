"""Learners' copies run under limits, the course's own checks judge: `python -m mpcourse grade`.

`submissions` finds whose copy is of which page; `gradebook` keeps what became of each. `watch`
starts, bounds and ends a `graded_run`, a process of its own without `network`, which runs a copy's
cells in a `kernel` and asks the `judge` in it; `exercises` is what the course's page asks, `report`
what an instructor reads.
"""
