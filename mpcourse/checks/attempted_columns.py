"""What is wrong with a schedule written in columns of time (page `torch_pipelining`)."""

from typing import Any

from mpcourse.checks.verdict import short
from mpcourse.schedules.actions import Action, Schedule, makes, needs
from mpcourse.schedules.order import execution_order


def columns_problem(rows: Any, schedule: Schedule, num_stages: int) -> str | None:
    """What is wrong with the columns of a schedule, or nothing."""
    if rows is None:
        return "got None: that is what a function without return gives back."
    if not isinstance(rows, list | tuple) or len(rows) != len(schedule):
        return f"expected a list with one row per device, {len(schedule)} in all; got {short(rows)}"
    for device, (row, actions) in enumerate(zip(rows, schedule, strict=True)):
        if not isinstance(row, list | tuple):
            return f"row {device} is no list: {short(row)}"
        if any(entry is None for entry in row):
            return 'None stands where a device waits; in the text it is an empty cell, "".'
        if any(isinstance(entry, Action) for entry in row):
            return "The rows hold Actions; their text is asked for: str(action)."
        wanted = [str(action) for action in actions]
        found = [entry for entry in row if entry != ""]
        if found != wanted:
            return (
                f"device {device} does {short(wanted)}, in this order; your row has {short(found)}"
            )
    return _timing_problem(rows, schedule, num_stages)


def _timing_problem(rows: list[list[str]], schedule: Schedule, num_stages: int) -> str | None:
    column = {text: index for row in rows for index, text in enumerate(row) if text}
    earliest = earliest_columns(schedule, num_stages)
    made = {makes(action): action for actions in schedule for action in actions}
    for action, wanted in sorted(earliest.items(), key=lambda pair: pair[1]):
        for need in needs(action, num_stages):
            source = made[need]
            gap = column[str(source)] - column[str(action)]
            if gap >= 0:
                place = "in the same column as" if gap == 0 else "before"
                return f"{action} stands {place} {source}, which it needs: leave a cell empty."
        if column[str(action)] > wanted:
            late = f"{action} could stand in column {wanted}; yours is {column[str(action)]}."
            return f"{late} Every action takes one column."
    longest = max(earliest.values()) + 1
    if any(len(row) > longest for row in rows):
        return f"A row has more than {longest} cells: leave out empty last columns."
    if any(len(row) != longest for row in rows):
        lengths = [len(row) for row in rows]
        return f'The rows have {short(lengths)} cells; fill all up with "" to {longest}.'
    return None


def earliest_columns(schedule: Schedule, num_stages: int) -> dict[Action, int]:
    """Action -> the first column in which it can stand."""
    columns: dict[Action, int] = {}
    done: dict[Action, int] = {}
    free = [0] * len(schedule)
    for device, action in execution_order(schedule):
        after = [done[need] + 1 for need in needs(action, num_stages)]
        columns[action] = done[makes(action)] = max([free[device], *after])
        free[device] = columns[action] + 1
    return columns
