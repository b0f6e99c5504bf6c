"""The numbers of `mismatch` as cells of a table, and the block of docs/tokens.md with those of all committed runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.text import escape, grid, percent, shown
from stapo_repro.tokens.logged_run import LoggedRun, load
from stapo_repro.tokens.mismatch import Mismatch, Overlap, measured
from stapo_repro.tokens.shares import Interval
from stapo_results import token_log
from stapo_results.sizes import is_miniature_size

METHODS = ("stapo", "tis", "icepop")
HEAD = (
    "S2T's tokens",
    "Of them with the largest mismatch of all tokens, A > 0",
    "Of them with the largest mismatch of the rare tokens",
    "Rank correlation with entropy",
    "Rank correlation with probability",
    "Mismatch of the rare tokens, nats: median (largest)",
)


def cells(m: Mismatch) -> tuple[str, ...]:
    """A run's texts, in the order of HEAD."""
    return (
        f"{m.correct.share.whole:,.0f}",
        *(_overlap(o) for o in (m.correct, m.rare)),
        *(_correlation(c) for c in (m.entropy, m.probability)),
        f"{m.median:.1e} ({m.largest:.1e})",
    )


def lines(m: Mismatch | None) -> list[str]:
    """What the command prints."""
    if m is None:
        return ["mismatch of sampler and trainer: not known"]
    _, correct, rare, entropy, probability, size = cells(m)
    return [
        f"mismatch of sampler and trainer, nats: {size}, median (largest) of the rare tokens",
        f"  S2T's tokens that are among as many with the largest mismatch of all: {correct}",
        f"  ... of the rare tokens: {rare}",
        f"  rank correlation of mismatch with entropy {entropy}, with probability {probability}",
    ]


def _overlap(o: Overlap) -> str:
    s = o.share
    assert s.value is not None  # `measured` gives None without any token
    ends = "" if s.low is None or s.high is None else f" ({shown(percent(s.low), 1)} to {shown(percent(s.high), 1)})"
    least = f", at least {shown(percent(o.least), 1)} %" if o.least else ""
    return f"{shown(percent(s.value), 1)} %{ends}; by chance {shown(percent(o.chance), 1)} %{least}"


def _correlation(c: Interval) -> str:
    ends = "" if c.low is None or c.high is None else f" ({shown(c.low)} to {shown(c.high)})"
    return f"{shown(c.value)}{ends}"


def _why_not(log: LoggedRun | None) -> str:
    """Why `measured` has nothing to say of this log, or of a run without one."""
    if log is None:
        return "no token log on record"
    known = np.isfinite(log.rows["sampler_logprob"][log.rows["rare"]])
    return "no token that S2T would silence" if known.any() or not known.size else "no sampler's probability"


def page_block(runs: Sequence[TrainingRun]) -> str:
    """What stands between the markers of docs/tokens.md: the runs of METHODS whose log knows the sampler."""
    rows = []
    for run in sorted(
        (r for r in runs if r.method in METHODS), key=lambda r: (METHODS.index(r.method), r.size, r.seed)
    ):
        log = load(run.folder) if (run.folder / token_log.FOLDER).is_dir() else None
        found = measured(log) if log else None
        model = "miniature" if is_miniature_size(run.size) else labels.size_label(run.size)
        note = f" ({model})" + (", SYNTHETIC" if run.synthetic else "")
        texts = (_why_not(log), *("" for _ in HEAD[1:])) if found is None else cells(found)
        rows.append([escape(f"{labels.method_label(run.method)}, seed {run.seed}{note}"), *map(escape, texts)])
    if missing := [labels.method_label(m) for m in METHODS if all(r.method != m for r in runs)]:
        rows += [[escape(m), "not run", *("" for _ in HEAD[1:])] for m in missing]
    return "\n".join(grid(["Run", *HEAD], rows))
