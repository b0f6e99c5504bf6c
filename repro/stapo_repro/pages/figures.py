"""Where drawn figures are shown: the blocks of the README and of the ablation's page, and the gallery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stapo_repro import labels

if TYPE_CHECKING:
    from stapo_repro.figures import Drawn

_README = ("miniature_training_curves", "miniature_forest")
_ABLATION = ("ablation_training_curves", "ablation_bars")
_DOCS = "../results/figures"


def readme_block(drawn: Mapping[str, Drawn]) -> str:
    """What stands between the README's figure markers: two of the miniature's, and the way to all."""
    shown = "\n\n".join(drawn[name].block() for name in _README)
    return f"{shown}\n\nAll figures: [results/figures/README.md](results/figures/README.md).\n"


def ablation_block(drawn: Mapping[str, Drawn]) -> str:
    """The ablation's figures on its page."""
    return "\n\n".join(drawn[name].block(_DOCS) for name in _ABLATION)


def gallery(main: Sequence[Drawn], ablation: Sequence[Drawn]) -> str:
    """Every figure with its caption, and which of the paper's are not drawn for want of records."""

    def of(prefixes: Sequence[str]) -> list[Drawn]:
        return [d for d in main if d.name.startswith(tuple(f"{p}_" for p in prefixes))]

    papers = of(["paper", *labels.PAPER_SIZES])
    mini = of(["miniature"])
    rest = [d for d in main if d not in (*papers, *mini)]
    parts = [
        ("The miniature", mini),
        ("The mask ablation in miniature", ablation),
        ("The paper's models", papers),
        ("Other models", rest),
    ]
    lines: list[str] = []
    for title, drawn in parts:
        if drawn:
            lines += [f"## {title}", ""]
            for d in drawn:
                lines += [f"### {d.title}", "", d.block("."), ""]
        if drawn is papers:
            lines += [*_not_drawn(papers), ""]
    return "\n".join(lines).strip()


def _not_drawn(papers: Sequence[Drawn]) -> list[str]:
    """A sentence on the paper's sizes without any record: their figures exist as soon as there is one."""
    gone = [
        label for size, label in labels.PAPER_SIZES.items() if not any(d.name.startswith(f"{size}_") for d in papers)
    ]
    if not gone:
        return []
    later = "Every other figure of the miniature is drawn for a size with its first record."
    return [f"**Not run:** {', '.join(gone)}. {later}"]
