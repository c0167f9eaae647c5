"""Behind `python -m mpcourse`: the environment, the checks of the machine, the stored pages.

`setup` and `shell` need nothing but Python; the rest runs in the environment they make.
"""
