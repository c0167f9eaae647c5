"""The site works in a browser without a network, and axe finds no serious fault in what we make."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; see tests/requirements.txt")

from axe import faults
from lab import running_browser
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Browser, Page

from mpcourse.commands.page_format import normalise, page_key
from mpcourse.commands.pages import find_pages, save
from mpcourse.commands.site.site import build_site

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STEMS = ["index", *(path.stem for path in find_pages([]))]
LIVE = "<script>document.title = 'ran'</script><img alt='' src='data:,' onerror='document.title=1'>"
WITH_EXPLORER = ("pipeline", "schedules", "does_it_fit")
PAGE_LIMIT = 3_000_000  # bytes that a page loads
LIMIT_MS = 60_000  # for a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    build_site(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


class OpenSite:
    """A tab that may load files only, and notes what it asks others for and complains about."""

    def __init__(self, tab: Page, folder: Path) -> None:
        self.tab, self.folder = tab, folder
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.loaded: list[Path] = []
        tab.set_default_timeout(LIMIT_MS)
        tab.route("**/*", self._let_files_pass)
        tab.on("console", lambda message: self._note(message.type, message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _let_files_pass(self, route: Any) -> None:
        url = route.request.url
        if url.startswith(("file:", "data:")):
            self.loaded += [Path(url.removeprefix("file://").partition("?")[0])]
            return route.continue_()
        self.asked.append(url)
        return route.abort()

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def open(self, stem: str, query: str = "") -> None:
        self.loaded.clear()
        self.tab.goto((self.folder / f"{stem}.html").as_uri() + query)
        if self.tab.locator(".explorer").count():
            self.tab.wait_for_selector(".explorer[data-ready]")


@pytest.fixture
def opened(browser: Browser, folder: Path) -> Iterator[OpenSite]:
    with browser.new_context() as context:
        yield OpenSite(context.new_page(), folder)


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_of_the_site_can_be_read_by_all(stem: str, opened: OpenSite):
    opened.open(stem)
    opened.tab.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert faults(opened.tab) == []
    opened.tab.emulate_media(color_scheme="dark")
    assert faults(opened.tab, only=("color-contrast",)) == []
    for width in (800, 400):  # 400: 800 pixels at 200%
        opened.tab.set_viewport_size({"width": width, "height": 800})
        too_wide = opened.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, f"{stem} is {too_wide} pixels wider than {width}"
    assert faults(opened.tab, only=("scrollable-region-focusable",)) == []
    assert (opened.asked, opened.complaints) == ([], [])
    sizes = [file.stat().st_size for file in set(opened.loaded) if file.is_file()]
    assert len(sizes) >= 3
    assert sum(sizes) < PAGE_LIMIT


@pytest.mark.parametrize("key", WITH_EXPLORER)
def test_an_explorer_follows_the_arrow_keys(key: str, opened: OpenSite):
    [stem] = [stem for stem in STEMS[1:] if page_key(f"{stem}.ipynb") == key]
    opened.open(stem)
    view, said = opened.tab.locator(".explorer .view"), opened.tab.locator(".explorer .said")
    for slider in opened.tab.locator(".explorer input[type=range]").all():
        before = view.inner_html(), slider.get_attribute("aria-valuetext")
        slider.focus()
        at_end = slider.input_value() == slider.get_attribute("max")
        opened.tab.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
        assert slider.get_attribute("aria-valuetext") != before[1]
        assert view.inner_html() != before[0]
        assert said.inner_text() == view.locator("text").first.text_content()
    assert opened.complaints == []


def test_the_schedule_explorer_draws_what_is_chosen(opened: OpenSite):
    opened.open("08_schedules")
    opened.tab.get_by_label("schedule").select_option("gpipe")
    assert "gpipe: time 33" in opened.tab.locator(".explorer .said").inner_text()


def test_the_search_leads_to_the_section(opened: OpenSite):
    opened.open("index", "?q=zero+bubble")
    first = opened.tab.locator("#found a").first
    assert opened.tab.locator("#found a").count() > 2
    first.click()
    opened.tab.wait_for_url(re.compile(r"/\d\d_\w+\.html#"))
    anchor = opened.tab.evaluate("decodeURIComponent(location.hash.slice(1))")
    assert opened.tab.evaluate("id => document.getElementById(id) !== null", anchor)
    assert (opened.asked, opened.complaints) == ([], [])


def test_no_program_in_a_text_or_a_stored_output_runs(browser: Browser, tmp_path: Path):
    output = new_output("display_data", {"text/html": LIVE})
    cells = [new_markdown_cell(f"# 01 One\n\n{LIVE}"), new_code_cell("1", outputs=[output])]
    save(normalise(new_notebook(cells=cells)), tmp_path / "01_one.ipynb")
    build_site(tmp_path / "site", [tmp_path / "01_one.ipynb"])
    with browser.new_context() as context:
        opened = OpenSite(context.new_page(), tmp_path / "site")
        opened.open("01_one")
        opened.tab.wait_for_load_state("networkidle")
        assert opened.tab.title() == "01 One"
        assert len(opened.complaints) == 4
