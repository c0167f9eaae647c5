"""`python -m mpcourse.commands MODULE ...`: one of these modules, as `python -m mpcourse` runs it.

Ctrl-C reaches the caller too, which says that all was stopped: here it leaves no traceback.
"""

import runpy
import sys

if __name__ == "__main__":
    name = f"mpcourse.commands.{sys.argv.pop(1)}"
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(130)
