"""All figures by name, what the paper prints with its state, and the pages that show figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stapo_repro import labels
from stapo_repro.figures import compare, curves, testbed, tokens
from stapo_repro.figures.groups import Experiment, Group
from stapo_repro.figures.style import Drawn, Sketch, save, style
from stapo_repro.testbed.pages import Testbed
from stapo_repro.text import grid
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun
from stapo_repro.tokens.log import load as load_token_log
from stapo_results import token_log
from stapo_results.errors import BadInput

Draw = Callable[[Experiment], Sketch | None]
Family = Callable[[Experiment], Sequence[Sketch]]
_SIZES = tuple(labels.PAPER_SIZES)
_S, _M, _L = _SIZES
_SIX = tuple(labels.PAPER_BENCHMARKS)
# "the default evaluation configuration is set to T=0.7, top-p=0.9" (Section "Settings"): of figures that name no other
_AIME24 = curves.Panel("accuracy_t0.7", "AIME24 in validation", "avg@32 (%), T = 0.7", 100.0)
_README = "miniature_training_curves"
_COMMITTED = (
    *(f"miniature_{x}" for x in ("training_curves", "forest", "token_entropy", "silenced_share", "tokens_density")),
    *("miniature_tokens_quadrants", "miniature_planted", "smollm2-135m_training_curves", "smollm2-135m_forest"),
    *("probe_tokens_density", "probe_tokens_quadrants", "testbed_rates", "testbed_long", "testbed_claims"),
)
"""The pictures of results/figures: those that carry a finding. Besides, every one of the paper's sizes."""


@dataclass(frozen=True)
class Printed:
    """A figure or table that the paper prints.

    Attributes:
        shows: what, and the benchmark and decoding setting that the paper names.
        draw: from records; None where `command` makes it, or says why nothing does.
    """

    number: str
    shows: str
    draw: Draw | None = None
    sizes: tuple[str, ...] = (_S,)
    command: str = ""

    def sketches(self, e: Experiment) -> list[Sketch]:
        """The figure under its number; none without a record of its models."""
        found = {r.size for r in e.runs} | {c.record.cell.size for c in e.cells}
        s = self.draw(e) if self.draw and found & set(self.sizes) else None
        return [replace(s, name=f"paper_{self.number}", title=f"Figure {self.number}: {s.title}")] if s else []

    def state(self, e: Experiment) -> str:
        """How much of it the records give, or the command that makes it."""
        found = self.sketches(e)
        missing = ", ".join(m for s in found for m in s.missing)
        return self.command or ("not run" if not found else f"in part; not run: {missing}" if missing else "drawn")


def _logged(e: Experiment, size: str, method: str) -> tuple[LoggedRun, Path] | None:
    """The token log of the first run of a method that has one, and its run folder."""
    folders = [r.folder for r in e.runs if (r.size, r.method) == (size, method)]
    folder = next((f for f in folders if (f / token_log.FOLDER).is_dir()), None)
    return (load_token_log(folder), folder) if folder else None


def _of_log(method: str, draw: Callable[[LoggedRun], Sketch]) -> Draw:
    return lambda e: draw(found[0]) if (found := _logged(e, _S, method)) else None


def _cases(e: Experiment) -> Sketch | None:
    found = _logged(e, _S, "justrl")
    return tokens.case_bars(found[0], tokens.categories(found[1])) if found else None


def _group(e: Experiment, size: str, methods: Sequence[str] = tuple(labels.METHODS)) -> Group:
    return replace(e.group(size), methods=tuple(methods))


def _curves(size: str, profile: bool = False) -> Draw:
    panels = _AIME24, curves.ENTROPY, curves.REWARD
    return lambda e: curves.training(e, _group(e, size), panels, profile=profile)


def _sweeps(*panels: compare.SweepPanel) -> Draw:
    return lambda e: compare.sweeps(e, e.group(_S), panels)


def _words(run: LoggedRun) -> Sketch:
    return tokens.clouds(run, numbers.words(run))


PRINTED = (
    Printed("1a", "analogy", None, (), "a drawing without data"),
    Printed("1b", "AIME24 accuracy against entropy stability",
            lambda e: compare.pareto(e, _group(e, _M), ("aime24",)), (_M,)),
    Printed("2a", "spurious tokens of JustRL, the two most likely ones beside them", _cases),
    Printed("2b", "tokens of JustRL by probability and entropy", _of_log("justrl", tokens.density)),
    Printed("2c", "mean gradient norm by quadrant, JustRL", _of_log("justrl", tokens.quadrant_bars)),
    Printed("3", "AIME24 accuracy and entropy, JustRL and JustRL-FullMask",
            lambda e: curves.training(e, _group(e, _S, ("justrl", "justrl-fullmask")), (_AIME24, curves.ENTROPY))),
    Printed("4", "entropy threshold (in the paper an illustration)", _of_log("stapo", tokens.density)),
    Printed("5", "AIME24 accuracy, entropy, reward; token entropy by quantile", _curves(_S, profile=True)),
    Printed("6", "silenced share of the three sizes", curves.silenced_by_size, _SIZES),
    Printed("7", "masks over q at T = 1.0 (the caption names no benchmark)",
            _sweeps(("q", ("aime24",), ("t1.0",)), ("q", _SIX, ("t1.0",)))),
    Printed("8", "AIME24 (avg@32) over tau_p at both settings",
            _sweeps(("tau_p", ("aime24",), ("t1.0", "t0.7")), ("tau_p", (), ()))),
    Printed("9a", "AIME24 accuracy, entropy, reward", _curves(_M), (_M,)),
    Printed("9b", "AIME24 accuracy, entropy, reward", _curves(_L), (_L,)),
    Printed("10", "words that STAPO silences and keeps", _of_log("stapo", _words)),
    Printed("Table 1", "taxonomy of tokens", command="stapo-repro tokens RUN"),
    Printed("Table 2", "main results", None, _SIZES, "stapo-repro tables"),
    Printed("Table 3", "hyperparameters", None, _SIZES, "stapo-train configs"),
    Printed("Tables 4-6", "cases by category", command=f"stapo-repro tokens RUN, {tokens.LABELS}, figure 2a"),
    Printed("Algorithm 1", "STAPO", None, (), "stapo-train check stapo"),
)  # fmt: skip


