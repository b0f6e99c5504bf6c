"""results/tables/tokens.md: what the committed token logs say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.text import escape, grid, number_shown
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import LoggedRun, batch_keys, load, run_label
from stapo_results import token_log
from stapo_results.statistics import Number

_NO_RUN = "Not run: the records hold no such token log."
MISMATCH = (
    "S2T's tokens",
    "Of them with the largest mismatch of all tokens, A > 0",
    "Of them with the largest mismatch of the rare tokens",
    "Rank correlation with entropy",
    "Rank correlation with probability",
    "Mismatch of the rare tokens, nats: median (largest)",
)


def small_percent(share: float, digits: int = 4) -> str:
    """0.0115 %; what that form would show as zero, in powers of ten."""
    if share and 100 * share < 0.5 * 10.0**-digits:
        return f"{100 * share:.1e} %"
    return f"{100 * share:.{digits}f} %"


def tables(runs: Sequence[TrainingRun]) -> str:
    """results/tables/tokens.md of the main experiment's runs.

    Raises:
        RecordError: a log or record is damaged.
        RunFailed: a log contradicts itself or its run's metrics.
    """
    real = rare_tokens([r for r in runs if r.size in labels.REAL_SIZES])
    lines = ["# Tokens", "", "How the section is made, and what it says: `docs/tokens.md`.", ""]
    return "\n".join([*lines, "## Rare tokens of a real model", "", *real]) + "\n"


def filled(head: Sequence[str], rows: Sequence[list[str]]) -> list[str]:
    """A grid whose short rows say why they have no numbers."""
    return grid(head, [[*row, *[""] * (len(head) - len(row))] for row in rows])


def mismatch_cells(m: Mapping[str, Number]) -> list[str]:
    """A run's texts, in the order of MISMATCH."""
    share = {name: number_shown(m[name], 1, 100, " %") for name in m}
    least = f", at least {share['rare_least']}" if m["rare_least"].mean else ""
    return [
        f"{m['correct'].whole:,.0f}",
        f"{share['correct']}; by chance {share['correct_chance']}",
        f"{share['rare']}; by chance {share['rare_chance']}{least}",
        number_shown(m["entropy"], 2),
        number_shown(m["probability"], 2),
        f"{m['median'].mean:.1e} ({m['largest'].mean:.1e})",
    ]


def log_of(run: TrainingRun) -> LoggedRun | None:
    """The token log of a run; None where its folder has none."""
    return load(run.folder) if (run.folder / token_log.FOLDER).is_dir() else None


def rare_tokens(runs: Sequence[TrainingRun]) -> list[str]:
    """How many tokens are rare, a line a run."""
    head = ("Run", "Steps", "Response tokens", "With A > 0", "Rare", "Of them S2T's", "Mini-batches with two or more")
    rows = []
    for run in sorted(runs, key=lambda r: (r.method != "stapo", r.method != "justrl", r.method, r.seed)):
        log, name = log_of(run), escape(run_label(run))
        if log is None:
            rows.append([name, "no token log"])
            continue
        rare = log.counts["rare"]
        _, batch = np.unique(batch_keys(log.counts)[rare], return_inverse=True)
        several = int((np.bincount(batch, log.counts["tokens"][rare]) > 1).sum())
        positive = sum(q.tokens for q in numbers.quadrants(log))
        steps = numbers.by_step(log)
        sums = {part: sum(s[part] for s in steps) for part in ("tokens", "rare", "region", "mini_batches")}
        texts = [f"{n:,}" for n in (sums["tokens"], positive, sums["rare"], sums["region"])]
        rows.append([name, f"{len(steps)}", *texts, f"{several} of {sums['mini_batches']}"])
    return filled(head, rows) if rows else [_NO_RUN]
