"""results/tables/tokens.md: what the committed token logs say. A model's text enters Markdown by `model_text`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.text import escape, grid, model_text, percent, shown
from stapo_repro.tokens import masks, mismatch, numbers, readers
from stapo_repro.tokens.log import LoggedRun, Vocabulary, batch_keys, in_text, load, marked
from stapo_repro.tokens.masks import Line
from stapo_results import token_log
from stapo_results.sizes import SMALL, is_miniature_size

_MISMATCHED = ("stapo", "tis", "icepop")  # methods whose runs are asked about sampler and trainer
_CASES, _AROUND = 24, 40  # rare tokens of the table, and characters on each side of each
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


def tables(runs: Sequence[TrainingRun], logged: Sequence[TrainingRun], labelled: Path) -> str:
    """results/tables/tokens.md.

    Args:
        runs: of the main experiment, whose planted words are counted.
        logged: all runs that may have a token log.
        labelled: the readers' labels.json; it may be missing.

    Raises:
        RecordError: a log or record is damaged, lacks rows, or two logs have other planted words.
        RunFailed: a log contradicts itself or its run's metrics.
    """
    small = [r for r in logged if r.size == SMALL]
    sections = {
        "What the masks silence of the planted words (a tiny model on additions)": planted(runs),
        "Mismatch of sampler and trainer": mismatches(logged),
        "Rare tokens of the small model": rare_tokens(small),
        "Rare tokens labelled by two readers": readers.section(labelled) if labelled.exists() else [_NO_RUN],
    }
    lines = ["# Tokens", "", "How each section is made, and what it says: `docs/tokens.md`, `docs/small-model.md`."]
    for title, text in sections.items():
        lines += ["", f"## {title}", "", *text]
    return "\n".join(lines) + "\n"


def planted(runs: Sequence[TrainingRun]) -> list[str]:
    """Precision and recall of every mask against the planted words of the miniature; `masks.parts` says of which."""
    logged = masks.planted_logs(runs)
    if not logged:
        return [_NO_RUN]
    (first, log), parts = logged[0], masks.parts(logged)
    file = token_log.tokenizer_file(first.folder)
    one = Vocabulary.read(file).one if file.exists() else "id {}".format
    steps = {f"{s.min()} to {s.max()}" for s in (log.histogram["step"].to_numpy() for _, log in logged)}
    synthetic = "SYNTHETIC RECORDS. " if any(run.synthetic for run, _ in logged) else ""
    lines = [
        f"{synthetic}Planted: {', '.join(escape(one(i).strip()) for i in log.header.watch)}.",
        "",
        f"Tokens of responses with a positive advantage, steps {' and '.join(sorted(steps))}. Intervals are 95 %: "
        "bootstrap over prompts, 10,000 draws; † over mini-batches, where the log has no row for each token. Below "
        '"As trained" is what each mask would silence of the same tokens, mini-batch by mini-batch '
        f"(tau_p = {log.header.tau_p:g}, q = {log.header.q:g}); of the random mask the expectation over its draws. "
        "Differences are in percentage points, paired over the draws of prompts.",
    ]
    head = ("Silenced tokens (A > 0)", "Precision: planted among them", "Recall: planted tokens silenced")
    head = ("Mask", *head, "Rare planted tokens silenced", "Base rate: planted among all (among rare)")
    for part in parts:
        lines += ["", f"### {escape(part.title)}", "", *grid(head, [_planted_row(line) for line in part.lines])]
        if part.differences:
            rows = [[f"S2T minus {masks.NAMES[name]}", *(d.text(2, 100, sign=True) for d in both)]
                    for name, both in part.differences.items()]  # fmt: skip
            lines += ["", *grid(("Difference", "Precision", "Recall"), rows)]
    return lines


def _planted_row(line: Line) -> list[str]:
    m, base = line.measured, [shown(None if b is None else percent(b)) for b in line.base]
    texts = []
    for share in (m.precision, m.recall, m.rare_recall):
        unit = " %" if share.over == "prompts" else " % †"
        counts = f"{_tokens(share.part)} of {_tokens(share.whole)}" if share.whole else "n/a"
        texts.append(f"{share.text(2, 100, unit)}; {counts}" if m.precision.whole else counts)
    name = masks.SELECTORS.get(line.selector, line.selector)
    label = line.label if line.label == name else f"{line.label}: {name}"
    return [escape(label), _tokens(m.precision.whole), *texts, f"{base[0]} % ({base[1]} %)"]


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if abs(count - round(count)) < 1e-6 else f"{count:,.1f}"  # sums of fractions


def mismatches(runs: Sequence[TrainingRun]) -> list[str]:
    """Whether S2T's tokens are those on which sampler and trainer disagree (`mismatch`), a line a run."""
    rows = []
    for method in _MISMATCHED:
        of_method = sorted((r for r in runs if r.method == method), key=lambda r: (r.size, r.seed))
        for run in of_method:
            log = _log_of(run)
            found = mismatch.measured(log) if log else None
            why = "no sampler's probability, or no token that S2T would silence" if log else "no token log on record"
            model = "miniature" if is_miniature_size(run.size) else labels.size_label(run.size)
            note = f" ({model})" + (", SYNTHETIC" if run.synthetic else "")
            cells = mismatch_cells(found) if found else [why, *[""] * (len(MISMATCH) - 1)]
            rows.append([escape(f"{labels.method_label(method)}, seed {run.seed}{note}"), *cells])
        if not of_method:
            rows.append([escape(labels.method_label(method)), "not run", *[""] * (len(MISMATCH) - 1)])
    return grid(("Run", *MISMATCH), rows)


