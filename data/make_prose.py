"""Write `prose.txt`: the course's own prose, for page `a_transformer` to learn from.

    python data/make_prose.py

Source: the text cells of the pages in notebooks/ (without `a_transformer` and what follows from
it), without code, tables, links' addresses and headings; one paragraph a line. The stored file is
the prose at one moment: pages may change without it, and numbers on the page then stay as they are.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {
    "a_transformer",
    "serving",
    "cut_inside_a_layer",
    "long_sequences",
    "context_parallelism",
}
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
TAG = re.compile(r"<!--.*?-->|<summary>.*?</summary>|</?[A-Za-z][^>]*>", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
LINE_THAT_IS_NO_PROSE = re.compile(r"^\s*(#|\||\$\$)")
PLAIN = {"–": "-", "—": "-", "…": "...", "×": "x", "’": "'", "“": '"', "”": '"'}
KEPT = re.compile(r"[A-Za-z0-9 .,:;?'\"()\-\n]+")
SHORTEST = 30  # characters of a paragraph that says something


def paragraphs(source: str) -> list[str]:
    """The paragraphs of one Markdown cell, as plain letters."""
    source = LINK.sub(r"\1", TAG.sub(" ", FENCED.sub(" ", source)))
    for sign, plain in PLAIN.items():
        source = source.replace(sign, plain)
    lines = [line for line in source.splitlines() if not LINE_THAT_IS_NO_PROSE.match(line)]
    plain = [re.sub(r"[*_`]|^\s*-\s+", "", line).strip() for line in lines]
    whole = [re.sub(r" +", " ", line) for line in plain if KEPT.fullmatch(line)]
    return [line for line in whole if len(line) >= SHORTEST]


def prose() -> str:
    """All pages, in order."""
    found = []
    for page in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if page.stem[3:] not in LEFT_OUT:
            cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
            texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
            found += [line for text in texts for line in paragraphs(text)]
    return "\n".join(found) + "\n"


if __name__ == "__main__":
    text = prose()
    (ROOT / "data" / "prose.txt").write_text(text, encoding="ascii", newline="\n")
    print(f"{len(text):,} characters, {len(set(text))} different ones")
