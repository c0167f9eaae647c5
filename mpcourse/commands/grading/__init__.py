"""Learners' copies run in a sandbox, a judge outside compares: `python -m mpcourse grade`.

`gradebook` finds whose copy is of which page and keeps what became of each, `report` is what people
read. A `judge` takes from a copy what `questions` finds that its answers need, and asks the process
in its `sandbox`, laid out by `inside`: there a `learner` plays the answers in a course with
`no_solutions`. What comes back is data, `outcomes`.
"""
