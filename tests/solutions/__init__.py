"""The solutions of the exercises: one module per page, each solution with its explanation.

A solution has the name that the page's exercise cell uses. It is a function or class, explained in
its docstring, or a variable, explained in a string on the lines after it. `test_solutions` puts
each into its cell and runs the page, so it may use only what the page has imported by then.
"""
