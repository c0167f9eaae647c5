"""Every page in a real JupyterLab and browser: its widgets run there and obey the keyboard."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode

from mpcourse.commands.clean_copies import find_pages, write_copies
from mpcourse.commands.grading.questions import bound_names, plain_python
from mpcourse.commands.pages import read, to_text
from mpcourse.commands.setup import ROOT
from mpcourse.figures.svg import svg_in

pytest.importorskip("playwright", reason="playwright is not installed; see tests/requirements.txt")

from axe import faults
from forks import copy_course
from lab import SCREEN, OpenPage, Server, running_browser, running_lab, wait_for
from playwright.sync_api import Browser, ElementHandle

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ARTEFACTS = ROOT / "tests/artefacts"
REACTION_LIMIT_S = 60  # generous: other programs may hold the machine
ANSWER_LIMIT_MS = 200  # from a key press to the new picture, the fastest of some
AT_ONCE_MS = 100  # what people take for at once; a slow machine gets twice that
MOST_PRESSES = 30

# The controls that a reader can use.
FIND_CONTROLS = """() => [...document.querySelectorAll(
  '.jp-Notebook .jp-OutputArea-output :is(select, button, input, textarea, [role=slider])'
)].filter(element => !element.disabled && element.getClientRects().length)"""

KIND = """element => {
  if (element.getAttribute('role') === 'slider' || element.type === 'range') return 'slider';
  if (!element.classList.contains('widget-toggle-button')) return element.type;
  return element.closest('.widget-toggle-buttons') ? 'choice' : 'toggle';
}"""

LABEL = """element => {
  const words = element.closest('.jupyter-widgets')?.innerText.trim().split('\\n')[0];
  return words || element.title || element.placeholder || 'without a label';
}"""

VALUE = """element => {
  if (element.getAttribute('role') === 'slider') return element.getAttribute('aria-valuenow');
  if (['radio', 'checkbox'].includes(element.type)) return element.checked;
  if (element.tagName === 'SELECT') return [...element.options].map(o => o.selected).join();
  if (element.tagName === 'BUTTON') return element.getAttribute('aria-pressed') === 'true';
  return element.value;
}"""

# The pictures in the output that holds a control; where there are none, what its HTML says.
PICTURE = """element => {
  const output = element.closest('.jp-OutputArea-output');
  for (const kind of ['svg', '.widget-html-content']) {
    const parts = [...output.querySelectorAll(kind)];
    if (parts.length) return parts.map(part => part.innerHTML).join();
  }
  return null;
}"""

# What a screen reader reads out of the output that holds a control, when it changes.
SAID = """element => [...element.closest('.jp-OutputArea-output').querySelectorAll('[role=status]')]
  .map(line => line.textContent).join()"""

DRAWN = """() => [...document.querySelectorAll('.jp-OutputArea-output img')]
  .filter(image => image.src.startsWith('data:image/svg'))
  .map(image => [image.alt, image.naturalWidth])"""

# Notes how long each key press takes until the picture is another one, kernel and all.
CLOCK_ANSWERS = """element => {
  const output = element.closest('.jp-OutputArea-output');
  let pressed = null;
  window.answersMs = [];
  element.addEventListener('keydown', () => { pressed = performance.now(); }, true);
  const watch = new MutationObserver(() => {
    if (pressed !== null) window.answersMs.push(performance.now() - pressed);
    pressed = null;
  });
  for (const view of output.querySelectorAll('.widget-html-content'))
    watch.observe(view, {childList: true, subtree: true});
}"""

# In what a screen reader is told of a page: a control without a name.
CONTROLS = "slider|textbox|button|radio|radiogroup|group|combobox|listbox|checkbox|spinbutton"
NAMELESS = re.compile(rf"^ *- (?:{CONTROLS})(?! \"(?!\"))\b.*", re.MULTILINE)
CUT_OFF = "all => all.filter(e => e.scrollWidth > e.clientWidth + 40)"  # more than `.ipynb`
BROKEN = "all => all.filter(e => e.complete && !e.naturalWidth).map(e => e.src)"

AT_MAXIMUM = """element => Number(element.getAttribute('aria-valuenow') ?? element.value)
  >= Number(element.getAttribute('aria-valuemax') ?? element.max)"""

# Puts the focus where a reader's is who comes to the output with the Tab key.
FOCUS_BEFORE = """element => {
  document.getElementById('before-output')?.remove();
  const start = document.createElement('span');
  start.id = 'before-output';
  start.tabIndex = 0;
  element.closest('.jp-OutputArea-output').prepend(start);
  start.focus();
}"""

# Keys that change a control's value, tried in this order. A button has no value. The arrow keys of
# lists and radio buttons are JupyterLab's own: they go to the next cell.
KEYS = {
    "select-one": ["End", "Home"],
    "select-multiple": ["End", "Home"],
    "number": ["ArrowUp", "ArrowDown"],
    "toggle": ["Space"],
    "choice": ["Space"],
    "radio": ["Space"],
    "checkbox": ["Space"],
    "text": ["1"],
    "textarea": ["1"],
}


def leave_what_widgets_need(path: Path) -> None:
    """Turn the other cells into comments: that they run has been seen without a browser.

    What a cell with a widget names or imports is set or written in cells above it, and so on; the
    first finds the course.
    """
    notebook = read(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [str([output.get("data") for output in cell.outputs]) for cell in cells]
    needed: set[int] = set()
    todo = [0, *(at for at, words in enumerate(shown) if "; run the cell to " in words)]
    while todo:
        at = todo.pop()
        needed.add(at)
        tree = [*ast.walk(ast.parse(plain_python(cells[at].source)))]
        names = {node.id for node in tree if isinstance(node, ast.Name)}
        names |= {node.module for node in tree if isinstance(node, ast.ImportFrom)}
        above = set(range(at)) - needed
        todo += [other for other in above if names & given(cells[other].source)]
    for at in set(range(len(cells))) - needed:
        cells[at].source = textwrap.indent(cells[at].source, "# ")
    path.write_text(to_text(notebook), encoding="utf-8")


def given(cell: str) -> set[str]:
    """The names that a cell binds, and the module that it writes by `%%program`."""
    return bound_names(cell) | {*re.findall(r"^%%program (\w+)\.py", cell)}


def check_page(page: OpenPage) -> None:
    """Run a page, move everything on it that moves, and keep pictures of before and after."""
    name = page.path.stem
    check_pictures(page, read(page.path), name)  # JupyterLab does not trust the page yet
    page.screenshot(ARTEFACTS / f"{name}-1-opened.png")
    page.run_all()
    check_names(page, name)
    check_pictures(page, page.saved(), name)
    page.screenshot(ARTEFACTS / f"{name}-2-run.png")
    check_outputs(page.saved(), name)
    for control in find_controls(page):
        check_control(page, control)
    page.wait_until_idle()
    page.screenshot(ARTEFACTS / f"{name}-3-moved.png")
    check_outputs(page.saved(), name)


def check_outputs(notebook: NotebookNode, name: str) -> None:
    for position, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            allowed = "raises-exception" in cell.metadata.get("tags", [])
            assert output.output_type != "error" or allowed, (
                f"{name}, cell {position}: {output.ename}: {output.evalue}"
            )
        assert cell.execution_count, f"{name}, cell {position} did not run"


def check_pictures(page: OpenPage, notebook: NotebookNode, name: str) -> None:
    """Each picture of the page is there, and has words for those who cannot see it."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    stored = [o for o in outputs if svg_in(o.get("data", {}).get("text/html", ""))]
    complete = lambda: len(page.tab.evaluate(DRAWN)) == len(stored)  # noqa: E731
    wait_for(complete, limit_s=REACTION_LIMIT_S, what=f"{name} to show {len(stored)} pictures")
    for words, width in page.tab.evaluate(DRAWN):
        assert len(words.split()) > 3, f"{name}: a picture has no words: {words!r}"
        assert width > 0, f"{name}: a picture is not shown: {words}"


