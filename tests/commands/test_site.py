"""The site holds what the stored pages hold, its links lead somewhere, and it asks no one else."""

import base64
import gzip
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from mpcourse.commands import page_format
from mpcourse.commands.address import PLACEHOLDER
from mpcourse.commands.page_format import badges, normalise, page_key
from mpcourse.commands.pages import find_pages, read, save
from mpcourse.commands.site import site
from mpcourse.commands.site.explorers import frames_of, page_frames, split_explorer_of
from mpcourse.commands.site.page import _launch, for_readers
from mpcourse.commands.site.site import build_site
from mpcourse.figures.svg import svg_in
from mpcourse.widgets import idle_explorer, predict, schedule_explorer, schedule_view

PAGES = {page_key(path.name): path for path in find_pages([])}
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


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages; the frames, which take most of the time, are tried out elsewhere."""
    folder = tmp_path_factory.mktemp("whole") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "page_frames", lambda page, notebook: None)
        files = build_site(folder)
    names = ["index.html", *(f"{path.stem}.html" for path in PAGES.values())]
    assert [file.name for file in files] == names
    return folder


@pytest.fixture
def small_page(tmp_path: Path) -> Path:
    guess = predict("how many", ["one", "two"])
    cells = [
        new_markdown_cell("# 01 One & only\n\n- add `1`;\n\nAbout 5 minutes."),
        new_code_cell("print('<b>')", outputs=[new_output("stream", text="<b>\n")]),
        new_code_cell("x = 1", metadata={"jupyter": {"source_hidden": True}}),
        new_code_cell(
            'guess = predict("how many", ["one", "two"])\nguess', outputs=[shown(repr(guess))]
        ),
        new_code_cell('guess.compare("two")', outputs=[shown(repr(guess.compare("two")))]),
        new_code_cell("check_one(1)", metadata={"tags": ["check"]}, outputs=[shown("… not yet")]),
        new_markdown_cell("It is **one**.", metadata={"tags": ["answer"]}),
        new_markdown_cell("## A formula\n\nIt is $x_1$, see [there](01_one.ipynb#A-formula)."),
    ]
    path = tmp_path / "01_one.ipynb"
    save(normalise(new_notebook(cells=cells)), path)
    return path


def shown(words: str):
    return new_output("display_data", {"text/plain": words})


# The pages as they are stored.


@pytest.mark.parametrize("name", ["index", *(path.stem for path in PAGES.values())])
def test_every_link_leads_to_a_place_that_is_there(name: str, whole_site: Path):
    tags = Tags((whole_site / f"{name}.html").read_text(encoding="utf-8"))
    inside = [link for link in tags.links if not re.match(r"https?://", link)]
    assert len(inside) > 2
    for link in inside:
        to, _, anchor = link.partition("#")
        file = whole_site / (to or f"{name}.html")
        assert file.is_file(), f"{name} links to {link}"
        if anchor:
            ids = Tags(file.read_text(encoding="utf-8")).ids
            assert unquote(anchor) in ids, f"{name} links to {link}"


@pytest.mark.parametrize("name", ["index", *(path.stem for path in PAGES.values())])
def test_nothing_is_loaded_from_elsewhere(name: str, whole_site: Path):
    tags = Tags((whole_site / f"{name}.html").read_text(encoding="utf-8"))
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


def test_every_formula_of_the_pages_is_drawn(whole_site: Path):
    texts = [file.read_text(encoding="utf-8") for file in whole_site.glob("[0-9]*.html")]
    assert sum(text.count("<math") for text in texts) > 20
    for text in texts:
        words = re.sub(r"<pre.*?</pre>|<code.*?</code>|<svg.*?</svg>", "", text, flags=re.DOTALL)
        assert re.findall(r"\$[^$\s][^$\n]*\$", words) == []


def test_the_front_page_says_what_each_page_is_for(whole_site: Path):
    text = (whole_site / "index.html").read_text(encoding="utf-8")
    assert re.search(r"07 A pipeline of micro-batches</span></a>: \w+", text)
    assert text.count(" minutes)") == len(PAGES)


# A page of our own, and where the site may go.


def test_a_small_page_becomes_html(small_page: Path, tmp_path: Path):
    [_, file] = build_site(tmp_path / "site", [small_page])
    text = file.read_text(encoding="utf-8")
    assert "<title>01 One &amp; only" in text
    assert "&lt;b&gt;\n</pre>" in text
    assert 'id="a-formula"' in text
    assert "#a-formula" in Tags(text).links
    assert "<msub>" in text
    assert "imports and preparation" in text
    answer = text[text.index("<details><summary>Answer</summary>") :].partition("</details>")[0]
    assert "<strong>one</strong>" in answer
    assert '<fieldset class="guess" data-guess="guess"><legend>how many</legend>' in text
    assert text.count('aria-pressed="false"') == 2
    assert '<details class="answer" data-guess="guess"><summary>Answer</summary><p>two</p>' in text
    assert "not yet" not in text


@pytest.mark.parametrize("live", ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>"])
def test_html_that_could_run_is_refused_in_a_text_and_dropped_from_an_output(live: str):
    output = new_output("display_data", {"text/html": live, "text/plain": "words"})
    cells = [new_markdown_cell("# 01 One"), new_code_cell("1", outputs=[output])]
    page = for_readers(new_notebook(cells=cells), "one")
    assert page.cells[1].outputs[0].data == {"text/plain": "words"}
    cells[0].source += f"\n\n`{live}`"
    for_readers(new_notebook(cells=cells), "one")
    cells[0].source += f"\n\n{live}"
    with pytest.raises(ValueError, match=r"a text holds '<\w+.*>', which no page needs"):
        for_readers(new_notebook(cells=cells), "one")


def test_links_to_launch_and_a_map_stand_where_there_is_an_address(
    small_page, tmp_path, monkeypatch
):
    assert _launch(badges(PLACEHOLDER, "01_one.ipynb")) == ""
    notebook, address = read(small_page), "https://github.com/Ada/course"
    notebook.cells[0].source += "\n\n" + badges(address, "01_one.ipynb")
    save(notebook, small_page)
    monkeypatch.setattr(page_format, "read_repository", lambda: address)
    [_, file] = build_site(tmp_path / "with", [small_page])
    text = file.read_text(encoding="utf-8")
    links = [link for link in Tags(text).links if "Ada/course" in link]
    for place in ("github.com", "colab.research.google.com", "kaggle.com", "mybinder.org"):
        assert [link for link in links if link.startswith(f"https://{place}/")]
    assert 'property="og:title" content="01 One' in text
    found = (tmp_path / "with/sitemap.xml").read_text(encoding="utf-8")
    assert "https://ada.github.io/course/01_one.html" in found


OWN = {".git/HEAD": "ref", ".nojekyll": "", "CNAME": "course.example.org"}


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


@pytest.fixture
def no_sphinx(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes where is seen without Sphinx: each page becomes one file as it is."""

    def copies(source: Path, built: Path) -> None:
        for path in [source / "index.md", *source.glob("*.ipynb")]:
            lay(built, {f"{path.stem}.html": path.read_text(encoding="utf-8")})

    monkeypatch.setattr(site, "_run_sphinx", copies)


