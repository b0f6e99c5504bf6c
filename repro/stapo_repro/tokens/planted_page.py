"""Runs whose token log marks planted words: what each silenced, what every mask would of JustRL's; as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stapo_repro import labels
from stapo_repro.read import TrainingRun
from stapo_repro.text import escape, grid, percent, shown, signed
from stapo_repro.tokens import planted
from stapo_repro.tokens.logged_run import Vocabulary
from stapo_repro.tokens.shares import Interval, Share
from stapo_results import token_log
from stapo_results.errors import RecordError

_REFERENCE = "justrl"  # keeps every token: what the masks are compared on
SELECTORS = {"keep_all": "none", **planted.NAMES, "top_entropy": "all but the top entropies"}
_HEAD = [
    *("Silenced tokens (A > 0)", "Precision: planted among them", "Recall: planted tokens silenced"),
    *("Rare planted tokens silenced", "Base rate: planted among all (among rare)"),
]


@dataclass(frozen=True)
class TrainedMask:
    """What one run silenced.

    Attributes:
        label: method and seed, with the status of a run that is not finished.
        selector: its name in the log; SELECTORS has what tables call it.
        steps: first and last step of the log.
    """

    label: str
    method: str
    selector: str
    steps: tuple[int, int]
    measured: planted.Measured
    base: planted.BaseRates


@dataclass(frozen=True)
class MasksOnSameTokens:
    """Every mask, with these tau_p and q, on the same tokens: `title` says which."""

    title: str
    tau_p: float
    q: float
    compared: planted.Compared
    base: planted.BaseRates


@dataclass(frozen=True)
class PlantedSection:
    """All that one part's runs say; `words` are the planted words as text."""

    title: str
    words: tuple[str, ...]
    trained: list[TrainedMask]
    on_same: list[MasksOnSameTokens]


def section(runs: Sequence[TrainingRun], title: str) -> PlantedSection | None:
    """Measure all runs of the miniature that have a token log with planted words; None where there is none.

    Raises:
        RecordError: a log is damaged or lacks rows (see `planted.tokens_of`), or two logs have other planted ids.
    """
    found = [(run, log) for run in runs if run.size == labels.MINI and (log := token_log.read(run.folder))]
    found = [(run, log) for run, log in found if log.header.watch]
    if not found:
        return None
    first, header = found[0][0], found[0][1].header
    for run, log in found:
        if log.header.watch != header.watch:
            raise RecordError(
                "runs with other planted words cannot stand in one table",
                found=f"{run.path}: {len(log.header.watch)} ids, {min(log.header.watch)} to {max(log.header.watch)}",
                expected=f"{len(header.watch)} ids, {min(header.watch)} to {max(header.watch)}, as {first.path} has",
                next_step="name only runs of one base model with --records",
            )
    if any(run.synthetic for run, _ in found):
        title += ", SYNTHETIC RECORDS"
    order = [*labels.METHODS, *labels.ARMS]
    found.sort(key=lambda p: order.index(p[0].method) if p[0].method in order else len(order))  # stable: by seed
    same = next((p for p in found if p[0].method == _REFERENCE), None)
    trained = [_trained(*p) for p in found]
    return PlantedSection(title, _words(first, header.watch), trained, _on_same(*same) if same else [])


def _label(run: TrainingRun) -> str:
    status = "" if run.status == "done" else f" ({run.status})"
    return f"{labels.method_label(run.method)}, seed {run.seed}{status}"


def _trained(run: TrainingRun, log: token_log.TokenLog) -> TrainedMask:
    tokens, steps = planted.tokens_of(log), log.histogram["step"].to_numpy()
    ends = int(steps.min()), int(steps.max())
    measured, base = planted.as_trained(tokens), planted.base_rates(tokens)
    return TrainedMask(_label(run), run.method, log.header.selector, ends, measured, base)


def _on_same(run: TrainingRun, log: token_log.TokenLog) -> list[MasksOnSameTokens]:
    first, header = int(log.histogram["step"].to_numpy().min()), log.header
    parts: list[tuple[str, int | None]] = [(f"All tokens of {_label(run)}", None)]
    if first == 1:  # a longer log's first step was sampled by a trained policy
        parts.append((f"Base model: step 1 of {_label(run)}", first))
    out = []
    for title, step in parts:
        tokens = planted.tokens_of(log, step)
        compared, base = planted.compare(tokens, header.q), planted.base_rates(tokens)
        out.append(MasksOnSameTokens(title, header.tau_p, header.q, compared, base))
    return out


