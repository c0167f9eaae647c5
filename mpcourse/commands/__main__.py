"""`python -m mpcourse.commands MODULE ...`: a module as `python -m MODULE` runs it.

Behind `python -m mpcourse`: an interrupt is one word and no traceback, also while the module is
still being imported.
"""

import runpy
import sys

if __name__ == "__main__":
    try:
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr, flush=True)
        sys.exit(130)
