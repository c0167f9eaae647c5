"""The folded solutions on a page, written there from its exercises, where a test runs them."""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from mpcourse.exercises import PAGES, Exercise

CALL = re.compile(r"\b(check_\w+)\(")
DETAILS = "<details><summary>{}</summary>\n\n{}\n\n</details>"
WRITTEN = re.compile(r"<details><summary>A solution</summary>\n\n.*?\n\n</details>", re.DOTALL)


def write_solutions(notebook: NotebookNode, page: str) -> None:
    """Put a folded solution behind the hint of each exercise that the page does not go on with.

    Args:
        notebook: The page; texts below its check cells change.
        page: Its name, as in "pipeline".
    """
    for text, exercise in unsolved(notebook, page):
        words, code = exercise.solution_text()
        solution = DETAILS.format("A solution", f"{words}\n\n```python\n{code}\n```")
        hint, end, rest = WRITTEN.sub("", text.source).partition("</details>")
        above, below = (hint + end, rest) if end else ("", hint)
        parts = ["\n".join(filter(None, [above.strip(), solution])), below.strip()]
        text.source = "\n\n".join(filter(None, parts))


def unsolved(notebook: NotebookNode, page: str) -> Iterator[tuple[NotebookNode, Exercise]]:
    """Each exercise that no folded cell of the page answers, with the text below its check."""
    cells = notebook.cells
    for position, cell in enumerate(cells[:-1]):
        if "check" in cell.metadata.get("tags", []):
            answer = cells[position + 2 : position + 3]
            if not any(each.metadata.get("jupyter", {}).get("source_hidden") for each in answer):
                yield cells[position + 1], PAGES[page][CALL.search(cell.source)[1]]