@pytest.mark.usefixtures("no_sphinx")
def test_a_second_build_replaces_what_the_first_wrote_and_nothing_else(
    small_page: Path, tmp_path: Path
):
    folder, other = tmp_path / "site", tmp_path / "02_other.ipynb"
    other.write_bytes(small_page.read_bytes())
    lay(folder, OWN)
    build_site(folder, [small_page, other])
    lay(folder, OWN | {"notes/mine.html": "mine", "index.html": "changed by hand"})
    build_site(folder, [small_page])
    build_site(tmp_path / "alone", [small_page])
    assert contents(folder) == contents(tmp_path / "alone") | OWN | {"notes/mine.html": "mine"}


@pytest.mark.usefixtures("no_sphinx")
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
    files: dict[str, str], words: str, small_page: Path, tmp_path: Path
):
    folder = tmp_path / "site"
    lay(folder, files | {"../letter.txt": "dear Ada"})
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=words):
        build_site(folder, [small_page])
    with pytest.raises(ValueError, match=r"letter\.txt is a file; name a folder"):
        build_site(tmp_path / "letter.txt", [small_page])
    assert contents(tmp_path) == before


@pytest.mark.usefixtures("no_sphinx")
def test_nothing_is_written_through_a_link(small_page: Path, tmp_path: Path):
    for name in ("elsewhere", "site"):
        (tmp_path / name).mkdir()
    (tmp_path / "site" / site.WRITTEN).touch()
    (tmp_path / "site/index.html").symlink_to(tmp_path / "elsewhere/index.html")
    with pytest.raises(ValueError, match=r"index\.html is in another folder"):
        build_site(tmp_path / "site", [small_page])
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.usefixtures("no_sphinx")
def test_a_build_that_is_cut_off_can_be_repeated(small_page: Path, tmp_path: Path, monkeypatch):
    write, count = Path.write_bytes, iter(range(3))

    def fails(path: Path, contents: bytes) -> int:
        if next(count, None) is None:
            raise OSError("No space left on device")
        return write(path, contents)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fails)
        with pytest.raises(OSError, match="No space"):
            build_site(tmp_path / "site", [small_page])
    build_site(tmp_path / "site", [small_page])
    build_site(tmp_path / "alone", [small_page])
    assert contents(tmp_path / "site") == contents(tmp_path / "alone")


