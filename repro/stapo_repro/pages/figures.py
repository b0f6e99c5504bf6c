"""All families of figures in the order of the gallery, how they are drawn, and the blocks of pages that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stapo_repro import labels
from stapo_repro.figures import comparisons, evaluations, pareto, sensitivity, testbed, token_entropy, training
from stapo_repro.figures.canvas import KINDS, Drawn, Sketch, save, style
from stapo_repro.figures.experiment import Experiment, Group
from stapo_repro.testbed.pages import Testbed
from stapo_repro.tokens import figures as token_figures
from stapo_repro.tokens import planted_figure
from stapo_repro.tokens.logged_run import load as load_token_log
from stapo_results import token_log
from stapo_results.errors import BadInput

_README = ("miniature_training_curves",)


def _trained(experiment: Experiment, group: Group) -> bool:
    """Of another model that was only evaluated nobody expects a curve: it has no empty figure that says "not run"."""
    return group.kind != "other" or any(r.size in group.sizes for r in experiment.runs)


def _each(
    figure: Callable[[Experiment, Group], Sketch | None],
    where: Callable[[Experiment, Group], bool] = lambda experiment, group: True,
) -> Callable[[Experiment], list[Sketch]]:
    """A figure a group (the miniature, a size, ...); groups without one are left out."""
    return lambda e: [s for g in e.groups() if where(e, g) and (s := figure(e, g)) is not None]


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
# name -> the sketches of the main experiment, to be drawn under the style
FAMILIES: dict[str, Draw] = {
    "training-curves": _each(training.training_curves, _trained),
    "pareto": _each(pareto.pareto, _trained),
    "forest": _each(comparisons.forest),
    "token-entropy": _each(token_entropy.token_entropy, _trained),
    "silenced-share": _each(training.silenced_share),
    "sensitivity": _each(sensitivity.sensitivity),
    "tokens": _tokens,
    "planted": _each(planted_figure.planted_words),
    "lengths": _each(evaluations.length),
}
OF_TESTBED: dict[str, Callable[[Testbed], list[Sketch]]] = {
    "testbed-rates": testbed.rates,
    "testbed-long": testbed.long,
    "testbed-claims": testbed.claims,
}


def sketches(of: Experiment | Testbed, only: Sequence[str] = ()) -> list[Sketch]:
    """The figures, not saved yet; to be called under the style. Arguments and errors as `draw`."""
    if unknown := [n for n in only if n not in (*FAMILIES, *OF_TESTBED)]:
        raise BadInput(
            "no such figure",
            found=", ".join(unknown),
            expected=", ".join((*FAMILIES, *OF_TESTBED)),
            next_step=f"stapo-repro figures --only {next(iter(FAMILIES))}",
        )
    if isinstance(of, Testbed):
        return [s for name, draw in OF_TESTBED.items() if not only or name in only for s in draw(of)]
    return [s for name, draw in FAMILIES.items() if not only or name in only for s in draw(of)]


def draw(of: Experiment | Testbed, only: Sequence[str] = (), kinds: Sequence[str] = KINDS) -> list[Drawn]:
    """The figures of one experiment, in the order of the gallery.

    Args:
        only: names of families.
        kinds: of "svg", "png", "pdf".

    Raises:
        BadInput: an unknown name, or two trainings of one method and seed.
    """
    with style():
        return [save(sketch, kinds) for sketch in sketches(of, only)]


def of_probe(folder: Path, what: str, kinds: Sequence[str] = KINDS) -> list[Drawn]:
    """What `stapo-repro tokens` draws of a probe, but for its steps, which are mini-batches of one model's responses.

    Args:
        what: first sentence of the captions.
    """
    chosen = "tokens_density", "tokens_quadrants", "tokens_clouds"
    with style():
        found = {s.name: s for s in token_figures.sketches(load_token_log(folder))}
        return [save(replace(found[n], name=f"probe_{n}", caption=f"{what} {found[n].caption}"), kinds) for n in chosen]


def readme_block(drawn: Mapping[str, Drawn]) -> str:
    """The README's figure, and the link to all."""
    shown = "\n\n".join(drawn[name].block() for name in _README)
    return f"{shown}\n\nAll figures: [results/figures/README.md](results/figures/README.md).\n"


def gallery(main: Sequence[Drawn], testbed: Sequence[Drawn]) -> str:
    """Every figure with its caption, and which of the paper's sizes have no record."""

    def starting(*prefixes: str) -> list[Drawn]:
        return [d for d in main if d.name.startswith(tuple(f"{p}_" for p in prefixes))]

    papers, mini = starting(*labels.PAPER_SIZES), starting("miniature")
    rest = [d for d in main if d not in (*papers, *mini)]
    gone = [label for size, label in labels.PAPER_SIZES.items() if not starting(size)]
    later = "Every figure of the miniature is drawn for a size with its first record."
    lines: list[str] = []
    for title, drawn in (
        ("The miniature", mini),
        ("The testbed", testbed),
        ("The paper's models", papers),
        ("Other models", rest),
    ):
        if drawn or (drawn is papers and gone):
            lines += [f"## {title}", "", *(x for d in drawn for x in (f"### {d.title}", "", d.block("."), ""))]
        if drawn is papers and gone:
            lines += [f"**Not run:** {', '.join(gone)}. {later}", ""]
    return "\n".join(lines).strip()
