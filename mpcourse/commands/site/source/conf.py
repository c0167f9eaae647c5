"""Sphinx's settings for the site; with a public address, links and a map of it come as well."""

import re

from docutils.nodes import Element, SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from mpcourse.commands.address import PLACEHOLDER, clone_line, read_address
from mpcourse.commands.clean_copies import find_pages, page_key
from mpcourse.commands.pages import read

project = "mpcourse"
html_title = "mpcourse"
author = "The mpcourse authors"
copyright = "MIT licence"
extensions = ["myst_nb", "sphinx_copybutton", "sphinxext.opengraph"]
exclude_patterns = ["_static", "README.md"]

# Nothing runs: pictures and numbers are those that the pages hold.
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
myst_enable_extensions = ["dollarmath", "substitution"]
myst_heading_anchors = 4
myst_heading_slug_func = "mpcourse.commands.site.page.anchor_of"
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure"]  # job.sh is no Python

html_theme = "sphinx_book_theme"
html_static_path = ["_static", "explorer.png"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_use_index = False
html_show_search_summary = False  # a page opened from a folder may not fetch others
html_context = {"default_mode": "auto"}
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "use_download_button": False,
    "use_fullscreen_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_math_renderer = "mathml"
ogp_social_cards = {"enable": False}

# What the front page says of the pages, by their names, and of the place that it came from.
titles = {path: read(path).cells[0].source for path in find_pages([])}
minutes = {path: int(re.search(r"About (\d+) minutes", titles[path])[1]) for path in titles}
myst_substitutions = {
    page_key(path.name): f"[{title[5:].splitlines()[0]}]({path.name}) ({minutes[path]} minutes)"
    for path, title in titles.items()
}
myst_substitutions |= {"pages": len(titles), "hours": f"{sum(minutes.values()) / 60:.0f}"}
address, ogp_site_url = read_address(), ""
start, links = "python3 -m mpcourse lab", ""
if address.repository != PLACEHOLDER:
    owner, name = address.repository.removeprefix("https://github.com/").split("/")
    own_site = f"{owner.lower()}.github.io"  # a repository of this name is served without it
    folder = "" if name.lower() == own_site else f"{name}/"
    html_baseurl = ogp_site_url = f"https://{own_site}/{folder}"
    ogp_image, ogp_image_alt = "_static/explorer.png", "An explorer of the course"
    extensions.append("sphinx_sitemap")
    sitemap_url_scheme = "{link}"
    place, blob = (f"{address.repository}/{kind}/{address.branch}" for kind in ("tree", "blob"))
    html_theme_options |= {"repository_url": place, "use_repository_button": True}
    start = f"{clone_line(address)}\ncd mpcourse\n{start}"
    links = f"[The repository]({place}) · [licence]({blob}/LICENSE) · "
    links += f"[how to cite it]({blob}/CITATION.cff)"
myst_substitutions |= {"start": f"```\n{start}\n```", "links": links}


def setup(app: Sphinx) -> None:
    """Write formulas as MathML, which browsers draw without a script and without a network."""

    def way(display: str) -> tuple:
        def visit(page: HTML5Translator, node: Element) -> None:
            page.body.append(convert(node.astext(), display=display))
            raise SkipNode  # else the formula's source follows as text

        return visit, None

    app.add_html_math_renderer("mathml", way("inline"), way("block"))
