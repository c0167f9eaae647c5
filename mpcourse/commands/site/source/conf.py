"""Sphinx's settings for the site; with a public address, links and a map of it come as well."""

from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from mpcourse.commands.address import PLACEHOLDER, read_address

project = "mpcourse"
html_title = "mpcourse"
copyright = "the authors of mpcourse; MIT licence"
extensions = ["myst_nb", "sphinx.ext.githubpages", "sphinx_copybutton", "sphinxext.opengraph"]
exclude_patterns = ["_static"]

# Nothing runs: pictures and numbers are those that the pages hold.
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the code: imports and preparation"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_heading_slug_func = "mpcourse.commands.site.page.anchor_of"
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure"]  # job.sh is no Python

html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_search_summary = False  # a page opened from a folder may not fetch others
html_context = {"default_mode": "auto"}
html_last_updated_fmt = None
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "show_navbar_depth": 1,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "use_repository_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_math_renderer = "mathml"
ogp_social_cards = {"enable": False}
repository, ogp_site_url = read_address().repository, ""
if repository != PLACEHOLDER:
    owner, name = repository.removeprefix("https://github.com/").split("/")
    html_baseurl = ogp_site_url = f"https://{owner.lower()}.github.io/{name}/"
    extensions.append("sphinx_sitemap")
    sitemap_url_scheme = "{link}"
    html_theme_options |= {"repository_url": repository, "use_repository_button": True}


def inline_math(writer: HTML5Translator, node: object) -> None:
    """Write a formula within a line as MathML, which browsers draw by themselves."""
    writer.body.append(convert(node.astext()))


def block_math(writer: HTML5Translator, node: object) -> None:
    """Write a formula on a line of its own."""
    writer.body.append(convert(node.astext(), display="block"))


def nothing(writer: HTML5Translator, node: object) -> None:
    """Do nothing behind a formula."""


def setup(app: Sphinx) -> None:
    """Draw formulas without a script and without a network."""
    app.add_html_math_renderer("mathml", (inline_math, nothing), (block_math, nothing))