def _words(run: TrainingRun, ids: Sequence[int]) -> tuple[str, ...]:
    """The planted words as text; their ids where the run has no tokenizer beside its log."""
    file = token_log.tokenizer_file(run.folder)
    if not file.exists():
        return tuple(f"id {i}" for i in ids)
    vocabulary = Vocabulary.read(file)
    return tuple(vocabulary.one(i).strip() for i in ids)


def page_block(section: PlantedSection | None) -> str:
    """What stands between the markers of docs/tokens.md, and in a file of its own."""
    return _section(section) if section else "not run: `stapo-repro miniature`, then `stapo-repro collect`"


def _section(s: PlantedSection) -> str:
    lines = [f"## {s.title}", "", f"Planted: {', '.join(escape(w) for w in s.words)}.", ""]
    rows = [
        [escape(t.label), escape(SELECTORS.get(t.selector, t.selector)), *_cells(t.measured, t.base)] for t in s.trained
    ]
    lines += ["### As trained", "", *grid(["Run", "Mask", *_HEAD], rows, 2), "", f"<sub>{_note(s)}</sub>"]
    for same in s.on_same:
        lines += ["", *_on_same_tokens(same)]
    return "\n".join(lines)


def _note(s: PlantedSection) -> str:
    steps = " and ".join(f"steps {a} to {b}" for a, b in sorted({t.steps for t in s.trained}))
    text = (
        f"Tokens of responses with a positive advantage, {steps}. Below each share its 95 % interval (bootstrap over "
        "prompts, 10,000 draws) and the tokens it is made of. Base rates are those of the run's own tokens."
    )
    if any(t.measured.precision.over == "mini-batches" for t in s.trained):
        text += " \u2020 over mini-batches: the log has no row for each of these tokens."
    return text


def _cells(m: planted.Measured, base: planted.BaseRates) -> list[str]:
    silenced = m.precision.whole
    rates = f"{_percent(base.correct)} ({_percent(base.rare)})"
    if not silenced:
        return ["0", "n/a", f"0 of {_tokens(m.recall.whole)}", f"0 of {_tokens(m.rare_recall.whole)}", rates]
    return [_tokens(silenced), _share(m.precision), _share(m.recall), _share(m.rare_recall, ends=False), rates]


def _on_same_tokens(same: MasksOnSameTokens) -> list[str]:
    rows = [[SELECTORS[name], *_cells(m, same.base)] for name, m in same.compared.masks.items()]
    between = [
        [f"S2T minus {SELECTORS[name]}", _points(same.compared.precision[name]), _points(same.compared.recall[name])]
        for name in planted.OTHERS
    ]
    return [
        f"### {escape(same.title)}",
        "",
        *grid(["Mask", *_HEAD], rows),
        "",
        *grid(["Difference, percentage points", "Precision", "Recall"], between),
        "",
        f"<sub>What each mask would silence of the same tokens, mini-batch by mini-batch (tau_p = {same.tau_p:g}, "
        f"q = {same.q:g}). Of the random mask the expectation over its draws. Differences are paired over the draws of "
        "prompts.</sub>",
    ]


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if abs(count - round(count)) < 1e-6 else f"{count:,.1f}"  # sums of fractions


def _percent(share: Share) -> str:
    return "n/a" if share.value is None else f"{shown(percent(share.value))} %"


def _share(share: Share, ends: bool = True) -> str:
    if share.value is None:
        return "n/a"
    mark = " \u2020" if share.over == "mini-batches" else ""
    counts = f"{_tokens(share.part)} of {_tokens(share.whole)}"
    if ends and share.low is not None and share.high is not None:
        counts = f"{shown(percent(share.low))} to {shown(percent(share.high))}; {counts}"
    return f"{_percent(share)}{mark}<br><sub>{counts}</sub>"


def _points(d: Interval) -> str:
    if d.value is None:
        return "n/a"
    if d.low is None or d.high is None:
        return signed(percent(d.value))
    return "{}<br><sub>{} to {}</sub>".format(*(signed(percent(x)) for x in (d.value, d.low, d.high)))
