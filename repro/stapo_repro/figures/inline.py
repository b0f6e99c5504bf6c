"""Figures as inline SVG: identifiers unique in the page, and no style that a content security policy would refuse.

matplotlib writes looks as `style` attributes; each of these properties is a presentation attribute too. What differs
from the file is nothing that is seen: unused identifiers go, coordinates keep hundredths of a point, and the outlines
of letters, which all figures share, stand once in the page.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_DROPPED = ("metadata", "style", "title")
_ROUNDED = ("d", "x", "y", "points")


@dataclass(frozen=True)
class Picture:
    """A figure in the page.

    Attributes:
        id: unique in the page.
        svg: the element; it uses the sheet of `Glyphs.sheet`.
    """

    id: str
    title: str
    caption: str
    svg: Markup


def _local(tag: str) -> str:
    return tag.rsplit("}", 1)[-1]


def _rounded(text: str) -> str:
    def short(m: re.Match[str]) -> str:
        return f"{round(float(m[0]), 2) + 0.0:g}"

    return " ".join(_NUMBER.sub(short, text).split())


def _attributes(element: ET.Element) -> dict[str, str]:
    """Its attributes without namespaces, its style as presentation attributes."""
    out = {_local(k): v for k, v in element.attrib.items()}
    for part in out.pop("style", "").split(";"):
        name, colon, value = part.partition(":")
        if colon:
            out[name.strip()] = value.strip()
    return {k: _rounded(v) if k in _ROUNDED else v for k, v in out.items()}


class Glyphs:
    """Outlines of letters, each once for all figures of a page."""

    def __init__(self) -> None:
        self._by_outline: dict[tuple[tuple[str, str], ...], str] = {}

    def name(self, attributes: Mapping[str, str]) -> str:
        """The identifier of an outline, the same for equal ones."""
        key = tuple(sorted((k, v) for k, v in attributes.items() if k != "id"))
        return self._by_outline.setdefault(key, f"g{len(self._by_outline)}")

    def sheet(self) -> Markup:
        """A sheet without size that holds all of them."""
        sheet = ET.Element("svg", {"class": "glyphs", "aria-hidden": "true", "width": "0", "height": "0"})
        inside = ET.SubElement(sheet, "defs")
        for attributes, name in self._by_outline.items():
            ET.SubElement(inside, "path", {"id": name, **dict(attributes)})
        return Markup(ET.tostring(sheet, encoding="unicode"))


def _references(root: ET.Element) -> set[str]:
    found: set[str] = set()
    for e in root.iter():
        for name, value in e.attrib.items():
            if _local(name) == "href":
                found.add(value.removeprefix("#"))
            found.update(_REFERENCE.findall(value))
    return found


class _Inliner:
    def __init__(self, prefix: str, root: ET.Element, glyphs: Glyphs):
        self.prefix, self.glyphs = prefix, glyphs
        self.used = _references(root)
        self.letters: dict[str, str] = {}
        self._find_letters(root)

    def _find_letters(self, root: ET.Element) -> None:
        for e in root.iter():
            name = e.get("id", "")
            if _local(e.tag) == "path" and name in self.used and "transform" in e.attrib:
                self.letters[name] = self.glyphs.name(_attributes(e))  # only letters have a scale of their own

    def _to(self, name: str) -> str:
        return self.letters.get(name) or f"{self.prefix}-{name}"

    def element(self, e: ET.Element) -> ET.Element | None:
        tag, own = _local(e.tag), _attributes(e)
        name = own.pop("id", "")
        if tag in _DROPPED or name in self.letters:
            return None
        if name in self.used:
            own["id"] = self._to(name)
        if "href" in own:
            own["href"] = f"#{self._to(own['href'].removeprefix('#'))}"
        own = {k: _REFERENCE.sub(lambda m: f"url(#{self._to(m[1])})", v) for k, v in own.items()}
        out = ET.Element(tag, own)
        for child in e:
            made = self.element(child)
            if made is not None:
                out.append(made)
        empty = tag in ("g", "defs") and len(out) == 0
        return None if empty else out


def picture(name: str, title: str, caption: str, svg: bytes, glyphs: Glyphs) -> Picture:
    """A figure's SVG file as an element of the page."""
    root = ET.fromstring(svg)
    box = root.attrib["viewBox"]
    made = _Inliner(name, root, glyphs).element(root)
    assert made is not None  # a figure is not empty
    made.attrib.clear()
    label = f"{name}-title"
    made.attrib |= {"viewBox": box, "role": "img", "aria-labelledby": label}
    # what the dropped style sheet of the file says of every element
    made.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    heading = ET.Element("title", {"id": label})
    heading.text = title
    made.insert(0, heading)
    text = ET.tostring(made, encoding="unicode")
    return Picture(name, title, caption, Markup(text))
