"""The site holds what the stored pages hold, its links lead somewhere, and it asks no one else."""

import base64
import gzip
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from mpcourse.commands.page_format import normalise, page_key
from mpcourse.commands.pages import find_pages, read, save
from mpcourse.commands.site import site
from mpcourse.commands.site.explorers import frames_of, page_frames, split_explorer_of
from mpcourse.commands.site.formulas import to_mathml
from mpcourse.commands.site.page import SitePage
from mpcourse.commands.site.site import build_site
from mpcourse.figures.svg import svg_in
from mpcourse.widgets import idle_explorer, schedule_explorer, schedule_view

PAGES = {page_key(path.name): path for path in find_pages([])}
RESOURCES = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src")}


class Tags(HTMLParser):
    """Collects ids, links and what a browser would load by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.loaded, self.tags = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag: str, pairs: list) -> None:
        values = dict(pairs)
        self.tags.append(tag)
        self.ids |= {values["id"]} if "id" in values else set()
        self.links += [values["href"]] if tag == "a" and "href" in values else []
        self.loaded += [values[name] for at, name in RESOURCES if at == tag and name in values]


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages; the frames, which take most of the time, are tried out elsewhere."""
    folder = tmp_path_factory.mktemp("whole") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "page_frames", lambda page, notebook: None)
        files = build_site(folder)
    assert [file.name for file in files] == [
        "index.html",
        *(f"{path.stem}.html" for path in PAGES.values()),
    ]
    return folder


@pytest.fixture
def small_page(tmp_path: Path) -> Path:
    cells = [
        new_markdown_cell("# 01 One & only\n\n- add `1`;\n\nAbout 5 minutes."),
        new_code_cell("print('<b>')", outputs=[new_output("stream", text="<b>\n")]),
        new_code_cell("x = 1", metadata={"jupyter": {"source_hidden": True}}),
        new_markdown_cell("It is **one**.", metadata={"tags": ["answer"]}),
        new_markdown_cell("## A formula\n\nIt is $x_1$, see [there](01_one.ipynb#A-formula)."),
    ]
    path = tmp_path / "01_one.ipynb"
    save(normalise(new_notebook(cells=cells)), path)
    return path


# The pages as they are stored.


@pytest.mark.parametrize("key", PAGES)
def test_every_link_of_a_page_leads_to_a_place_that_is_there(key: str, whole_site: Path):
    tags = Tags((whole_site / f"{PAGES[key].stem}.html").read_text(encoding="utf-8"))
    inside = [link for link in tags.links if not re.match(r"https?://", link)]
    assert len(inside) > 2
    for link in inside:
        name, _, anchor = link.partition("#")
        file = whole_site / (name or f"{PAGES[key].stem}.html")
        assert file.is_file(), f"{key} links to {link}"
        if anchor:
            ids = Tags(file.read_text(encoding="utf-8")).ids
            assert html.unescape(anchor) in ids, f"{key} links to {link}"


@pytest.mark.parametrize("name", ["index", *(path.stem for path in PAGES.values())])
def test_nothing_is_loaded_from_elsewhere(name: str, whole_site: Path):
    text = (whole_site / f"{name}.html").read_text(encoding="utf-8")
    tags = Tags(text)
    assert "site.css" in tags.loaded
    for resource in tags.loaded:
        assert resource == "data:," or (whole_site / resource).is_file(), resource
    assert "url(" not in text + (whole_site / "site.css").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", PAGES)
def test_a_page_shows_all_that_is_stored(key: str, whole_site: Path):
    text = (whole_site / f"{PAGES[key].stem}.html").read_text(encoding="utf-8")
    plain = html.unescape(re.sub(r"<[^>]+>", "", text))
    folded = 0
    for number, cell in enumerate(read(PAGES[key]).cells):
        if cell.cell_type != "code":
            continue
        assert cell.source.strip("\n") in plain
        folded += bool(cell.metadata.get("jupyter", {}).get("source_hidden"))
        for position, output in enumerate(cell.outputs):
            if output.output_type == "stream":
                assert re.sub(r"\x1b\[[\d;]*m", "", output.text) in plain
            elif drawn := svg_in(output.get("data", {}).get("text/html", "")):
                assert drawn in text
            elif "image/png" in output.get("data", {}):
                file = whole_site / f"pictures/{key}-{number}-{position}.png"
                assert file.read_bytes() == base64.b64decode(output.data["image/png"])
    assert len(re.findall(r'<details><summary>[^<]+</summary><pre class="code">', text)) == folded
    assert "data:image/svg" not in text  # as text, with its tips under the pointer
    assert "colab-badge.svg" not in text


def test_every_formula_of_the_pages_is_drawn(whole_site: Path):
    texts = [file.read_text(encoding="utf-8") for file in whole_site.glob("[0-9]*.html")]
    assert sum(text.count("<math") for text in texts) > 20
    for text in texts:
        words = re.sub(r"<pre.*?</pre>|<code>.*?</code>|<svg.*?</svg>", "", text, flags=re.DOTALL)
        assert re.findall(r"\$[^$\s][^$\n]*\$", words) == []


