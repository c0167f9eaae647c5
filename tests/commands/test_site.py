"""The site holds what the stored pages hold, its links lead somewhere, and it asks no one else."""

import base64
import copy
import html
import re
import shutil
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from nbformat import write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from mpcourse.commands import address
from mpcourse.commands.address import PLACEHOLDER, Address, badges
from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.pages import normalise, read
from mpcourse.commands.setup import ROOT
from mpcourse.commands.site import site
from mpcourse.commands.site.page import _launch, explorer_of, for_readers
from mpcourse.commands.site.site import build_site, to_html
from mpcourse.figures.svg import Picture, svg_in
from mpcourse.widgets import picture_slider, predict, scatter_explorer

PAGES = {page_key(path.name): path for path in find_pages([])}
TEXTS = [path.stem for folder in (site.SOURCE, ROOT) for path in folder.glob("*.md")]
TEXTS.remove("README")
NAMES = [*TEXTS, *(path.stem for path in PAGES.values())]
LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src")}


class Tags(HTMLParser):
    """Collects ids, links and what a browser would load by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag: str, pairs: list) -> None:
        values = dict(pairs)
        self.ids |= {values["id"]} if "id" in values else set()
        self.links += [values["href"]] if tag == "a" and "href" in values else []
        if values.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.loaded += [values[name] for at, name in LOADED if at == tag and name in values]


@cache  # a page links to many places of its own
def tags_of(file: Path) -> Tags:
    return Tags(file.read_text(encoding="utf-8"))


OWN = {".git/HEAD": "ref", ".nojekyll": "", "CNAME": "course.example.org"}


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages and texts, in a folder as it is published."""
    folder = tmp_path_factory.mktemp("whole") / "site"
    lay(folder, OWN)
    files = build_site(folder)
    assert {folder / f"{name}.html" for name in NAMES} < set(files)
    assert files[0] == folder / "index.html"
    assert {name: (folder / name).read_text() for name in OWN} == OWN
    return folder


# The pages as they are stored.


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(
    name: str, whole_site: Path
):
    tags = tags_of(whole_site / f"{name}.html")
    inside = [link for link in tags.links if not re.match(r"https?://", link)]
    assert len(inside) > 2
    for link in inside:
        to, _, anchor = link.partition("#")
        file = whole_site / (to or f"{name}.html")
        assert file.is_file(), f"{name} links to {link}"
        if anchor:
            assert unquote(anchor) in tags_of(file).ids, f"{name} links to {link}"
    assert len(tags.loaded) > 3
    for resource in tags.loaded:
        assert (whole_site / resource.partition("?")[0]).is_file(), resource


@pytest.mark.parametrize("key", PAGES)
def test_a_page_shows_all_that_is_stored(key: str, whole_site: Path):
    text = (whole_site / f"{PAGES[key].stem}.html").read_text(encoding="utf-8")
    plain = html.unescape(re.sub(r"<[^>]+>", "", text))
    images = {path.read_bytes() for path in (whole_site / "_images").glob("*.png")}
    for cell in read(PAGES[key]).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or "bootstrap" in tags:
            continue
        assert cell.source.strip("\n") in plain
        for output in [] if "check" in tags else cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                assert re.sub(r"\x1b\[[\d;]*m", "", output.text).strip() in plain
            elif drawn := svg_in(data.get("text/html", "")):
                assert drawn in text
            elif "image/png" in data:
                assert base64.b64decode(data["image/png"]) in images
    for never in ("data:image/svg", "colab-badge.svg", "… not attempted", "none yet", "OWNER"):
        assert never not in text


def test_every_formula_of_the_pages_is_drawn_once(whole_site: Path):
    drawn = 0
    for path in PAGES.values():
        text = (whole_site / f"{path.stem}.html").read_text(encoding="utf-8")
        words = re.sub(r"<pre.*?</pre>|<code.*?</code>|<svg.*?</svg>", "", text, flags=re.DOTALL)
        drawn += words.count("<math")
        formula = re.compile(r"\$[^$\s][^$\n]*\$")
        assert formula.findall(words) == []
        texts = (cell.source for cell in read(path).cells if cell.cell_type == "markdown")
        for source in (found[1:-1] for each in texts for found in formula.findall(each)):
            assert f"</math>{html.escape(source)}" not in words
    assert drawn > 20


def test_the_front_page_leads_everywhere_and_has_an_explorer(whole_site: Path):
    text = (whole_site / "index.html").read_text(encoding="utf-8")
    main = text[text.index("<article") : text.index("</article>")]
    assert {f"{path.stem}.html" for path in PAGES.values()} < set(Tags(main).links)
    assert re.search(r"A pipeline of micro-batches</span></a> \(\d+ minutes\)", main)
    assert '<figure class="explorer" data-frames="H4sI' in main
    assert '<meta name="description" content="' in text


