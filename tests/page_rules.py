"""What every page keeps to, one rule per function: read this before you write a page.

A rule takes a stored page and yields a sentence for each place that breaks it. Cells are counted
from 1, text and code together.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from mpcourse.commands.address import read_address
from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.pages import (
    NOTEBOOKS,
    normalise,
    to_text,
    write_address,
    write_links,
    write_solutions,
)

PATH = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|work|Users)\b|\b[CD]:\\(?![nrt])")  # not "C:\n"
MEASURED = re.compile(
    r"\d\s?(?:ns|µs|us|ms|sec|seconds?|milliseconds?|microseconds?)\b"
    r"|\d\.\d+\s?s\b|\d\ss\b"  # not "the 1s": that is no time
    r"|\d[x×](?!\s?\d|\w)|\d\s[x×]\s(?:faster|slower|quicker|as\b)"  # not 3x3: that is a shape
)
BANNED_CODE = re.compile(
    r"\b(?:interact|interactive_output|Output)\(|clear_output|tqdm\.auto|NBVAL_"
)
LINK_TO_PAGE = re.compile(r"\]\((\d\d_\w+\.ipynb)(?:#([^)]*))?\)")
PAPER = re.compile(r"(?<!\[)\b(?:arXiv:\d|doi:10\.)\S+")  # a link's words begin with it
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INLINE_CODE_OR_MATH = re.compile(r"(`+).+?\1|\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
NOT_READ = re.compile(r"<!--.*?-->|</?[A-Za-z][^>]*>|!\[[^\]]*\]\([^)]*\)|https?://\S+", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
HEADING = re.compile(r"^#{1,6} (.*?)\s*$", re.MULTILINE)

BITMAPS = ("image/png", "image/jpeg")


@dataclass(frozen=True)
class Cell:
    """One cell and where it stands."""

    position: int
    node: NotebookNode

    def __str__(self) -> str:
        first_line = self.source.strip().split("\n")[0]
        return f"cell {self.position} ({first_line[:50]!r})"

    @property
    def source(self) -> str:
        return self.node.source

    @property
    def tags(self) -> set[str]:
        return set(self.node.metadata.get("tags", []))

    @property
    def outputs(self) -> list[NotebookNode]:
        return self.node.get("outputs", [])

    @property
    def output_texts(self) -> list[str]:
        """Everything readable in the outputs; a picture's letters mean nothing."""
        texts = []
        for output in self.outputs:
            data = output.get("data", {})
            texts += [str(value) for kind, value in data.items() if kind not in BITMAPS]
            texts += [output.get(key, "") for key in ("text", "evalue")]
            texts += output.get("traceback", [])
        return texts


@dataclass(frozen=True)
class Page:
    """A stored page: its file's name and text, and the notebook that the text holds."""

    name: str
    text: str

    @classmethod
    def load(cls, path: Path) -> "Page":
        return cls(path.name, path.read_bytes().decode("utf-8"))

    @cached_property
    def notebook(self) -> NotebookNode:
        return nbformat.v4.reads(self.text)

    @cached_property
    def cells(self) -> list[Cell]:
        return [Cell(i, node) for i, node in enumerate(self.notebook.cells, start=1)]

    @property
    def code(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.node.cell_type == "code"]

    @property
    def texts(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.node.cell_type == "markdown"]


Rule = Callable[[Page], Iterator[str]]


def sources_of(page: Path) -> list[str]:
    """The code cells, and the programs that cells write; shell commands are left out."""
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    plain = [re.sub(r"^%%(?:writefile|program) .*\.py\n", "", source) for source in code]
    return [re.sub(r"^(\s*)[%!].*", r"\1pass", s, flags=re.M) for s in plain if s[:2] != "%%"]


def prose(source: str) -> str:
    """The text of a Markdown cell: without code, formulas, tags, pictures and addresses."""
    words = LINK.sub(r"\1", NOT_READ.sub(" ", FENCED.sub(" ", source)))
    return INLINE_CODE_OR_MATH.sub(" ", words)


# The stored file


def is_as_the_command_saves_it(page: Page) -> Iterator[str]:
    notebook = nbformat.v4.reads(page.text)
    write_address(notebook, read_address(), page_name=page.name)
    write_links(notebook, page_name=page.name, pages=[path.name for path in find_pages([])])
    write_solutions(notebook, page_key(page.name))
    if page.text != to_text(normalise(notebook)):
        yield "the file differs from what `python -m mpcourse pages --stored` saves"


def has_consecutive_execution_counts(page: Page) -> Iterator[str]:
    for wanted, cell in enumerate(page.code, start=1):
        counts = [o.execution_count for o in cell.outputs if o.output_type == "execute_result"]
        for count in (cell.node.execution_count, *counts):
            if count != wanted:
                yield f"{cell} has execution count {count}, not {wanted}"


# The outputs