def check_names(page: OpenPage, name: str) -> None:
    """What a screen reader is told of the controls: what each is, and is called."""
    outputs = page.tab.locator(".jp-Notebook .jp-OutputArea-output:has(.jupyter-widgets)")
    for output in outputs.all():
        told = output.aria_snapshot()
        assert not NAMELESS.findall(told), f"{name}: {NAMELESS.findall(told)} in {told[:300]}"
    if outputs.count():
        assert faults(page.tab, ".jp-OutputArea-output .jupyter-widgets") == []


def find_controls(page: OpenPage) -> list[ElementHandle]:
    elements = page.tab.evaluate_handle(FIND_CONTROLS)
    return [handle.as_element() for handle in elements.get_properties().values()]


def check_control(page: OpenPage, control: ElementHandle) -> None:
    """Reach a control with the Tab key and change it with the keys that it is made for."""
    if not control.evaluate("element => element.getClientRects().length"):
        return  # a guess, typed above, has shown the answer that this button offered
    kind = control.evaluate(KIND)
    what = f"{page.path.stem}: the {kind} {control.evaluate(LABEL)!r}"
    tab_to(page, control, what=what)
    if kind == "slider":
        check_slider(page, control, what=what)
    elif kind in KEYS and not (kind in ("choice", "radio") and control.evaluate(VALUE)):
        check_change(page, control, keys=KEYS[kind], what=what)
    elif kind in ("submit", "button"):
        page.tab.keyboard.press("Space")
    page.wait_until_idle()


