"""Colours of methods that stand in one figure, as readers with each common deficiency of colour vision see them.

Deficiencies: the matrices of Machado, Oliveira and Fernandes (2009), "A Physiologically-based Model for Simulation of
Color Vision Deficiency", table 1, severity 1.0, on linear RGB. Distance: CIE76, Euclidean in CIE L*a*b* (D65). About
2.3 can just be told apart side by side (Mahy, Van Eycken and Oosterlinck 1994); marks lie apart and are thin, so
`LEAST` is about five times that. Dashes and markers, which differ too, are another test's.
"""

from __future__ import annotations

from itertools import combinations

import pytest

pytest.importorskip("matplotlib")
from stapo_repro import labels
from stapo_repro.tokens import words

LEAST = 12.0
Vector = tuple[float, float, float]

SEEN_BY: dict[str, tuple[Vector, Vector, Vector]] = {
    "everybody": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
SRGB_TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)  # IEC 61966-2-1
WHITE = (0.95047, 1.0, 1.08883)  # D65

TOGETHER: dict[str, list[str]] = {
    "methods and masks": [labels.COLOURS[m] for m in dict.fromkeys((labels.BASE, *labels.METHODS, *labels.ARMS))],
    "methods and others": [labels.COLOURS[m] for m in (labels.BASE, *labels.METHODS, *labels.BEYOND)],
    "tokens": [words.SILENCED, words.KEPT],
}


def _times(matrix: tuple[Vector, Vector, Vector], v: Vector) -> Vector:
    a, b, c = (sum(m * x for m, x in zip(row, v, strict=True)) for row in matrix)
    return a, b, c


def linear(colour: str) -> Vector:
    """Linear RGB, 0 to 1, of "#RRGGBB"."""
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return _straight(r), _straight(g), _straight(b)


def _straight(c: float) -> float:
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def lab(rgb: Vector) -> Vector:
    """L*, a*, b* of linear RGB; what a deficiency puts outside the screen's colours is cut to them."""
    shown = tuple(min(1.0, max(0.0, c)) for c in rgb)
    x, y, z = (_root(v / w) for v, w in zip(_times(SRGB_TO_XYZ, shown), WHITE, strict=True))  # type: ignore[arg-type]
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _root(t: float) -> float:
    return t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29


def distance(one: str, other: str, seen_by: str = "everybody") -> float:
    a, b = (lab(_times(SEEN_BY[seen_by], linear(c))) for c in (one, other))
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def too_close(colours: list[str], seen_by: str) -> list[tuple[str, str, float]]:
    pairs = ((a, b, round(distance(a, b, seen_by), 1)) for a, b in combinations(colours, 2))
    return [p for p in pairs if p[2] < LEAST]


def test_the_measure_by_known_values():
    assert lab(linear("#FF0000")) == pytest.approx((53.24, 80.09, 67.20), abs=0.02)
    # red and green of one lightness are far apart for most and close for some
    assert too_close(["#C0504D", "#6F7F2F"], "everybody") == []
    assert too_close(["#C0504D", "#6F7F2F"], "deuteranopia")


@pytest.mark.parametrize("seen_by", SEEN_BY)
@pytest.mark.parametrize("figure", TOGETHER)
def test_colours_in_one_figure_are_told_apart(figure: str, seen_by: str):
    assert too_close(TOGETHER[figure], seen_by) == []
