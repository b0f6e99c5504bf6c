"""All families of figures, in the order of the gallery, and the one way to draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stapo_repro.figures import (
    against_paper,
    bounds,
    differences,
    judging,
    lengths,
    masks,
    pareto,
    planted,
    sensitivity,
    token_entropy,
    tokens,
    training,
)
from stapo_repro.figures.canvas import KINDS, Drawn, Sketch, save, style
from stapo_repro.figures.material import Material, Part
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Family:
    """Figures of one kind. `draw` gives a sketch a group (the miniature, a size, ...), under the style."""

    name: str
    draw: Callable[[Material], list[Sketch]]
    parts: tuple[Part, ...] = ("main", "ablation")


FAMILIES = (
    Family("training-curves", training.training_curves),
    Family("pareto", pareto.pareto),
    Family("bars", masks.ablation_bars, ("ablation",)),
    Family("forest", differences.forest),
    Family("against-paper", against_paper.dumbbells, ("main",)),
    Family("token-entropy", token_entropy.token_entropy),
    Family("silenced-share", training.silenced_share),
    Family("sensitivity", sensitivity.sensitivity),
    Family("tokens", tokens.tokens, ("main",)),
    Family("planted", planted.planted_words),
    Family("bounds", bounds.gradient_bounds, ("main",)),
    Family("judge", judging.judge, ("main",)),
    Family("lengths", lengths.length, ("main",)),
)


def chosen(only: Sequence[str]) -> list[Family]:
    """The named families, all of them when none is named.

    Raises:
        BadInput: a name that is no family.
    """
    names = [f.name for f in FAMILIES]
    if unknown := [n for n in only if n not in names]:
        raise BadInput(
            "no such figure",
            found=", ".join(unknown),
            expected=", ".join(names),
            next_step=f"stapo-repro figures --only {names[0]}",
        )
    return [f for f in FAMILIES if not only or f.name in only]


def draw(material: Material, only: Sequence[str] = (), kinds: Sequence[str] = KINDS) -> list[Drawn]:
    """The figures of one part, in the order of the registry.

    Args:
        only: names of families.
        kinds: of "svg", "png", "pdf".

    Raises:
        BadInput: an unknown name, or two trainings of one method and seed.
    """
    with style():
        return [
            save(sketch, kinds)
            for family in chosen(only)
            if material.part in family.parts
            for sketch in family.draw(material)
        ]