def test_the_search_finds_a_function_where_a_page_uses_it(whole_site: Path):
    script = (whole_site / "sections.js").read_text(encoding="utf-8")
    sections = json.loads(script.removeprefix("window.SECTIONS = ").removesuffix(";\n"))
    found = {page for page, _, _, _, text in sections if "split_curve_picture" in text}
    assert found == {"07_pipeline"}
    for page in sorted({row[0] for row in sections}):
        ids = Tags((whole_site / f"{page}.html").read_text(encoding="utf-8")).ids
        anchors = {row[3] for row in sections if row[0] == page}
        assert {html.unescape(anchor) for anchor in anchors} <= ids


def test_the_index_says_what_each_page_is_for(whole_site: Path):
    text = (whole_site / "index.html").read_text(encoding="utf-8")
    assert text.count("<tr>") == len(PAGES) + 1
    assert re.search(
        r"07 A pipeline of micro-batches</a>.*?cut the graph.*?<td>75</td>", text, re.S
    )


# A page of our own, and where the site may go.


def test_a_small_page_becomes_html(small_page: Path, tmp_path: Path):
    [_, file] = build_site(tmp_path / "site", [small_page])
    text = file.read_text(encoding="utf-8")
    assert "<title>01 One &amp; only</title>" in text
    assert "<pre>&lt;b&gt;\n</pre>" in text
    assert '<h2 id="A-formula">A formula</h2>' in text
    assert '<a href="01_one.html#A-formula">' in text
    assert "<msub><mi>x</mi><mn>1</mn></msub>" in text
    assert text.count("<details>") == 2
    answer = text[text.index("<details><summary>Answer</summary>") :].partition("</details>")[0]
    assert "<strong>one</strong>" in answer


def test_links_to_launch_stand_where_there_is_an_address(small_page, tmp_path, monkeypatch):
    [_, file] = build_site(tmp_path / "without", [small_page])
    if site.read_repository() == "https://github.com/OWNER/mpcourse":
        assert "no public address yet" in file.read_text(encoding="utf-8")
    monkeypatch.setattr(site, "address_remedy", lambda: "")
    monkeypatch.setattr(site, "read_repository", lambda: "https://github.com/ada/course")
    [_, file] = build_site(tmp_path / "with", [small_page])
    links = Tags(file.read_text(encoding="utf-8")).links
    assert "https://mybinder.org/v2/gh/ada/course/main?urlpath=lab/tree/notebooks/01_one.ipynb" in (
        links
    )
    assert len([link for link in links if "ada/course" in link]) == 3


OWN = {".git/HEAD": "ref", ".nojekyll": "", "CNAME": "course.example.org"}


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}


def test_a_second_build_replaces_what_the_first_wrote_and_nothing_else(
    small_page: Path, tmp_path: Path
):
    folder, other = tmp_path / "site", tmp_path / "02_other.ipynb"
    other.write_bytes(small_page.read_bytes())
    lay(folder, OWN)
    build_site(folder, [small_page, other])
    lay(folder, OWN | {"notes/mine.html": "mine", "site.css": "changed by hand"})
    build_site(folder, [small_page])
    build_site(tmp_path / "alone", [small_page])
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


def test_nothing_is_written_through_a_link(small_page: Path, tmp_path: Path):
    for name in ("elsewhere", "site"):
        (tmp_path / name).mkdir()
    (tmp_path / "site" / site.WRITTEN).touch()
    (tmp_path / "site/index.html").symlink_to(tmp_path / "elsewhere/index.html")
    with pytest.raises(ValueError, match=r"index\.html is in another folder"):
        build_site(tmp_path / "site", [small_page])
    assert list((tmp_path / "elsewhere").iterdir()) == []


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
    assert words[:30] in "".join(SitePage("07_pipeline", notebook, frames).body())
    for cell in notebook.cells:
        cell.pop("outputs", None)
    with pytest.raises(ValueError, match="page pipeline has no outputs"):
        split_explorer_of(notebook)


# Formulas.


@pytest.mark.parametrize(
    ("tex", "mathml"),
    [
        ("n", "<mi>n</mi>"),
        ("n - 1", "<mi>n</mi><mo>−</mo><mn>1</mn>"),
        ("x_1^2", "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>"),
        ("0.9^2", "<msup><mn>0.9</mn><mn>2</mn></msup>"),
        (r"\sum_i w", "<munder><mo>∑</mo><mi>i</mi></munder><mi>w</mi>"),
        (r"\log_2 n", "<msub><mi>log</mi><mn>2</mn></msub><mi>n</mi>"),
        (r"\left(a\right)", "<mo>(</mo><mi>a</mi><mo>)</mo>"),
        (
            r"\mathrm{sign}(x)",
            '<mi>sign</mi><mo stretchy="false">(</mo><mi>x</mi><mo stretchy="false">)</mo>',
        ),
        ("e^{a+b}", "<msup><mi>e</mi><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow></msup>"),
        ("a < b", "<mi>a</mi><mo>&lt;</mo><mi>b</mi>"),
    ],
)
def test_a_formula_becomes_mathml(tex: str, mathml: str):
    assert to_mathml(tex) == f"<math><mrow>{mathml}</mrow></math>"


@pytest.mark.parametrize("tex", [r"\unheard x", "{a", "a}", "x_"])
def test_a_formula_that_cannot_be_read_is_named(tex: str):
    with pytest.raises(ValueError, match=re.escape(f"the formula {tex!r}: cannot read")):
        to_mathml(tex)
