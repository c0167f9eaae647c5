"""How much text, code and asking a page has: guidance for whoever writes one, printed and no test.

Behind `python -m mpcourse pages --check`. Exercises and their checks are the reader's own cells:
they do not count as cells of the page. A cell that starts with `%%` writes a program.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from nbformat import NotebookNode

FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INLINE_CODE_OR_MATH = re.compile(r"(`+).+?\1|\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
COMMENT_OR_TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^>]*>", re.DOTALL)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
ADDRESS = re.compile(r"https?://\S+")
PASSAGE_END = re.compile(r"^(?=#{1,6} )|^(?=<details>)|(?<=</details>)$", re.MULTILINE)
READS_WELL = {
    "words": "1,000 to 1,800",
    "questions": "6 in 1,000 words",
    "cells": "35 to 60",
    "text": "3 of 5 and more",
    "passage": "80 words",
    "cell": "8 lines",
    "definition": "25 lines",
}


def readable(source: str) -> str:
    """The text of a Markdown cell: without code blocks, tags, pictures and addresses."""
    for pattern in (FENCED, COMMENT_OR_TAG, IMAGE):
        source = pattern.sub(" ", source)
    return ADDRESS.sub(" ", LINK.sub(r"\1", source))


def prose(source: str) -> str:
    """The readable text without `code` and $formulas$."""
    return INLINE_CODE_OR_MATH.sub(" ", readable(source))


def sizes_of(notebook: NotebookNode) -> dict[str, int | str]:
    """The sizes of a page, by the names in `READS_WELL`; those of a passage and on are the most."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [c.source for c in code if not c.metadata.get("jupyter", {}).get("source_hidden")]
    plain = [source for source in shown if not source.startswith("%%")]
    own = [
        c for c in notebook.cells if {"exercise", "check"}.isdisjoint(c.metadata.get("tags", []))
    ]
    passages = [passage for text in texts for passage in PASSAGE_END.split(text)]
    definitions = [length for source in plain for length in _definitions(source)]
    lines = [len(source.splitlines()) for source in plain if not any(_definitions(source))]
    return {
        "words": sum(map(count_words, texts)),
        "questions": sum(prose(text).count("?") for text in texts),
        "cells": len(own),
        "text": f"{len(texts)}:{len(code)}",
        "passage": max(map(count_words, passages), default=0),
        "cell": max(lines, default=0),
        "definition": max(definitions, default=0),
    }


def count_words(source: str) -> int:
    """The words that a reader of a Markdown cell reads."""
    return len(re.findall(r"\S*\w\S*", readable(source)))


def _definitions(source: str) -> Iterator[int]:
    """The lines of each function and class that a cell defines."""
    for node in ast.parse(re.sub(r"^(\s*)[%!].*", r"\1pass", source, flags=re.MULTILINE)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.end_lineno - node.lineno + 1


def table(pages: Iterable[tuple[str, NotebookNode]]) -> str:
    """A line for each page, given by name and notebook, and below it what reads well."""
    rows = [[name, *map(str, sizes_of(notebook).values())] for name, notebook in pages]
    rows = [["page", *READS_WELL], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    advice = "; ".join(f"{name}: {words}" for name, words in READS_WELL.items())
    return "\n".join([*lines, f"text is text cells to code cells; what reads well: {advice}"])
