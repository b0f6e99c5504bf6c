"""All figures by name, what the paper prints with its state, and the pages that show figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stapo_repro import labels
from stapo_repro.figures import compare, curves, tokens
from stapo_repro.figures.groups import Group
from stapo_repro.figures.style import Sketch, save, style
from stapo_repro.text import grid
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun, log_of
from stapo_results.errors import meant

Groups = Mapping[str, Group]
Draw = Callable[[Group], Sketch | None]
OfSizes = Callable[[list[Group]], Sketch | None]
_SIZES = tuple(labels.PAPER_SIZES)
_S, _M, _L = ((size,) for size in _SIZES)
_SIX = tuple(labels.PAPER_BENCHMARKS)
# "the default evaluation configuration is set to T=0.7, top-p=0.9" (Section "Settings"): of figures that name no other
_AIME24 = curves.Panel("val-t0.7/aime24/acc/mean@32", "AIME24 in validation", "avg@32 (%), T = 0.7", 100.0)
_CURVES = _AIME24, curves.ENTROPY, curves.REWARD
_COMMITTED = (
    *(f"miniature_{x}" for x in ("training_curves", "forest", "token_entropy", "tokens_density")),
    "miniature_tokens_quadrants",
    *(f"{size}_{x}" for size in labels.REAL_SIZES
      for x in ("training_curves", "token_entropy", "silenced_share", "tokens_density", "tokens_quadrants")),
)  # fmt: skip
"""The pictures of results/figures: those that carry a finding. Besides, every one of the paper's sizes."""


@dataclass(frozen=True)
class Printed:
    """A figure or table that the paper prints.

    Attributes:
        shows: what, and the benchmark and decoding setting that the paper names.
        draw: from the groups of its sizes that have a record; None where `command` makes it, or says why nothing does.
        further: labels of the trainings that it takes beside those of the paper's table.
    """

    number: str
    shows: str
    draw: OfSizes | None = None
    sizes: tuple[str, ...] = _S
    command: str = ""
    further: tuple[str, ...] = ()

    def sketches(self, groups: Groups) -> list[Sketch]:
        """The figure under its number; none without a record of its models."""
        of_sizes = [groups[size] for size in self.sizes if size in groups]
        s = self.draw(of_sizes) if self.draw and of_sizes else None
        return [replace(s, name=f"paper_{self.number}", title=f"Figure {self.number}: {s.title}")] if s else []

    def state(self, groups: Groups) -> str:
        """How much of it the records give, or the command that makes it."""
        if self.command:
            return self.command
        drawn = self.sketches(groups)
        if not drawn:
            return "not run"
        missing = ", ".join(drawn[0].missing)
        return f"in part; missing: {missing}" if missing else "drawn"


def _logged(g: Group, method: str) -> LoggedRun | None:
    """The token log of the first run of a method that has one, of finished runs first."""
    runs = sorted(g.runs_of(method), key=lambda r: r.status != "done")
    return next(filter(None, map(log_of, runs)), None)


def _of_log(method: str, draw: Callable[[LoggedRun], Sketch]) -> OfSizes:
    def of_first(groups: list[Group]) -> Sketch | None:
        run = _logged(groups[0], method)
        return draw(run) if run else None

    return of_first


def _training(panels: Sequence[curves.Panel] = _CURVES, *methods: str, profile: bool = False) -> OfSizes:
    return lambda groups: curves.training(groups[0].only(*(methods or labels.METHODS)), panels, profile=profile)


def _sweeps(title: str, *panels: compare.SweepPanel) -> OfSizes:
    return lambda groups: compare.sweeps(groups[0], panels, title)