# Explorers without a kernel.


def test_each_position_has_the_widgets_own_picture():
    explorer = schedule_explorer()
    chosen = {"schedule": None, "devices": (2, 4), "microbatches": (3, 8)}
    frames = frames_of(explorer, chosen)
    assert frames.first == explorer.view.value
    names = frames.controls[0]["words"]
    at = (names.index("gpipe") * 2 + 0) * 2 + 1
    assert frames.pictures[at] == schedule_view("gpipe", 2, 8).svg
    assert [control["slider"] for control in frames.controls] == [False, False, False]


def test_the_script_of_the_frames_has_each_picture_once():
    frames = frames_of(idle_explorer(), {"first": None, "second": (1, 2)})
    twice = type(frames)(frames.about, frames.controls, [*frames.pictures, frames.pictures[0]])
    script = twice.to_script().removeprefix("window.FRAMES = ").removesuffix(";\n")
    found = json.loads(script)
    found |= json.loads(gzip.decompress(base64.b64decode(found["packed"])))
    assert [found["pictures"][index] for index in found["order"]] == twice.pictures
    assert len(found["pictures"]) == len(frames.pictures) == 16
    assert twice.to_script() == twice.to_script()


def test_frames_of_controls_and_values_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="no control 'third'; there are first, second"):
        frames_of(idle_explorer(), {"third": None})
    with pytest.raises(ValueError, match=r"first cannot be all of \[1, 99\]; it has \[1, 2, 3"):
        frames_of(idle_explorer(), {"first": (1, 99)})


def test_the_split_explorer_says_what_the_page_printed():
    notebook = read(PAGES["pipeline"])
    printed = "\n".join(
        out.text for cell in notebook.cells for out in cell.get("outputs", []) if "text" in out
    )
    rows = re.findall(r"split size +(\d+): predicted +(\d+) ms, measured +(\d+) ms", printed)
    assert len(rows) == 6
    explorer = split_explorer_of(notebook)
    for size, predicted, measured in rows:
        assert explorer.predicted[int(size)] * 1e3 == pytest.approx(float(predicted), abs=1.5)
        assert explorer.measured[int(size)] * 1e3 == pytest.approx(float(measured), abs=0.6)
    frames = page_frames("pipeline", notebook)
    assert len(frames.pictures) == len(explorer.predicted)
    words = re.search(r"simulated; split size \d+, .*? ms", explorer.view.value)[0]
    assert words[:30] in str(for_readers(notebook, "pipeline", frames).cells)
    for cell in notebook.cells:
        cell.pop("outputs", None)
    with pytest.raises(ValueError, match="page pipeline has no outputs"):
        split_explorer_of(notebook)
