"""What tests read in an SVG picture, and nets to draw."""

import re
import xml.etree.ElementTree as ElementTree

from mpcourse.figures import SparsityStudy
from mpcourse.figures.svg import Picture

SVG = "{http://www.w3.org/2000/svg}"


class Sheet:
    """A drawn picture: its shapes, and what it says to those who see it and to those who do not."""

    def __init__(self, picture: Picture) -> None:
        self.root = ElementTree.fromstring(picture.svg)
        self.title = self.root.findtext(f"{SVG}title")
        self.description = self.root.findtext(f"{SVG}desc")
        self.words = [element.text for element in self.root.findall(f"{SVG}text")]
        self.groups = self.root.findall(f"{SVG}g")
        self.hints = [group.findtext(f"{SVG}title") for group in self.groups]

    @property
    def boxes(self) -> list[dict[str, str]]:
        """The boxes: hint, label (empty where there is none), and their attributes."""
        return [
            {
                "hint": hint,
                "label": group.findtext(f"{SVG}text", default=""),
                **group.find(f"{SVG}rect").attrib,
            }
            for hint, group in zip(self.hints, self.groups, strict=True)
            if group.find(f"{SVG}rect") is not None
        ]

    def each(self, tag: str) -> list[ElementTree.Element]:
        """All elements of a kind: text, path, circle."""
        return list(self.root.iter(SVG + tag))

    def hinted(self, hint: str, tag: str) -> dict[str, str]:
        """The attributes of the one shape of a kind with this hint."""
        pairs = zip(self.hints, self.groups, strict=True)
        [found] = [group.find(SVG + tag) for said, group in pairs if said == hint]
        return found.attrib

    def beside(self) -> list[tuple[float, float]]:
        """The corners of boxes, ends of words, points of lines that are not on the sheet."""
        width, height = float(self.root.attrib["width"]), float(self.root.attrib["height"])
        places = [(e.attrib["x"], e.attrib["y"]) for e in self.root.iter() if "x" in e.attrib]
        places += [
            (float(box["x"]) + float(box["width"]), float(box["y"]) + float(box["height"]))
            for box in self.boxes
        ]
        places += [point for path in self.each("path") for point in points(path.attrib["d"])]
        places += [
            (float(words.attrib["x"]) - float(words.attrib["font-size"]) / 2 * len(words.text), 0)
            for words in self.each("text")
            if words.attrib.get("text-anchor") == "end"
        ]
        assert places
        found = [(float(x), float(y)) for x, y in places]
        return [(x, y) for x, y in found if not (0 <= x <= width and 0 <= y <= height)]


def points(path: str) -> list[tuple[float, float]]:
    """The corners of a path."""
    pairs = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)
    return [(float(x), float(y)) for x, y in pairs]


SPARSITIES = SparsityStudy(
    weights=100,
    reach=0.5,
    every=[10, 40, 30, 20],
    kept={0: [10, 40, 30, 20], 0.5: [10, 20, 10, 10], 0.9: [5, 0, 0, 5]},
    inputs={0: [4, 4, 4, 4], 0.5: [0, 1, 2, 4], 0.9: [0, 0, 0, 1]},
    outputs=4,
    accuracies={0: 0.95, 0.5: 0.9, 0.9: 0.6},
    random={0: 0.95, 0.5: 0.4, 0.9: 0.1},
    sizes={s: {"dense": 4000, "CSR": round(8000 * (1 - s))} for s in (0, 0.5, 0.9)},
)
