"""A stored page as Sphinx gets it: without what only a kernel answers, with folds and links.

Page: all of them.
"""

import copy
import re
from html import escape

from nbformat import NotebookNode
from nbformat.v4 import new_output

from mpcourse.commands.address import PLACEHOLDER
from mpcourse.commands.clean_copies import folded
from mpcourse.commands.page_format import BADGES_MARK
from mpcourse.commands.site.explorers import Frames
from mpcourse.figures.svg import svg_in

FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INLINE_CODE_OR_MATH = re.compile(r"(`+).+?\1|\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
BADGE = re.compile(r"\[!\[(.+?)\]\(.+?\)\]\((.+?)\)")
MINUTES = re.compile(r"About (\d+) minutes")
TAG = re.compile(r"<(?!/?(?:details|summary|sub|sup|br)>|!--)/?[A-Za-z][^>]*>")
GUESS = re.compile(r"<your guess: (.*); run the cell to (?:choose|type it)>")
ANSWER = re.compile(r"Your guess: none yet\. Answer: (.*)\.", re.DOTALL)
COMPARED = re.compile(r"\b(\w+)\.compare\(")
ASKED = re.compile(r'\b(\w+) = predict\(\s*"([^"]*)"')


def title_of(notebook: NotebookNode) -> str:
    """The heading, with its number, as plain words."""
    return notebook.cells[0].source.split("\n")[0].removeprefix("# ").replace("`", "")


def aims_of(notebook: NotebookNode) -> list[str]:
    """What a reader can do afterwards."""
    lines = notebook.cells[0].source.splitlines()
    return [line.removeprefix("- ").rstrip(";.") for line in lines if line.startswith("- ")]


def minutes_of(notebook: NotebookNode) -> int:
    """How long it takes, as the page says; 0 where it does not."""
    found = MINUTES.search(notebook.cells[0].source)
    return int(found[1]) if found else 0


def anchor_of(heading: str) -> str:
    """The anchor that JupyterLab gives a heading: links of the pages lead there."""
    return heading.replace(" ", "-")


def for_readers(notebook: NotebookNode, key: str, frames: Frames | None = None) -> NotebookNode:
    """A copy of a stored page for a site that has no kernel.

    Args:
        notebook: The page, with its outputs.
        key: Its name, as in "pipeline".
        frames: Of its explorer, if the site shows it.

    Raises:
        ValueError: A text holds HTML that the pages do not use: it could run in a reader's browser.
    """
    notebook = copy.deepcopy(notebook)
    notebook.cells = [cell for cell in notebook.cells if "bootstrap" not in _tags(cell)]
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            cell.source = _words(cell)
        elif cell.metadata.get("jupyter", {}).get("source_hidden"):
            solves = "check" in _tags(notebook.cells[max(position - 2, 0)])
            cell.metadata.tags = [*_tags(cell), "hide-input"]
            if solves:
                cell.metadata["mystnb"] = {"code_prompt_show": "Show a solution"}
        if cell.cell_type == "code":
            outputs = [] if "check" in _tags(cell) else cell.outputs
            cell.outputs = [_output(each, cell.source, key, frames) for each in outputs]
    return notebook


def _tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _words(cell: NotebookNode) -> str:
    lines = [_launch(line) if BADGES_MARK in line else line for line in cell.source.splitlines()]
    source = "\n".join(lines)
    found = TAG.search(INLINE_CODE_OR_MATH.sub(" ", FENCED.sub(" ", source)))
    if found:
        raise ValueError(f"a text holds {found[0]!r}, which no page needs: {source[:60]!r}")
    return folded(source) if "answer" in _tags(cell) else source


def _launch(line: str) -> str:
    """The badges as words, which load nothing; none where they lead nowhere."""
    if PLACEHOLDER.removeprefix("https://github.com") in line:
        return ""
    links = (f"[{words}]({address})" for words, address in BADGE.findall(line))
    return f"Run this page: {' · '.join(links)}"


def _output(output: NotebookNode, source: str, key: str, frames: Frames | None) -> NotebookNode:
    """An output that is text, a bitmap, or HTML made here; what was stored as HTML is none."""
    data = output.get("data", {})
    words = data.get("text/plain", "")
    if guess := GUESS.fullmatch(words):
        html = _guess_html(guess[1], source)
    elif answer := ANSWER.fullmatch(words):
        name = COMPARED.findall(source)[-1]
        html = f'<details class="answer" data-guess="{name}"><summary>Answer</summary>'
        html += f"<p>{escape(answer[1])}</p></details>"
    elif words.startswith("<explorer:"):
        html = _explorer_html(words, key, frames)
    elif words.startswith("<board:"):
        html = f'<p class="guess">{escape(words.strip("<>").partition("; run the cell")[0])}</p>'
    elif drawn := svg_in(data.get("text/html", "")):
        html = f'<div class="picture">{drawn}</div>'
    else:
        data.pop("text/html", None)
        return output
    return new_output("display_data", {"text/html": html})


def _guess_html(words: str, source: str) -> str:
    """A question; one with choices can be answered, by the answer below it."""
    found = [each for each in ASKED.findall(source) if words.startswith(f"{each[1]}: ")]
    if not found:  # nothing to choose from
        return f'<p class="guess">Your guess: {escape(words)}?</p>'
    name, prompt = found[0]
    buttons = "".join(
        f'<button type="button" aria-pressed="false">{escape(choice)}</button>'
        for choice in words.removeprefix(f"{prompt}: ").split(" / ")
    )
    return (
        f'<fieldset class="guess" data-guess="{name}"><legend>{escape(prompt)}</legend>'
        f'{buttons}<span role="status"></span></fieldset>'
    )


def _explorer_html(words: str, key: str, frames: Frames | None) -> str:
    about = words.removeprefix("<explorer: ").partition("; run the cell")[0]
    if frames is None:
        return f'<p class="guess">explorer: {escape(about)} (it needs the page in JupyterLab)</p>'
    return explorer_html(about, key, frames)


def explorer_html(about: str, key: str, frames: Frames) -> str:
    """An explorer that needs no kernel: its pictures come with the script of its frames."""
    return (
        '<figure class="explorer"><div class="controls"></div>'
        f'<p class="said" aria-live="polite"></p><div class="view">{frames.first}</div>'
        f"<figcaption>Explorer: {escape(about)}. In JupyterLab it has all its controls."
        f'</figcaption></figure><script defer src="_static/frames/{key}.js"></script>'
    )