def has_errors_only_where_tagged_and_no_stderr(page: Page) -> Iterator[str]:
    for cell in page.code:
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in cell.tags:
                yield f"{cell} shows {output.ename}: {output.evalue}"
            if output.get("name") == "stderr":
                yield f"{cell} wrote to stderr: {output.text.strip()[:200]}"


def has_no_absolute_paths(page: Page) -> Iterator[str]:
    for cell in page.cells:
        for match in PATH.finditer("\n".join([cell.source, *cell.output_texts])):
            yield f"{cell} names a path of one machine: {match.string[match.start() :][:40]!r}"


# Title and set-up


def has_one_title(page: Page) -> Iterator[str]:
    first = page.cells[0]
    title = re.match(r"# (\d\d) (\S.*)", first.source)
    number, *words = re.findall(r"[a-z0-9]+", page.name.removesuffix(".ipynb").lower())
    if first.node.cell_type != "markdown" or not title:
        yield f"{first} has to be Markdown that starts with `# {number} Title`"
    elif title[1] != number or not set(words) & set(re.findall(r"[a-z0-9]+", title[2].lower())):
        yield f"the title {title[0]!r} does not fit the file {page.name}"
    for cell in page.texts:
        allowed = 1 if cell.position == 1 else 0
        if len(re.findall(r"^# ", FENCED.sub("", cell.source), re.MULTILINE)) > allowed:
            yield f"{cell} holds a second H1"


def has_one_bootstrap_cell_before_all_code(page: Page) -> Iterator[str]:
    if [cell for cell in page.code if "bootstrap" in cell.tags] != page.code[:1]:
        yield "the first code cell, and no other, has the tag `bootstrap`"


def folds_plumbing_everywhere(page: Page) -> Iterator[str]:
    for cell in page.code:
        on_colab = cell.node.metadata.get("cellView") == "form"
        if on_colab == (not cell.node.metadata.get("jupyter", {}).get("source_hidden")):
            where = "on Colab" if on_colab else "in JupyterLab"
            yield f"{cell} is folded {where} alone: set jupyter.source_hidden and cellView"


# What is asked and what is checked


def has_a_check_after_every_exercise(page: Page) -> Iterator[str]:
    for cell, following in zip(page.code, [*page.code[1:], None], strict=True):
        if "exercise" in cell.tags and (following is None or "check" not in following.tags):
            yield f"{cell} is an exercise; the next code cell has to have the tag `check`"


def folds_answers_that_hide_nothing_else(page: Page) -> Iterator[str]:
    for cell in page.cells:
        if "answer" in cell.tags:
            words = FENCED.sub("", cell.source)
            if cell in page.code or HEADING.search(words) or "?" in words or "<details>" in words:
                yield f"{cell} is folded as an answer: its heading, question or code needs a cell"


# Other pages


def links_to_pages_and_headings_that_exist(page: Page) -> Iterator[str]:
    for cell in page.texts:
        for match in LINK_TO_PAGE.finditer(cell.source):
            if not (NOTEBOOKS / match[1]).is_file():
                yield f"{cell} links to {match[1]}, which is not there"
            elif match[2] and match[2] not in anchors(NOTEBOOKS / match[1]):
                yield f"{cell} links to {match[1]}#{match[2]}, a heading that is not there"


@functools.cache
def anchors(path: Path) -> set[str]:
    """What links to the headings of a stored page have behind their `#`, as JupyterLab makes it."""
    found = (HEADING.findall(FENCED.sub("", cell.source)) for cell in Page.load(path).texts)
    return {heading.replace(" ", "-") for cell in found for heading in cell}


def links_to_the_papers_that_it_names(page: Page) -> Iterator[str]:
    for cell in page.texts:
        for match in PAPER.finditer(cell.source):
            yield f"{cell} names {match[0]} without a link to https://arxiv.org/abs or doi.org"


# Words


def types_no_measured_numbers(page: Page) -> Iterator[str]:
    for cell in page.texts:
        if not re.search(r"\bquoted\b", cell.source, re.IGNORECASE):
            for match in MEASURED.finditer(prose(cell.source)):
                yield f"{cell} types a measured number, {match[0]!r}: print it, or say it is quoted"


def has_no_banned_code(page: Page) -> Iterator[str]:
    for cell in page.code:
        for match in BANNED_CODE.finditer(cell.source):
            yield f"{cell} uses {match[0]!r}: nbval cannot compare it, or GitHub cannot show it"


RULES: tuple[Rule, ...] = (
    is_as_the_command_saves_it,
    has_consecutive_execution_counts,
    has_errors_only_where_tagged_and_no_stderr,
    has_no_absolute_paths,
    has_one_title,
    has_one_bootstrap_cell_before_all_code,
    folds_plumbing_everywhere,
    has_a_check_after_every_exercise,
    folds_answers_that_hide_nothing_else,
    links_to_pages_and_headings_that_exist,
    links_to_the_papers_that_it_names,
    types_no_measured_numbers,
    has_no_banned_code,
)
