"""A site to read: all stored pages as HTML that needs neither a kernel nor a network.

Page: all of them; `python -m mpcourse site FOLDER` builds it. Nothing is run: pictures and numbers
are those that the pages hold. The files of the site open from a folder as well as from a server.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from mpcourse.commands.address import address_remedy
from mpcourse.commands.page_format import badges, page_key, read_repository
from mpcourse.commands.pages import find_pages, read
from mpcourse.commands.site.explorers import page_frames
from mpcourse.commands.site.page import SitePage, words_html

ASSETS = Path(__file__).with_name("assets")
SECTIONS = "sections.js"
WRITTEN = "mpcourse-site.txt"  # names the files of a site: these may be replaced, and no others
BADGE = re.compile(r"\[!\[(.+?)\]\(.+?\)\]\((.+?)\)")
TITLE = "mpcourse: one neural network on several devices"
INTRO = """\
The pages as they were run last, to read without a kernel: nothing runs here. What says <em>measured
here</em> was measured on the machine that ran the page, <em>simulated</em> was computed from given
costs, and <em>quoted</em> is a figure of others, with its source. Exercises and questions are for
the pages in JupyterLab: a clone of the course, and <code>python3 -m mpcourse lab</code>."""


def build_site(folder: Path, paths: Sequence[Path] | None = None) -> list[Path]:
    """Write the site of these pages, or of all; return its HTML files, the index first.

    What an earlier build has written is replaced, all else in the folder stays. Raises ValueError,
    with nothing changed, where that cannot be.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder for the site")
    old = _written(folder)
    paths = find_pages([]) if paths is None else paths
    pages = []
    for path in paths:
        notebook = read(path)
        pages.append(SitePage(path.stem, notebook, page_frames(page_key(path.name), notebook)))
    html = {"index.html": _index_html(pages)}
    html |= {f"{page.name}.html": _page_html(pages, number) for number, page in enumerate(pages)}
    texts = {name: (ASSETS / name).read_text(encoding="utf-8") for name in ("site.css", "site.js")}
    texts |= {**html, SECTIONS: _sections(pages)}
    texts |= {f"frames/{page.key}.js": page.frames.to_script() for page in pages if page.frames}
    files = {name: text.encode() for name, text in texts.items()}
    for page in pages:
        files |= {f"pictures/{name}": contents for name, contents in page.images.items()}
    files = {WRITTEN: "".join(f"{name}\n" for name in sorted(files)).encode()} | files
    _refuse_others(folder, files, old)
    for name in old - set(files):
        (folder / name).unlink(missing_ok=True)
    for name, contents in files.items():  # the list first: a build that is cut off can be repeated
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    return [folder / name for name in html]


def _written(folder: Path) -> set[str]:
    """The files that an earlier build wrote; ValueError where others are, and no site."""
    if (folder / WRITTEN).is_file():
        return {WRITTEN, *(folder / WRITTEN).read_text(encoding="utf-8").splitlines()}
    others = [path.name for path in folder.glob("[!.]*") if path.name != "CNAME"]
    if others:
        raise ValueError(f"{folder} holds something else than a site; name another folder")
    return set()


def _refuse_others(folder: Path, new: Iterable[str], old: set[str]) -> None:
    """Raise ValueError when a file that no build wrote would be replaced, or one elsewhere."""
    whole = folder.resolve()
    for name in {*new, *old}:
        if not (whole / name).resolve().is_relative_to(whole):
            raise ValueError(f"{folder / name} is in another folder; take it away first")
        if name not in old and (whole / name).exists():
            raise ValueError(f"{folder / name} was not written by this command; take it away first")


def _page_html(pages: Sequence[SitePage], number: int) -> str:
    page = pages[number]
    links = []
    for step, words in ((-1, "Previous"), (1, "Next")):
        if 0 <= number + step < len(pages):
            other = pages[number + step]
            title = escape(other.title).replace("`", "")
            links.append(f'<a href="{other.name}.html">{words}: {title}</a>')
    scripts = ["site.js"] if page.frames is None else [f"frames/{page.key}.js", "site.js"]
    body = page.body()
    first, _, rest = body.partition("</div>")
    return _fill(
        page.title.replace("`", ""),
        f"{first}</div>\n{_launch(page.name)}\n{rest}",
        scripts,
        neighbours=" ".join(links),
    )


def _index_html(pages: Sequence[SitePage]) -> str:
    rows = []
    for page in pages:
        title = words_html(page.title).strip().removeprefix("<p>").removesuffix("</p>")
        aims = words_html("\n".join(f"- {aim}" for aim in page.aims))
        link = f'<a href="{page.name}.html">{title}</a>'
        rows.append(f"<tr><th scope='row'>{link}</th><td>{aims}</td><td>{page.minutes}</td></tr>")
    body = f"""\
<h1>{TITLE}</h1>
<div class="words"><p>{INTRO}</p></div>
<section id="found" aria-live="polite" aria-label="Search results"></section>
<table class="pages"><caption>The pages</caption>
<thead><tr><th scope="col">page</th><th scope="col">after it you can</th>
<th scope="col">minutes</th></tr></thead>
<tbody>{"".join(rows)}</tbody></table>
"""
    return _fill(TITLE, body, [SECTIONS, "site.js"])


def _launch(name: str) -> str:
    remedy = address_remedy()
    if remedy:
        return (
            '<p class="launch">This copy has no public address yet, so there are no links that '
            f"launch the page on Binder, Colab or Kaggle: {escape(remedy)}.</p>"
        )
    found = BADGE.findall(badges(read_repository(), f"{name}.ipynb"))
    links = (f'<a href="{escape(address)}">{escape(words)}</a>' for words, address in found)
    return f'<p class="launch">Run this page: {" · ".join(links)}</p>'


def _fill(title: str, body: str, scripts: Sequence[str], *, neighbours: str = "") -> str:
    template = Template((ASSETS / "page.html").read_text(encoding="utf-8"))
    loaded = "\n".join(f'<script defer src="{script}"></script>' for script in scripts)
    way = '<nav class="neighbours" aria-label="{}">' + neighbours + "</nav>" if neighbours else ""
    before, after = way.format("Neighbours, before the page"), way.format("Neighbours, after it")
    filled = {"body": body, "scripts": loaded, "before": before, "after": after}
    return template.substitute(title=escape(title), **filled)


def _sections(pages: Sequence[SitePage]) -> str:
    """What the search looks through, as a script: a page opened from a folder may not fetch."""
    rows = [
        [page.name, page.title.replace("`", ""), *section]
        for page in pages
        for section in page.sections()
    ]
    return f"window.SECTIONS = {json.dumps(rows, ensure_ascii=False)};\n"


def main(argv: Sequence[str]) -> int:
    """Build the site in the folder that is named; return the exit status."""
    folder = Path(argv[0])
    try:
        files = build_site(folder)
    except (ValueError, OSError) as error:
        print(f"no site was written: {error}", file=sys.stderr)
        return 1
    print(f"{len(files)} pages are written; open {files[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
