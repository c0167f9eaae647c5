"""Behind `python -m mpcourse`: the environment, the checks of the machine, the stored pages.

`setup`, `shell`, `arguments` and `clean_copies` need nothing but Python; the rest runs in the
environment they make.
"""

import os
import sys

HARMLESS = {"antigravity", "test", "this"}  # nobody imports them but to play


def hiding_problem(folder: str) -> str:
    """Name a file that Python, run in `folder`, takes for a module of its own; empty if none."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    hidden = {name[:-3] for name in names if name.endswith(".py")} & sys.stdlib_module_names
    for name in sorted(hidden - HARMLESS):
        path = os.path.join(folder, f"{name}.py")
        return f"{path} hides Python's own module {name}, which others need"
    return ""
