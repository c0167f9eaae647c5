"""A stored page as HTML: cells, outputs as they are stored, folded cells folded.

Page: all of them. Source: nbconvert's own filters for Markdown and for terminals' colours.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape, unescape

from nbconvert.filters import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from mpcourse.commands.clean_copies import folded
from mpcourse.commands.page_format import BADGES_MARK, page_key
from mpcourse.commands.site.explorers import Frames
from mpcourse.commands.site.formulas import to_mathml
from mpcourse.figures.svg import svg_in

ANCHOR = re.compile(r'<a class="anchor-link".*?</a>')
TO_PAGE = re.compile(r"\]\((\d\d_\w+)\.ipynb(?=[)#])")
MINUTES = re.compile(r"About (\d+) minutes")
FOLDED_CODE = "Code, folded: what the page imports and prepares, or a solution"


class Renderer(IPythonRenderer):
    """Markdown to HTML: formulas become MathML, headings can be linked to."""

    def inline_math(self, body: str) -> str:
        """Return a formula within a line."""
        return to_mathml(body)

    def block_math(self, body: str) -> str:
        """Return a formula on a line of its own."""
        return to_mathml(body, block=True)

    def heading(self, text: str, level: int, **attrs: dict) -> str:
        """Return a heading with JupyterLab's id, without the sign that links to it."""
        return ANCHOR.sub("", super().heading(text, level, **attrs))


@dataclass
class SitePage:
    """A page of the site."""

    name: str  # the notebook's file without its ending
    notebook: NotebookNode
    frames: Frames | None = None  # of its explorer
    images: dict[str, bytes] = field(default_factory=dict)  # by file name, filled by `body`

    @property
    def key(self) -> str:
        """The name by which all else calls the page."""
        return page_key(self.name)

    @property
    def title(self) -> str:
        """The heading, with its number."""
        return self.notebook.cells[0].source.split("\n")[0].removeprefix("# ")

    @property
    def aims(self) -> list[str]:
        """What a reader can do afterwards."""
        lines = self.notebook.cells[0].source.splitlines()
        return [line.removeprefix("- ") for line in lines if line.startswith("- ")]

    @property
    def minutes(self) -> str:
        """How long it takes, as the page says."""
        found = MINUTES.search(self.notebook.cells[0].source)
        return found[1] if found else ""

    def body(self) -> str:
        """All cells, one after the other."""
        self.images.clear()
        return "\n".join(self._cells())

    def _cells(self) -> Iterable[str]:
        heading = self.title
        for number, cell in enumerate(self.notebook.cells):
            if cell.cell_type == "markdown":
                heading = _last_heading(cell.source) or heading
                answers = "answer" in cell.metadata.get("tags", [])
                words = words_html(folded(cell.source) if answers else cell.source)
                yield f'<div class="words">{words}</div>'
                continue
            yield code_html(cell)
            for position, output in enumerate(cell.outputs):
                self.place = f"{self.key}-{number}-{position}.png"
                yield f'<div class="output">{self._output(output, heading)}</div>'

    def _output(self, output: NotebookNode, heading: str) -> str:
        if output.output_type == "stream":
            return f"<pre>{ansi2html(output.text)}</pre>"
        if output.output_type == "error":
            return f"<pre>{ansi2html(chr(10).join(output.traceback))}</pre>"
        data = output.data
        words = data.get("text/plain", "")
        if words.startswith("<explorer:"):
            return self._explorer(words)
        if drawn := svg_in(data.get("text/html", "")):
            return drawn
        if "image/png" in data:
            self.images[self.place] = base64.b64decode(data["image/png"])
            alt = output.metadata.get("image/png", {}).get("alt") or f"Plot: {heading}"
            return f'<img src="pictures/{self.place}" alt="{escape(alt)}">'
        if words.startswith(("<your guess:", "<board:")):
            shown = words.strip("<>").partition("; run the cell")[0]
            return f'<p class="guess">{escape(shown)}</p>'
        return data.get("text/html") or f"<pre>{escape(words)}</pre>"

    def _explorer(self, words: str) -> str:
        about = escape(words.removeprefix("<explorer: ").partition("; run the cell")[0])
        if self.frames is None:
            return f'<p class="guess">explorer: {about} (it needs the page in JupyterLab)</p>'
        return (
            '<figure class="explorer"><div class="controls"></div>'
            f'<p class="said" aria-live="polite"></p><div class="view">{self.frames.first}</div>'
            f"<figcaption>Explorer: {about}. In JupyterLab it has all its controls.</figcaption>"
            "</figure>"
        )

    def sections(self) -> list[tuple[str, str, str]]:
        """The page cut at its headings, for the search: heading, its id, all words below it."""
        parts: list[tuple[str, list[str]]] = [(self.title, [])]
        for cell in self.notebook.cells:
            if cell.cell_type == "code" and "bootstrap" not in cell.metadata.get("tags", []):
                parts[-1][1].append(cell.source)
            if cell.cell_type == "markdown":
                for chunk in re.split(r"^(?=#{1,4} )", cell.source, flags=re.MULTILINE):
                    heading = _last_heading(chunk)
                    if heading and heading != self.title:
                        parts.append((heading, []))
                    parts[-1][1].append(_plain(chunk))
        return [
            (heading.replace("`", ""), anchor_of(heading), " ".join(" ".join(text).split()))
            for heading, text in parts
        ]


def words_html(source: str) -> str:
    """Markdown to HTML, links to pages of the course kept within the site."""
    lines = [line for line in source.splitlines() if BADGES_MARK not in line]
    markdown = MarkdownWithMath(renderer=Renderer(escape=False))
    return markdown.render(TO_PAGE.sub(r"](\1.html", "\n".join(lines)))


def code_html(cell: NotebookNode) -> str:
    """A code cell; behind a line to open it where it is folded in the page."""
    code = highlight(cell.source, PythonLexer(), HtmlFormatter(nowrap=True))
    shown = f'<pre class="code">{code}</pre>'
    tags = cell.metadata.get("tags", [])
    if not cell.metadata.get("jupyter", {}).get("source_hidden"):
        return shown
    summary = "Set-up: finds the course" if "bootstrap" in tags else FOLDED_CODE
    return f"<details><summary>{summary}</summary>{shown}</details>"


def anchor_of(heading: str) -> str:
    """The id that Jupyter gives a heading."""
    return unescape(re.search(r' id="([^"]*)"', words_html(f"# {heading}"))[1])


def _last_heading(source: str) -> str:
    found = re.findall(r"^#{1,4} (.+)$", source, flags=re.MULTILINE)
    return found[-1] if found else ""


def _plain(source: str) -> str:
    """Markdown without its marks."""
    lines: Sequence[str] = [line for line in source.splitlines() if BADGES_MARK not in line]
    return re.sub(r"<[^>]+>|\]\([^)]*\)|[#*`\[]", "", "\n".join(lines))
