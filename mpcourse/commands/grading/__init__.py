"""Learners' copies run in a sandbox, a judge outside compares: `python -m mpcourse grade`.

`submissions` finds whose copy is of which page; `gradebook` keeps what became of each, `report` is
what people read. A `judge` takes from a copy what `questions` finds to be an answer, and asks the
process in its `sandbox`, laid out by `inside`: there a `learner` plays the answers in a course with
`no_solutions`. What comes back is data, `outcomes`.
"""

CUT = "was stopped after"  # of a cell that took too long
