"""What tests of SVG pictures share."""

from xml.etree.ElementTree import Element


def beside_the_sheet(root: Element) -> list[tuple[float, float]]:
    """The places of words and boxes that lie beside the sheet of a picture."""
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places = [(float(e.attrib["x"]), float(e.attrib["y"])) for e in root.iter() if "x" in e.attrib]
    assert places
    return [(x, y) for x, y in places if not (0 <= x < width and 0 <= y < height)]