def mismatch_cells(m: mismatch.Mismatch) -> list[str]:
    """A run's texts, in the order of MISMATCH."""
    least = f", at least {shown(100 * m.rare_least, 1)} %" if m.rare_least else ""
    return [
        f"{m.correct.whole:,.0f}",
        f"{m.correct.text(1, 100, ' %')}; by chance {shown(100 * m.correct_chance, 1)} %",
        f"{m.rare.text(1, 100, ' %')}; by chance {shown(100 * m.rare_chance, 1)} %{least}",
        m.entropy.text(2),
        m.probability.text(2),
        f"{m.median:.1e} ({m.largest:.1e})",
    ]


def _log_of(run: TrainingRun) -> LoggedRun | None:
    return load(run.folder) if (run.folder / token_log.FOLDER).is_dir() else None


def rare_tokens(runs: Sequence[TrainingRun]) -> list[str]:
    """How many tokens are rare, a line a run; then the rare tokens of the first run, in the order of the training."""
    # STAPO's own tokens first, else those that it would silence of JustRL
    order = sorted(runs, key=lambda r: (r.method != "stapo", r.method != "justrl", r.method, r.seed))
    logs = {f"{labels.method_label(r.method)}, seed {r.seed}": _log_of(r) for r in order}
    head = ("Run", "Steps", "Response tokens", "With A > 0", "Rare", "Of them S2T's", "Mini-batches with two or more")
    rows, found = [], []
    for name, log in logs.items():
        if log is None:
            rows.append([escape(name), "no token log", *[""] * (len(head) - 2)])
            continue
        steps, rare = numbers.by_step(log), log.counts["rare"]
        _, in_batch = np.unique(batch_keys(log.counts)[rare], return_inverse=True)
        several = int((np.bincount(in_batch, log.counts["tokens"][rare]) > 1).sum())
        positive = sum(q.tokens for q in numbers.quadrants(log))
        sums = sum(s.tokens for s in steps), positive, sum(s.rare for s in steps), sum(s.region for s in steps)
        batches = f"{several} of {sum(s.mini_batches for s in steps)}"
        rows.append([escape(name), f"{len(steps)}", *(f"{n:,}" for n in sums), batches])
        found = found or ["", f"The rare tokens of {name}, the first {_CASES} at most:", "", *_first_cases(log)]
    return [*grid(head, rows), *found] if rows else [_NO_RUN]


def _first_cases(log: LoggedRun) -> list[str]:
    rows = []
    index = log.rows["rare"].nonzero()[0][:_CASES]
    for silenced, row in zip(log.silenced[index], log.records(index), strict=True):
        one = numbers.case(log.vocabulary, row, log.part_names[0 if silenced else 1])
        top = "".join(f"{marked(text)} ({p:.2f})" for text, p in one["top"][:1])
        # `position` ids of the response come before the token, the rest of the log's context is the prompt's
        own = log.vocabulary.several(row["before"][max(0, len(row["before"]) - row["position"]) :])
        text = in_text(own[-_AROUND:], one["token"], one["after"][:_AROUND])
        numbers_of_it = (str(row["step"]), f"{one['probability']:.1e}", f"{row['entropy']:.2f}")
        rows.append([text, *numbers_of_it, model_text(top), one["part"]])
    return grid(("Response, <b>the token</b>", "Step", "p", "Entropy (nats)", "Most likely", ""), rows)
