"""The site works in a browser without a network, and axe finds no serious fault in what we make."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; see tests/requirements.txt")

from axe import CONTRAST, contrast_faults, faults
from lab import running_browser
from playwright.sync_api import Browser, Page

from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.setup import ROOT
from mpcourse.commands.site.site import SOURCE, build_site

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = [path.stem for path in find_pages([])]
TEXTS = [path.stem for place in (SOURCE, ROOT) for path in place.glob("*.md")]
TEXTS.remove("README")
WITH_EXPLORER = ("pipeline", "schedules", "sharded_data_parallel", "pruning")
PAGE_LIMIT = 4_000_000  # bytes that a page loads
TWO_FRAMES = "new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))"
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
        self.tab.add_style_tag(
            content="* { transition: none !important; animation: none !important; }"
        )
        if self.tab.locator(".explorer").count():
            self.tab.wait_for_selector(".explorer[data-ready]")


@pytest.fixture
def opened(browser: Browser, folder: Path) -> Iterator[OpenSite]:
    with browser.new_context() as context:
        yield OpenSite(context.new_page(), folder)


@pytest.mark.parametrize("stem", [*TEXTS, *PAGES])
def test_a_page_of_the_site_can_be_read_by_all(stem: str, opened: OpenSite):
    opened.open(stem)
    opened.tab.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert faults(opened.tab, without=(CONTRAST,)) + contrast_faults(opened.tab) == []
    opened.tab.emulate_media(color_scheme="dark")
    opened.tab.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert contrast_faults(opened.tab) == []
    for width in (800, 390):  # 390: a phone, and 800 pixels at 200%
        opened.tab.set_viewport_size({"width": width, "height": 800})
        opened.tab.evaluate(TWO_FRAMES)  # until what watches for widths has heard of it
        too_wide = opened.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, f"{stem} is {too_wide} pixels wider than {width}"
    assert faults(opened.tab, only=("scrollable-region-focusable",)) == []
    assert (opened.asked, opened.complaints) == ([], [])
    sizes = [file.stat().st_size for file in set(opened.loaded) if file.is_file()]
    assert len(sizes) >= 3
    assert sum(sizes) < PAGE_LIMIT


@pytest.mark.parametrize("key", WITH_EXPLORER)
def test_an_explorer_follows_the_arrow_keys(key: str, opened: OpenSite):
    [stem] = [stem for stem in PAGES if page_key(f"{stem}.ipynb") == key]
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
    assert opened.tab.locator(".explorer :is(output, [role=status])").count() == 0  # one voice
    opened.tab.set_viewport_size({"width": 360, "height": 800})
    rows = opened.tab.locator(".controls label, .controls")
    assert not rows.evaluate_all("all => all.some(row => row.scrollWidth > row.clientWidth)")
    assert opened.complaints == []


def test_a_fold_is_called_what_is_seen_on_it(opened: OpenSite):
    opened.open("08_schedules")
    folds = opened.tab.locator("details.above-input > summary")
    heard = [fold.aria_snapshot() for fold in folds.all()]
    assert "Show the code" in heard[0]
    assert all("Show a solution" in each for each in heard[1:])


def test_the_schedule_explorer_draws_what_is_chosen(opened: OpenSite):
    opened.open("08_schedules")
    opened.tab.get_by_label("schedule").select_option("gpipe")
    assert "gpipe: time 33" in opened.tab.locator(".explorer .said").inner_text()


def test_a_choice_opens_its_answer(opened: OpenSite):
    opened.open("00_start_here")
    question = opened.tab.locator("fieldset.guess").first
    answer = opened.tab.locator(
        f"details.answer[data-guess='{question.get_attribute('data-guess')}']"
    )
    assert answer.get_attribute("open") is None
    for button in question.locator("button").all():
        button.focus()
        opened.tab.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        said = question.get_by_role("status").inner_text()
        right = answer.locator("p").inner_text().startswith(button.inner_text())
        assert ("as you said" if right else "not what you guessed") in said
    assert answer.get_attribute("open") is not None


def test_the_search_leads_to_the_page(opened: OpenSite):
    opened.open("search", "?q=zero+bubble")
    first = opened.tab.locator("#search-results li a").first
    first.click()
    opened.tab.wait_for_url(re.compile(r"/\d\d_zero_bubble.html"))
    assert (opened.asked, opened.complaints) == ([], [])