def test_every_explorer_has_its_pictures_and_every_choice_its_answer(whole_site: Path):
    texts = {
        key: (whole_site / f"{path.stem}.html").read_text("utf-8") for key, path in PAGES.items()
    }
    stored = {key: path.read_text(encoding="utf-8") for key, path in PAGES.items()}
    with_explorer = {key for key in PAGES if '"<explorer: ' in stored[key]}
    assert with_explorer == {key for key in PAGES if 'class="explorer"' in texts[key]}
    assert "data-frames" in texts["pipeline"]
    names = re.compile(r'<(fieldset|details) class="\w+" data-guess="(\w+)">')
    found = {(key, *each) for key, text in texts.items() for each in names.findall(text)}
    asked = {(key, name) for key, tag, name in found if tag == "fieldset"}
    waits = {each for each in asked if (each[0], "details", each[1]) not in found}
    assert len(asked) > 20
    assert len(waits) < 2, waits  # one is answered on a quiet machine only


# A page of our own.

CELLS = [
    new_markdown_cell("# 01 One & only\n\n- add `1`;\n\nAbout 5 minutes."),
    new_code_cell("print('<b>')", outputs=[new_output("stream", text="<b>\n")]),
    new_code_cell("x = 1", metadata=(folded := {"jupyter": {"source_hidden": True}})),
    new_code_cell('guess = predict("how many", ["one", "two"])\nguess'),
    new_code_cell('guess.compare("two")'),
    new_code_cell("check_one(1)", metadata={"tags": ["check"]}),
    new_markdown_cell("One way:"),
    new_code_cell("one = 1", metadata=folded),
    new_markdown_cell("It is **one**.", metadata={"tags": ["answer"]}),
]


def shown(words: str, **others: str):
    return new_output("display_data", {"text/plain": words, **others})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What Sphinx reads: the site's settings, a front page, and one page."""
    guess = predict("how many", ["one", "two"])
    notebook = copy.deepcopy(new_notebook(cells=CELLS))
    for at, words in ((3, repr(guess)), (4, repr(guess.compare("two"))), (5, "… not yet")):
        notebook.cells[at].outputs = [shown(words)]
    shutil.copytree(site.SOURCE, tmp_path / "source", ignore=shutil.ignore_patterns("*.md"))
    shutil.copy(ROOT / "data/pictures/explorer.png", tmp_path / "source")
    write(for_readers(normalise(notebook), "one"), tmp_path / "source/01_one.ipynb")
    front = "# Front\n\n{{ links }}\n\n```{toctree}\n01_one\n```\n"
    (tmp_path / "source/index.md").write_text(front, encoding="utf-8")
    return tmp_path / "source"


def test_a_small_page_becomes_html(source: Path, tmp_path: Path):
    to_html(source, tmp_path / "built")
    text = (tmp_path / "built/01_one.html").read_text(encoding="utf-8")
    assert "<title>01 One &amp; only" in text
    assert "&lt;b&gt;\n</pre>" in text
    assert text.index("Show the code") < text.index("Show a solution")
    answer = text[text.index("<details><summary>Answer</summary>") :].partition("</details>")[0]
    assert "<strong>one</strong>" in answer
    assert '<fieldset class="guess" data-guess="guess"><legend>how many</legend>' in text
    assert text.count('aria-pressed="false"') == 2
    assert '<details class="answer" data-guess="guess"><summary>Answer</summary><p>two</p>' in text


def test_what_sphinx_warns_of_is_said(source: Path, tmp_path: Path):
    (source / "index.md").write_text("# Front\n\n[nowhere](nowhere.md)", encoding="utf-8")
    with pytest.raises(ValueError, match=r"index\.md:3: WARNING: .*'nowhere\.md'"):
        to_html(source, tmp_path / "built")


@pytest.mark.parametrize(("name", "folder"), [("course", "course/"), ("Ada.github.io", "")])
def test_an_address_brings_links_a_map_and_a_card(
    name, folder, source: Path, tmp_path: Path, monkeypatch
):
    repository, site = f"https://github.com/Ada/{name}", f"https://ada.github.io/{folder}"
    monkeypatch.setattr(address, "read_address", lambda: Address(repository, "spring"))
    front = (source / "index.md").read_text("utf-8") + "\n{{ start }}\n"
    (source / "index.md").write_text(front, encoding="utf-8")
    to_html(source, tmp_path / "built")
    text = (tmp_path / "built/index.html").read_text(encoding="utf-8")
    places = {f"{repository}/tree/spring", f"{repository}/blob/spring/CITATION.cff"}
    assert {each for each in Tags(text).links if "github.com" in each} > places
    assert repository not in Tags(text).links
    assert f"git clone --branch spring {repository} mpcourse\ncd" in re.sub("<.*?>", "", text)
    [card] = re.findall(rf'property="og:image" content="{site}(_.+?)"', text)
    assert (tmp_path / "built" / card).is_file()
    found = (tmp_path / "built/sitemap.xml").read_text(encoding="utf-8")
    assert f"{site}01_one.html" in found


