"""The shapes are well-formed, readable SVG that says in words what it shows."""

import xml.etree.ElementTree as ElementTree

import pytest
from sheets import SVG

from mpcourse.figures import svg

parse = ElementTree.fromstring
SPECIAL = "a < b & \"c\" > 'd' </text>"


def luminance(colour: str) -> float:
    """Relative luminance of a colour #rrggbb, as the contrast rule of WCAG 2 defines it."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def test_a_picture_is_an_image_on_white_with_title_and_description_that_shrinks_with_its_page():
    shown = svg.picture(["<path/>", "<g/>"], (300.5, 40), title="A title", description="All of it")
    root = parse(shown.svg)
    assert (root.tag, root.attrib["role"]) == (f"{SVG}svg", "img")
    assert (root.attrib["width"], root.attrib["height"]) == ("300.5", "40")
    assert root.attrib["viewBox"] == "0 0 300.5 40"
    assert "max-width:100%" in root.attrib["style"]
    title, description, sheet, *shapes = root
    assert (title.tag, title.text) == (f"{SVG}title", "A title")
    assert (description.tag, description.text) == (f"{SVG}desc", "All of it")
    assert (sheet.attrib["fill"], sheet.attrib["width"]) == ("#ffffff", "300.5")
    assert [shape.tag for shape in shapes] == [f"{SVG}path", f"{SVG}g"]


def test_a_notebook_shows_an_image_with_words_and_a_console_the_title():
    said = '50% of the "work" & <all> #2, ±1'
    shown = svg.picture([svg.text(1, 2, said)], (1, 1), title="Two devices", description=said)
    html = shown._repr_html_()
    image = parse(html.removesuffix(">") + "/>")
    assert image.attrib["alt"] == f"Two devices. {said}"
    assert svg.svg_in(html) == shown.svg
    assert image.attrib["src"].isascii()
    assert svg.svg_in("<p>a verdict</p>") is None
    assert repr(shown) == "<picture: Two devices>"


def test_words_are_escaped_wherever_they_stand():
    shapes = [
        svg.text(0, 0, SPECIAL),
        svg.box(0, 0, 9, 9, colour="#ffffff", label=SPECIAL),
        svg.box(0, 0, 9, 9, colour="#ffffff", label="x", hint=SPECIAL),
        svg.area([(1, 2)], colour="#ffffff", hint=SPECIAL),
        svg.mark(1, 2, shape="ring", colour="#ffffff", hint=SPECIAL),
    ]
    root = parse(svg.picture(shapes, (9, 9), title=SPECIAL, description=SPECIAL).svg)
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert texts.count(SPECIAL) == 8


def test_a_box_carries_its_label_in_the_middle_and_its_hint():
    title, rectangle, letters = parse(
        svg.box(10, 20, 30, 40, colour="#E69F00", label="A", hint="device A")
    )
    assert title.text == "device A"
    found = [rectangle.attrib[key] for key in ("x", "y", "width", "height", "fill")]
    assert found == ["10.00", "20.00", "30.00", "40.00", "#E69F00"]
    assert letters.text == "A"
    assert (letters.attrib["x"], letters.attrib["y"]) == ("25.00", "40.00")
    assert letters.attrib["text-anchor"] == "middle"
    assert letters.attrib["dominant-baseline"] == "central"
    assert parse(svg.box(0, 0, 9, 9, colour="#ffffff", label="0F1"))[0].text == "0F1"
    tags = [child.tag for child in parse(svg.box(0, 0, 9, 9, colour="#ffffff"))]
    assert tags == ["title", "rect"]  # no letters


@pytest.mark.parametrize(
    ("width", "height", "label", "size"),
    [(100, 100, "A", 13), (100, 10, "A", 6), (10, 100, "abcd", 3.38), (1, 26, "job 1", 0.27)],
)
def test_letters_become_smaller_where_the_box_is(width, height, label, size):
    letters = parse(svg.box(0, 0, width, height, colour="#ffffff", label=label))[-1]
    assert float(letters.attrib["font-size"]) == size


@pytest.mark.parametrize("colour", [*svg.COLOURS, "#ffffff"])
def test_letters_stand_out_from_their_box(colour: str):
    ink = parse(svg.box(0, 0, 9, 9, colour=colour, label="A"))[-1].attrib["fill"]
    assert contrast(ink, colour) >= 4.5  # what WCAG 2 asks for
