"""A stored page as Sphinx gets it: without what only a kernel answers, with folds and links."""

import copy
import re
from functools import partial
from html import escape

from nbformat import NotebookNode
from nbformat.v4 import new_output

from mpcourse import widgets
from mpcourse.commands.address import BADGES_MARK, PLACEHOLDER
from mpcourse.commands.clean_copies import folded, tags_of
from mpcourse.figures.svg import svg_in
from mpcourse.widgets.frames import FRAMES, unpacked

CODE_OR_MATH = re.compile(r"(?ms)^(```|~~~).*?^\1|(`+).+?\2|\$\$.+?\$\$|\$[^$\n]+\$")
BADGE = re.compile(r"\[!\[(.+?)\]\(.+?\)\]\((.+?)\)")
LIVE_HTML = re.compile(r"<(?!/?(?:details|summary|sub|sup|br)>|!--)/?[A-Za-z][^>]*>")
DRAWN = "svg|title|desc|g|rect|path|circle|text"  # what the course's pictures are made of
LIVE_SVG = re.compile(rf"<(?!/?(?:{DRAWN})\b)|<[^>]*[\s\"'/](?:on\w+|\w*:?href)\s*=", re.IGNORECASE)
GUESS = re.compile(r"<your guess: (.*); run the cell to (?:choose|type it)>")
ANSWER = re.compile(r"Your guess: none yet\. Answer: (.*)\.", re.DOTALL)
COMPARED = re.compile(r"\b(\w+)\.compare\(")
ASKED = re.compile(r'\b(\w+) = predict\(\s*"([^"]*)"')

# Explorers that need nothing of their page's; the others have their pictures in the page.
EXPLORERS = {
    "scatter_and_gather": partial(widgets.scatter_explorer, rows=5, devices=4),
    "schedules": widgets.schedule_explorer,
    "sharded_data_parallel": widgets.fit_explorer,
    "choose_a_layout": widgets.layout_explorer,
}


def explorer_of(key: str, about: str = "", frames: str = "") -> str:
    """The HTML of an explorer that the site's script moves: a page's own, or one stored in it."""
    if not frames:
        about, frames = (explorer := EXPLORERS[key]()).about, explorer.frames()
    said = unpacked(frames)
    pictures = [_still(picture) for picture in said["pictures"]]
    return (
        f'<figure class="explorer" data-frames="{frames}"><div class="controls"></div>'
        f'<p class="said" aria-live="polite"></p><div class="view">{pictures[said["first"]]}</div>'
        f"<figcaption>Explorer: {escape(about)}. In JupyterLab it has all its controls."
        "</figcaption></figure>"
    )


def anchor_of(heading: str) -> str:
    """The anchor that JupyterLab gives a heading: links of the pages lead there."""
    return heading.replace(" ", "-")


def for_readers(notebook: NotebookNode, key: str) -> NotebookNode:
    """A copy of a stored page, called `key`; nothing in it runs in a reader's browser."""
    notebook = copy.deepcopy(notebook)
    notebook.cells = [cell for cell in notebook.cells if "bootstrap" not in tags_of(cell)]
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            cell.source = _words(cell)
            continue
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata.tags = [*tags_of(cell), "hide-input"]
            if "check" in tags_of(notebook.cells[max(position - 2, 0)]):
                cell.metadata["mystnb"] = {"code_prompt_show": "Show a solution"}
        outputs = [] if "check" in tags_of(cell) else cell.outputs
        cell.outputs = [_output(each, cell.source, key) for each in outputs]
    return notebook


def _words(cell: NotebookNode) -> str:
    lines = [_launch(line) if BADGES_MARK in line else line for line in cell.source.splitlines()]
    source = "\n".join(lines)
    if found := LIVE_HTML.search(CODE_OR_MATH.sub(" ", source)):
        raise ValueError(f"a text holds {found[0]!r}, which no page needs: {source[:60]!r}")
    return folded(source) if "answer" in tags_of(cell) else source


def _launch(line: str) -> str:
    """The badges as words, which load nothing; none where they lead nowhere."""
    if PLACEHOLDER.removeprefix("https://github.com") in line:
        return ""
    links = (f"[{words}]({address})" for words, address in BADGE.findall(line))
    return f"Run this page: {' · '.join(links)}"


def _still(drawn: str) -> str:
    """A picture, which only shows; one that could do anything is refused."""
    if found := LIVE_SVG.search(drawn):
        raise ValueError(f"a picture holds {drawn[found.start() : found.end() + 20]!r}")
    return drawn


def _output(output: NotebookNode, source: str, key: str) -> NotebookNode:
    """An output that is text, a bitmap, or HTML made here; what was stored as HTML is none."""
    data = output.get("data", {})
    words = data.get("text/plain", "")
    about = words.strip("<>").partition("; run the cell")[0]
    if guess := GUESS.fullmatch(words):
        html = _guess_html(guess[1], source)
    elif answer := ANSWER.fullmatch(words):
        name = COMPARED.findall(source)[-1]
        html = f'<details class="answer" data-guess="{name}"><summary>Answer</summary>'
        html += f"<p>{escape(answer[1])}</p></details>"
    elif FRAMES in data or (words.startswith("<explorer:") and key in EXPLORERS):
        html = explorer_of(key, about.removeprefix("explorer: "), data.get(FRAMES, ""))
    elif words.startswith("<explorer:"):
        html = f'<p class="guess">{escape(about)} (it needs the page in JupyterLab)</p>'
    elif drawn := svg_in(data.get("text/html", "")):
        html = f'<div class="picture">{_still(drawn)}</div>'
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
