"""results/tables/tokens.md: what the committed token logs say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.text import escape, grid, number_shown
from stapo_repro.tokens import masks, numbers
from stapo_repro.tokens.log import LoggedRun, Vocabulary, batch_keys, load, run_label
from stapo_repro.tokens.masks import MaskRow
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
        RecordError: a log or record is damaged, lacks rows, or two logs have other planted words.
        RunFailed: a log contradicts itself or its run's metrics.
    """
    sections = {
        "What the masks silence of the planted words (a tiny model on additions)": planted(runs),
        "Rare tokens of a real model": rare_tokens([r for r in runs if r.size in labels.REAL_SIZES]),
    }
    lines = ["# Tokens", "", "How each section is made, and what it says: `docs/tokens.md`."]
    for title, text in sections.items():
        lines += ["", f"## {title}", "", *text]
    return "\n".join(lines) + "\n"


def planted(runs: Sequence[TrainingRun]) -> list[str]:
    """Precision and recall of every mask against the planted words of the miniature; `masks.parts` says of which."""
    logged = masks.planted_logs(runs)
    if not logged:
        return [_NO_RUN]
    first, log = logged[0]
    file = token_log.tokenizer_file(first.folder)
    text_of = Vocabulary(file).one if file.exists() else "id {}".format
    words = ", ".join(escape(text_of(i).strip()) for i in log.header.watch)
    synthetic = f"{labels.SYNTHETIC} " if any(run.synthetic for run, _ in logged) else ""
    steps = set()
    for _, other in logged:
        column = other.histogram["step"].to_numpy()
        steps.add(f"{column.min()} to {column.max()}")
    lines = [
        f"{synthetic}Planted: {words}.",
        "",
        f"Tokens of responses with a positive advantage, steps {' and '.join(sorted(steps))}; tau_p = "
        f"{log.header.tau_p:g}, q = {log.header.q:g}. Intervals are 95 %: over prompts, or † over mini-batches, where "
        "the log has no row for each token. Differences are in percentage points, paired over the draws of prompts.",
    ]
    head = ("Mask", "Silenced tokens (A > 0)", "Precision: planted among them", "Recall: planted tokens silenced",
            "Rare planted tokens silenced", "Base rate: planted among all (among rare)")  # fmt: skip
    for title, (of_masks, differences) in masks.parts(logged).items():
        lines += ["", f"### {escape(title)}", "", *grid(head, [_planted_row(mask) for mask in of_masks])]
        rows = []
        for name, numbers_of in differences.items():
            texts = [number_shown(d, 2, 100, sign=True) for d in numbers_of.values()]
            rows.append([f"S2T minus {masks.NAMES[name]}", *texts])
        if rows:
            lines += ["", *grid(("Difference", "Precision", "Recall"), rows)]
    return lines


def _planted_row(mask: MaskRow) -> list[str]:
    m, texts = mask.measured, []
    for share in (m["precision"], m["recall"], m["rare_recall"]):
        text = f"{_tokens(share.part)} of {_tokens(share.whole)}" if share.whole else "n/a"
        if m["precision"].whole:
            unit = " %" if share.over == "prompts" else " % †"
            text = f"{number_shown(share, 2, 100, unit)}; {text}"
        texts.append(text)
    name = masks.NAMES.get(mask.selector, mask.selector)
    label = mask.label if mask.label == name else f"{mask.label}: {name}"
    base = f"{number_shown(m['base'], 2, 100)} % ({number_shown(m['rare_base'], 2, 100)} %)"
    return [escape(label), _tokens(m["precision"].whole), *texts, base]


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if abs(count - round(count)) < 1e-6 else f"{count:,.1f}"  # sums of fractions


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
