"""Figures from records alone: one module a family, one registry of all, one style."""

from stapo_repro.figures.canvas import Drawn
from stapo_repro.figures.material import Material
from stapo_repro.figures.registry import FAMILIES, draw

__all__ = ["FAMILIES", "Drawn", "Material", "draw"]