def listing(e: Experiment) -> str:
    """The paper's figures and tables, each with its state, as a Markdown table."""
    with style():
        rows = [[p.number, p.shows, ", ".join(map(labels.size_label, p.sizes)), p.state(e)] for p in PRINTED]
    return "\n".join(grid(["Paper", "Shows", "Model", "From these records"], rows, 4))


def _each(figure: Callable[[Experiment, Group], Sketch | None], trained: bool = False) -> Family:
    """A figure per group (the miniature, a size, ...); groups without one are left out. `trained`: of another model
    that was only evaluated nobody expects it, so it has no empty figure that says "not run"."""

    def expected(e: Experiment, g: Group) -> bool:
        return not trained or g.size in (labels.MINI, *_SIZES) or any(r.size == g.size for r in e.runs)

    return lambda e: [s for g in e.groups() if expected(e, g) and (s := figure(e, g)) is not None]


def _tokens(e: Experiment) -> list[Sketch]:
    """The figures of `stapo-repro tokens` for the first run of STAPO of each group that has a token log."""
    logs = {g.name: found[0] for g in e.groups() if (found := _logged(e, g.size, "stapo"))}
    return [replace(s, name=f"{name}_{s.name}") for name, log in logs.items() for s in tokens.sketches(log)]


FAMILIES: dict[str, Family] = {
    "training-curves": _each(curves.training, trained=True),
    "pareto": _each(compare.pareto, trained=True),
    "forest": _each(compare.forest),
    "token-entropy": _each(curves.token_entropy, trained=True),
    "silenced-share": _each(curves.silenced_share),
    "sensitivity": _each(compare.sensitivity),
    "tokens": _tokens,
    "planted": _each(tokens.planted_words),
    "lengths": _each(compare.response_lengths),
    **{f"paper-{p.number}": p.sketches for p in PRINTED if p.draw},
}
"""Name -> the figures of the main experiment, to be drawn under the style."""
OF_TESTBED: dict[str, Callable[[Testbed], Sketch]] = {
    "testbed-rates": testbed.rates,
    "testbed-long": testbed.long,
    "testbed-claims": testbed.claims,
}


def sketches(of: Experiment | Testbed, only: Sequence[str] = ()) -> list[Sketch]:
    """The figures, not saved yet; to be called under the style.

    Args:
        only: names of FAMILIES and OF_TESTBED; all by default.

    Raises:
        BadInput: an unknown name, or two trainings of one method and seed.
    """
    every = (*FAMILIES, *OF_TESTBED)
    if unknown := [n for n in only if n not in every]:
        raise BadInput("no such figure", found=", ".join(unknown), expected=", ".join(every),
                       next_step=f"stapo-repro figures --only {every[0]}")  # fmt: skip
    if isinstance(of, Testbed):
        return [draw(of) for name, draw in OF_TESTBED.items() if not only or name in only]
    return [s for name, draw in FAMILIES.items() if not only or name in only for s in draw(of)]


def draw(
    of: Experiment | Testbed, only: Sequence[str] = (), kinds: Sequence[str] = (), committed: bool = False
) -> list[Drawn]:
    """The figures of one experiment, saved.

    Args:
        only: as `sketches`, as are the errors.
        kinds: formats, as `save`.
        committed: only those of results/figures.
    """
    known = (*_COMMITTED, "paper_", *_SIZES)
    with style():
        found = [s for s in sketches(of, only) if not committed or s.name.startswith(known)]
        return [save(s, kinds) for s in found]


def of_probe(folder: Path, what: str, kinds: Sequence[str] = ()) -> list[Drawn]:
    """Density and gradient norms of a probe.

    Args:
        what: first sentence of the captions: whose responses they are.
        kinds: formats, as `save`.
    """
    log = load_token_log(folder)
    with style():
        found = tokens.density(log), tokens.quadrant_bars(log)
        titles = [s.title.replace(": a probe", ": a probe of one model's responses") for s in found]
        named = [replace(s, name=f"probe_{s.name}", title=title, caption=f"{what} {s.caption}")
                 for s, title in zip(found, titles, strict=True)]  # fmt: skip
        return [save(s, kinds) for s in named]


def readme_block(drawn: Sequence[Drawn]) -> str:
    """The README's figure, and the link to all."""
    shown = next(d for d in drawn if d.name == _README)
    return f"{shown.block()}\n\nAll figures: [results/figures/README.md](results/figures/README.md).\n"


def gallery(drawn: Sequence[Drawn]) -> str:
    """Every committed figure with its caption."""
    return "\n\n".join(f"### {d.title}\n\n{d.block('.')}" for d in drawn)
