"""The benchmark runs in its short form and prints a figure for each of its parts."""

import re

from mpcourse import benchmark


def test_the_short_form_prints_every_part(capsys):
    assert benchmark.main(["--short"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("measured here: ")
    for part in (
        r"two workers, equal jobs +\d+\.\d+ x",
        r"hand-over and wait +\d+ us",
        r"16 micro-batches +\d+ us an action",
        r"micro-batches of 4: one worker, whole batch +\d+\.\d+ x",
        r"micro-batches of 4: naive +\d+\.\d+ x, \d+% of what its stages allow",
        r"micro-batches of 4: gpipe +\d+\.\d+ x, \d+% of what its stages allow",
        r"micro-batches of 4: 1f1b +\d+\.\d+ x, \d+% of what its stages allow",
        r"equal stages: 1\.33 x",
    ):
        assert re.search(part, printed), f"{part} is not in\n{printed}"
