"""The stored pages as a site to read: `python -m mpcourse site`.

`site` builds it of `page`s, with `formulas` as MathML and `explorers` that need no kernel; `assets`
are its style and script.
"""
