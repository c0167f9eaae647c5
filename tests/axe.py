"""What axe-core, a checker of accessibility, says of an open page."""

import importlib.util
from pathlib import Path

import pytest
from playwright.sync_api import Page as Tab

GRAVE = ("serious", "critical")
CONTRAST = "color-contrast"

# Marks one element of each kind of text: its colour and size, upon what its ancestors paint. Axe
# looks a minute at the words of a page's programs, and each `def` is like the first.
MARK_KINDS_OF_TEXT = """() => {
  const kinds = new Set();
  const mark = (element, below) => {
    const {color, fontSize, fontWeight, backgroundColor, backgroundImage, opacity} =
      getComputedStyle(element);
    const ground = [...below, backgroundColor, backgroundImage, opacity];
    const kind = [color, fontSize, fontWeight, ...ground].join();
    const isText = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    element.toggleAttribute('data-kind', isText && !kinds.has(kind));
    if (isText) kinds.add(kind);
    for (const child of element.children) mark(child, ground);
  };
  mark(document.body, []);
}"""


def contrast_faults(tab: Tab) -> list[str]:
    """What of a page's text is hard to read, looked at once for each kind of text."""
    tab.evaluate(MARK_KINDS_OF_TEXT)
    return faults(tab, "[data-kind]", only=(CONTRAST,))


def faults(
    tab: Tab, *within: str, only: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> list[str]:
    """What is serious or critical, a line for each kind of fault; skips where axe is missing."""
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None:
        pytest.skip("axe-playwright-python is not installed; tests/requirements.txt has it")
    tab.evaluate(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    rules = {rule: {"enabled": False} for rule in without}
    # preload would fetch the style sheet, which a page opened from a folder may not
    options = {"preload": False, "resultTypes": ["violations"], "rules": rules}
    options |= {"runOnly": list(only)} if only else {}
    found = tab.evaluate(
        "([within, options]) => axe.run(within.length ? {include: within} : document, options)",
        [[[place] for place in within], options],
    )
    return [
        f"{fault['id']} ({len(fault['nodes'])}): {fault['nodes'][0]['html'][:160]}"
        for fault in found["violations"]
        if fault["impact"] in GRAVE
    ]