def tab_to(page: OpenPage, control: ElementHandle, *, what: str) -> None:
    control.evaluate(FOCUS_BEFORE)
    for _ in range(100):
        page.tab.keyboard.press("Tab")
        if control.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{what} cannot be reached with the Tab key")


def check_slider(page: OpenPage, slider: ElementHandle, *, what: str) -> None:
    """One step on, or back from the end: the value and the picture change."""
    picture = slider.evaluate(PICTURE)
    assert picture is not None, f"{what} has no picture"
    key = "ArrowLeft" if slider.evaluate(AT_MAXIMUM) else "ArrowRight"
    value, said = slider.get_attribute("aria-valuetext"), slider.evaluate(SAID)
    check_change(page, slider, keys=[key], what=what)
    told = lambda: slider.get_attribute("aria-valuetext") not in ("", value)  # noqa: E731
    wait_for(told, limit_s=REACTION_LIMIT_S, what=f"{what} to say its value")
    changed = lambda: slider.evaluate(PICTURE) != picture  # noqa: E731
    wait_for(changed, limit_s=REACTION_LIMIT_S, what=f"{what} to change its picture")
    spoken = lambda: slider.evaluate(SAID) != said  # noqa: E731
    wait_for(spoken, limit_s=REACTION_LIMIT_S, what=f"{what} to say what its picture shows")
    print(f"{what} says {slider.evaluate(SAID)[:160]!r}")
    back = "ArrowRight" if key == "ArrowLeft" else "ArrowLeft"
    check_answers(page, slider, keys=(back, key), what=what)


def check_answers(
    page: OpenPage, slider: ElementHandle, *, keys: tuple[str, str], what: str
) -> None:
    """The picture follows a key press so fast that it seems to be at once.

    A busy machine makes some answers slow, a slow drawing makes all slow: one fast one will do.
    """
    slider.evaluate(CLOCK_ANSWERS)
    for number in range(1, MOST_PRESSES + 1):
        key = keys[(number - 1) % 2]
        page.wait_until_idle()
        page.tab.keyboard.press(key)
        answered = lambda n=number: page.tab.evaluate("answersMs.length") >= n  # noqa: E731
        wait_for(answered, limit_s=REACTION_LIMIT_S, what=f"{what} to answer {key}")
        times = sorted(page.tab.evaluate("answersMs"))
        if number >= 2 and times[0] < AT_ONCE_MS:  # there and back
            break
    shown = ", ".join(f"{time:.0f}" for time in times)
    print(f"{what} answered after {shown} ms")
    assert times[0] < ANSWER_LIMIT_MS, (
        f"{what} answered after {shown} ms; {ANSWER_LIMIT_MS} at most"
    )


def check_change(page: OpenPage, control: ElementHandle, *, keys: list[str], what: str) -> None:
    before: Any = control.evaluate(VALUE)
    for key in keys:
        page.tab.keyboard.press(key)
        if control.evaluate(VALUE) != before:
            return
    changed = lambda: control.evaluate(VALUE) != before  # noqa: E731
    wait_for(changed, limit_s=REACTION_LIMIT_S, what=f"{what} to change at {' or '.join(keys)}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("lab") / "course"
    copy_course(folder, "mpcourse", "data", "notebooks", "pyproject.toml")
    with running_lab(folder) as server:
        yield server


@pytest.mark.parametrize("path", find_pages([]), ids=lambda path: path.stem)
def test_the_widgets_of_a_page_run_and_obey_the_keyboard(
    path: Path, browser: Browser, server: Server
):
    leave_what_widgets_need(server.folder / "notebooks" / path.name)
    with browser.new_context(viewport=SCREEN) as context:
        context.set_default_timeout(180_000)
        check_page(OpenPage(context.new_page(), server, f"notebooks/{path.name}"))


def test_a_first_look_has_nothing_in_its_way(browser: Browser, tmp_path: Path):
    write_copies(find_pages([]), tmp_path / "course/my_notebooks")
    with (
        running_lab(tmp_path / "course") as server,
        browser.new_context(viewport=SCREEN) as context,
    ):
        tab = OpenPage(context.new_page(), server, "my_notebooks/00_start_here.ipynb").tab
        names = tab.locator(".jp-DirListing-itemText")
        assert len(names.all()) == len(find_pages([]))
        assert names.evaluate_all(CUT_OFF) == []
        assert tab.locator("img").evaluate_all(BROKEN) == []
        tab.wait_for_timeout(3000)  # what would like to be clicked away comes late
        assert tab.locator(".Toastify__toast").count() == 0
        tab.screenshot(path=ARTEFACTS / "first-look.png")