def test_badges_become_words_where_they_lead_somewhere():
    assert _launch(badges(Address(PLACEHOLDER, "main"), "01_one.ipynb")) == ""
    line = _launch(badges(Address("https://github.com/Ada/course", "dev"), "01_one.ipynb"))
    for place in ("colab.research.google.com", "kaggle.com", "mybinder.org"):
        assert f"](https://{place}/" in line
    assert "![" not in line


@pytest.mark.parametrize("live", ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>"])
def test_html_that_could_run_is_refused_in_a_text_and_dropped_from_an_output(live: str):
    cells = [new_markdown_cell("# 01 One"), new_code_cell("1")]
    cells[1].outputs = [shown("words", **{"text/html": live})]
    page = for_readers(new_notebook(cells=cells), "one")
    assert page.cells[1].outputs[0].data == {"text/plain": "words"}
    cells[0].source += f"\n\n`{live}`"
    for_readers(new_notebook(cells=cells), "one")
    cells[0].source += f"\n\n{live}"
    with pytest.raises(ValueError, match=r"a text holds '<\w+.*>', which no page needs"):
        for_readers(new_notebook(cells=cells), "one")


@pytest.mark.parametrize(
    "live",
    [
        '<svg onload="alert(1)"/>',
        "<svg><script>alert(1)</script></svg>",
        '<svg><a xlink:href="javascript:alert(1)"><text>x</text></a></svg>',
        '<svg><rect fill="red"ONCLICK = "alert(1)"/></svg>',
        "<svg><foreignObject></foreignObject></svg>",
    ],
)
def test_a_picture_that_could_run_is_refused(live: str):
    picture = Picture(live, "One", "A picture.")
    cell = new_code_cell("1", outputs=[shown("", **{"text/html": picture._repr_html_()})])
    with pytest.raises(ValueError, match="a picture holds '<"):
        for_readers(new_notebook(cells=[cell]), "one")
    frames = picture_slider({1: picture}, "number").frames()
    with pytest.raises(ValueError, match="a picture holds '<"):
        explorer_of("", "", frames)
    with pytest.raises(ValueError, match=r"padding|base64"):
        explorer_of("", "", f'{scatter_explorer().frames()}">{live}')


# Where the site may go: seen without Sphinx, which would take long.


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch):
    """Builds a site of these files in a folder."""

    def build(folder: Path, *names: str) -> None:
        files = dict.fromkeys(["index.html", *names], "built")
        monkeypatch.setattr(site, "lay_out", lambda source: None)
        monkeypatch.setattr(site, "to_html", lambda source, built: lay(built, files))
        build_site(folder)

    return build


def test_a_second_build_replaces_what_the_first_wrote_and_nothing_else(build, tmp_path: Path):
    folder = tmp_path / "site"
    lay(folder, OWN)
    build(folder, "one.html", "two.html")
    lay(folder, OWN | {"notes/mine.html": "mine", "index.html": "changed by hand"})
    build(folder, "one.html")
    build(tmp_path / "alone", "one.html")
    assert contents(folder) == contents(tmp_path / "alone") | OWN | {"notes/mine.html": "mine"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"to-ada.txt": "dear Ada"}, "site holds something else than a site; name another folder"),
        ({"sections.js": "", "index.html": ""}, "site holds something else than a site"),
        ({site.WRITTEN: "", "index.html": "mine"}, r"index\.html was not written by this command"),
        ({site.WRITTEN: "../letter.txt"}, r"letter\.txt is in another folder; take it away first"),
    ],
)
def test_what_no_build_wrote_is_named_and_left_alone(
    files: dict[str, str], words: str, build, tmp_path: Path
):
    lay(tmp_path / "site", files | {"../letter.txt": "dear Ada"})
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=words):
        build(tmp_path / "site")
    with pytest.raises(ValueError, match=r"letter\.txt is a file; name a folder"):
        build(tmp_path / "letter.txt")
    assert contents(tmp_path) == before


def test_nothing_is_written_through_a_link(build, tmp_path: Path):
    lay(tmp_path, {f"site/{site.WRITTEN}": "", "elsewhere/letter.txt": ""})
    (tmp_path / "site/index.html").symlink_to(tmp_path / "elsewhere/index.html")
    with pytest.raises(ValueError, match=r"index\.html is in another folder"):
        build(tmp_path / "site")
    assert contents(tmp_path / "elsewhere") == {"letter.txt": ""}


def test_a_build_that_is_cut_off_can_be_repeated(build, tmp_path: Path, monkeypatch):
    write, count = Path.write_bytes, iter(range(2))

    def fails(path: Path, contents: bytes) -> int:
        if next(count, None) is None:
            raise OSError("No space left on device")
        return write(path, contents)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fails)
        with pytest.raises(OSError, match="No space"):
            build(tmp_path / "site", "one.html")
    build(tmp_path / "site", "one.html")
    build(tmp_path / "alone", "one.html")
    assert contents(tmp_path / "site") == contents(tmp_path / "alone")
