"""Figures as inline SVG: identifiers unique in the page, and no style that a content security policy would refuse.

matplotlib writes looks as `style` attributes; each of these properties is a presentation attribute too. What differs
from the file is nothing that is seen: unused identifiers go, coordinates keep hundredths of a point, and the outlines
of letters, which all figures share, stand once in the page.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Container, Mapping
from dataclasses import dataclass

from markupsafe import Markup

_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_URL = re.compile(r"url\(#([^)]+)\)")
_REFERENCE = re.compile(r"""(?:href="|url\()#([^")]+)""")
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


def _inlined(e: ET.Element, names: Mapping[str, str], letters: Container[str]) -> ET.Element | None:
    """The element with its new names; None where nothing of it is left.

    Args:
        names: identifier in the file -> in the page, of those that something refers to.
        letters: identifiers of letters' outlines, which stand in the sheet.
    """
    tag, own = _local(e.tag), _attributes(e)
    name = own.pop("id", "")
    if tag in _DROPPED or name in letters:
        return None
    if name in names:
        own["id"] = names[name]
    if own.get("href", "").startswith("#"):
        own["href"] = f"#{names[own['href'].removeprefix('#')]}"
    out = ET.Element(tag, {k: _URL.sub(lambda m: f"url(#{names[m[1]]})", v) for k, v in own.items()})
    out.extend(child for c in e if (child := _inlined(c, names, letters)) is not None)
    return None if tag in ("g", "defs") and len(out) == 0 else out


def picture(name: str, title: str, caption: str, svg: bytes, glyphs: Glyphs) -> Picture:
    """A figure's SVG file as an element of the page."""
    root = ET.fromstring(svg)
    names = {i: f"{name}-{i}" for i in _REFERENCE.findall(svg.decode())}
    letters = set()
    for e in root.iter():
        i = e.get("id", "")
        if i in names and _local(e.tag) == "path" and "transform" in e.attrib:  # only letters have a scale of their own
            names[i] = glyphs.name(_attributes(e))
            letters.add(i)
    element = _inlined(root, names, letters)
    assert element is not None  # a figure is not empty
    element.attrib.clear()
    label = f"{name}-title"
    element.attrib |= {"viewBox": root.attrib["viewBox"], "role": "img", "aria-labelledby": label}
    # what the dropped style sheet of the file says of every element
    element.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    heading = ET.Element("title", {"id": label})
    heading.text = title
    element.insert(0, heading)
    return Picture(name, title, caption, Markup(ET.tostring(element, encoding="unicode")))
