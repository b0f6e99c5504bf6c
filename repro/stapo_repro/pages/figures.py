"""All families of figures in the order of the gallery, how they are drawn, and the blocks of pages that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stapo_repro import labels
from stapo_repro.figures import bounds, comparisons, evaluations, pareto, sensitivity, token_entropy, training
from stapo_repro.figures.canvas import KINDS, Drawn, Sketch, save, style
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.tokens import figures as token_figures
from stapo_repro.tokens import planted_figure
from stapo_repro.tokens.logged_run import load as load_token_log
from stapo_results import token_log
from stapo_results.errors import BadInput

_README = ("miniature_training_curves",)
_ABLATION = ("ablation_training_curves", "ablation_bars")
_DOCS = "../results/figures"


def _each(figure: Callable[[Experiment, Group], Sketch | None]) -> Callable[[Experiment], list[Sketch]]:
    """A figure a group (the miniature, a size, ...); groups without one are left out."""
    return lambda experiment: [s for g in experiment.groups() if (s := figure(experiment, g)) is not None]


def _tokens(experiment: Experiment) -> list[Sketch]:
    """The figures of `stapo-repro tokens` for the first run of STAPO of each group that has a token log."""
    out = []
    for group in experiment.groups():
        runs = [r for size in group.sizes for r in experiment.runs_of(size, ["stapo"])["stapo"]]
        logged = [r for r in runs if (r.folder / token_log.FOLDER).is_dir()]
        if logged:
            log = load_token_log(logged[0].folder)
            out += [replace(s, name=f"{group.name}_{s.name}") for s in token_figures.sketches(log)]
    return out


Draw = Callable[[Experiment], list[Sketch]]
_BOTH, _MAIN, _MASKS = ("main", "ablation"), ("main",), ("ablation",)
# name -> the sketches of an experiment, to be drawn under the style; the experiments that have them
FAMILIES: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "training-curves": (_each(training.training_curves), _BOTH),
    "pareto": (_each(pareto.pareto), _BOTH),
    "bars": (_each(comparisons.ablation_bars), _MASKS),
    "forest": (_each(comparisons.forest), _BOTH),
    "against-paper": (comparisons.against_paper, _MAIN),
    "token-entropy": (_each(token_entropy.token_entropy), _BOTH),
    "silenced-share": (_each(training.silenced_share), _BOTH),
    "sensitivity": (_each(sensitivity.sensitivity), _BOTH),
    "tokens": (_tokens, _MAIN),
    "planted": (_each(planted_figure.planted_words), _BOTH),
    "bounds": (bounds.gradient_bounds, _MAIN),
    "judge": (_each(evaluations.judge), _MAIN),
    "lengths": (_each(evaluations.length), _MAIN),
}


def sketches(experiment: Experiment, only: Sequence[str] = ()) -> list[Sketch]:
    """The figures, not saved yet; to be called under the style. Arguments and errors as `draw`."""
    if unknown := [n for n in only if n not in FAMILIES]:
        raise BadInput(
            "no such figure",
            found=", ".join(unknown),
            expected=", ".join(FAMILIES),
            next_step=f"stapo-repro figures --only {next(iter(FAMILIES))}",
        )
    chosen = [draw for name, (draw, of) in FAMILIES.items() if experiment.name in of and (not only or name in only)]
    return [sketch for draw in chosen for sketch in draw(experiment)]


def draw(experiment: Experiment, only: Sequence[str] = (), kinds: Sequence[str] = KINDS) -> list[Drawn]:
    """The figures of one experiment, in the order of the gallery.

    Args:
        only: names of families.
        kinds: of "svg", "png", "pdf".

    Raises:
        BadInput: an unknown name, or two trainings of one method and seed.
    """
    with style():
        return [save(sketch, kinds) for sketch in sketches(experiment, only)]


def readme_block(drawn: Mapping[str, Drawn]) -> str:
    """The README's figure, and the link to all."""
    shown = "\n\n".join(drawn[name].block() for name in _README)
    return f"{shown}\n\nAll figures: [results/figures/README.md](results/figures/README.md).\n"


def ablation_block(drawn: Mapping[str, Drawn]) -> str:
    """The ablation's figures on its page."""
    return "\n\n".join(drawn[name].block(_DOCS) for name in _ABLATION)


def gallery(main: Sequence[Drawn], ablation: Sequence[Drawn]) -> str:
    """Every figure with its caption, and which of the paper's sizes have no record."""

    def starting(*prefixes: str) -> list[Drawn]:
        return [d for d in main if d.name.startswith(tuple(f"{p}_" for p in prefixes))]

    papers, mini = starting("paper", *labels.PAPER_SIZES), starting("miniature")
    rest = [d for d in main if d not in (*papers, *mini)]
    gone = [label for size, label in labels.PAPER_SIZES.items() if not starting(size)]
    later = "Every other figure of the miniature is drawn for a size with its first record."
    lines: list[str] = []
    for title, drawn in (
        ("The miniature", mini),
        ("The mask ablation in miniature", ablation),
        ("The paper's models", papers),
        ("Other models", rest),
    ):
        if drawn:
            lines += [f"## {title}", "", *(x for d in drawn for x in (f"### {d.title}", "", d.block("."), ""))]
        if drawn is papers and gone:
            lines += [f"**Not run:** {', '.join(gone)}. {later}", ""]
    return "\n".join(lines).strip()