PRINTED = (
    Printed("1a", "analogy", sizes=(), command="a drawing without data"),
    Printed("1b", "AIME24 accuracy against entropy stability",
            lambda groups: compare.pareto(groups[0].only(*labels.METHODS), ("aime24",)), _M),
    Printed("2a", "spurious tokens of JustRL, the two most likely ones beside them",
            _of_log("justrl", lambda run: tokens.case_bars(run, tokens.categories(run.folder)))),
    Printed("2b", "tokens of JustRL by probability and entropy", _of_log("justrl", tokens.density)),
    Printed("2c", "mean gradient norm by quadrant, JustRL", _of_log("justrl", tokens.quadrant_bars)),
    Printed("3", "AIME24 accuracy and entropy, JustRL and JustRL-FullMask",
            _training(_CURVES[:2], "justrl", "justrl-fullmask"), further=("justrl-fullmask",)),
    Printed("4", "entropy threshold (in the paper an illustration)", _of_log("stapo", tokens.density)),
    Printed("5", "AIME24 accuracy, entropy, reward; token entropy by quantile", _training(profile=True)),
    Printed("6", "silenced share of the three sizes", curves.silenced_by_size, _SIZES),
    Printed("7", "masks over q at T = 1.0 (the caption names no benchmark)",
            _sweeps("Masks over q", ("q", ("aime24",), ("t1.0",)), ("q", _SIX, ("t1.0",))),
            further=compare.further("q")),
    Printed("8", "AIME24 (avg@32) over tau_p at both settings",
            _sweeps("Sensitivity to τₚ", ("tau_p", ("aime24",), ("t1.0", "t0.7")), ("tau_p", (), ())),
            further=compare.further("tau_p")),
    Printed("9a", "AIME24 accuracy, entropy, reward", _training(), _M),
    Printed("9b", "AIME24 accuracy, entropy, reward", _training(), _L),
    Printed("10", "words that STAPO silences and keeps",
            _of_log("stapo", lambda run: tokens.clouds(run, numbers.words(run)))),
    Printed("Table 1", "taxonomy of tokens, without its spurious risk", command="stapo-repro tokens RUN"),
    Printed("Table 2", "main results", None, _SIZES, "stapo-repro tables"),
    Printed("Table 3", "hyperparameters", None, _SIZES, "stapo-train configs"),
    Printed("Tables 4-6", "cases by category", command=f"stapo-repro tokens RUN, {tokens.LABELS}, figure 2a"),
    Printed("Algorithm 1", "STAPO", None, (), "stapo-train check stapo"),
)  # fmt: skip


def listing(groups: Groups) -> str:
    """The paper's figures and tables, each with its state, as a Markdown table."""
    with style():
        rows = [[p.number, p.shows, ", ".join(map(labels.size_label, p.sizes)), p.state(groups)] for p in PRINTED]
    further = dict.fromkeys(f"{m}/{size}" for p in PRINTED for m in p.further for size in p.sizes)
    figures = ", ".join(p.number for p in PRINTED if p.further)
    more = f"Beside the table's trainings, figures {figures} take {len(further)} further ones: `stapo-repro run"
    table = grid(["Paper", "Shows", "Model", "From these records"], rows, 4)
    return "\n".join([*table, "", f"{more} {' '.join(further)}`."])


def _tokens(g: Group) -> list[Sketch]:
    """The figures of `stapo-repro tokens` for the group's first run of STAPO that has a token log."""
    run = _logged(g, "stapo")
    return [replace(s, name=f"{g.name}_{s.name}") for s in tokens.sketches(run)] if run else []


_OF_GROUP: dict[str, Draw] = {
    "training-curves": curves.training,
    "pareto": compare.pareto,
    "forest": compare.forest,
    "token-entropy": curves.token_entropy,
    "silenced-share": curves.silenced_share,
    "sensitivity": compare.sensitivity,
}
"""Name -> the figure of one group, None where there is nothing to show."""


def sketches(of: Groups, only: Sequence[str] = ()) -> list[Sketch]:
    """The figures, not saved yet; to be called under the style.

    Args:
        only: names of figures; all by default.

    Raises:
        BadInput: an unknown name, or two trainings of one method and seed.
    """
    papers = {f"paper-{p.number}": p for p in PRINTED if p.draw}
    every = (*_OF_GROUP, "tokens", *papers)
    named = [meant("figure", n, every, "stapo-repro figures --help") for n in only]
    drawn = []
    for name in every:
        if named and name not in named:
            continue
        if name in papers:
            drawn += papers[name].sketches(of)
        elif name == "tokens":
            drawn += [s for g in of.values() for s in _tokens(g)]
        else:
            drawn += filter(None, map(_OF_GROUP[name], of.values()))
    return drawn


def draw(of: Groups, only: Sequence[str] = (), kinds: Sequence[str] = (), committed: bool = False) -> list[Sketch]:
    """The figures of one experiment, saved.

    Args:
        only: as `sketches`, as are the errors.
        kinds: formats, as `save`.
        committed: only those of results/figures.
    """
    known = (*_COMMITTED, "paper_", *_SIZES)
    with style():
        return [save(s, kinds) for s in sketches(of, only) if not committed or s.name.startswith(known)]


def gallery(drawn: Sequence[Sketch]) -> str:
    """Every committed figure with its caption."""
    return "\n\n".join(f"### {d.title}\n\n{d.block('.')}" for d in drawn)
