"""The pages as a site (`python -m mpcourse site`).

`site` has Sphinx build it, with the settings in `source`, of what `page` makes of a stored page;
`explorers` need no kernel.
"""
