"""Runs whose token log marks planted words: what each silenced, and what every mask would of JustRL's tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stapo_repro import labels
from stapo_repro.records.reading import TrainingRun
from stapo_repro.tokens import planted
from stapo_repro.tokens.vocabulary import Vocabulary
from stapo_results import token_log
from stapo_results.errors import RecordError

REFERENCE = "justrl"  # keeps every token: what the masks are compared on
SELECTORS: dict[str, str] = {
    "keep_all": "none",
    planted.S2T: "S2T",
    planted.FULL: "all rare tokens",
    planted.HIGH: "high entropy",
    planted.RANDOM: "random",
    "top_entropy": "all but the top entropies",
}


@dataclass(frozen=True)
class TrainedMask:
    """What one run silenced.

    Attributes:
        label: method and seed, with the status of a run that is not finished.
        selector: its name in the log; SELECTORS has what tables call it. tau_p, q: its values.
        steps: first and last step of the log.
        sha256: of the log's files.
    """

    label: str
    method: str
    seed: int
    path: str
    sha256: str
    selector: str
    tau_p: float
    q: float
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
    """All that one part's runs say.

    Attributes:
        words: the planted words as text.
    """

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
    order = [*labels.METHODS, *labels.ABLATION]
    found.sort(key=lambda p: order.index(p[0].method) if p[0].method in order else len(order))  # stable: by seed
    same = next((p for p in found if p[0].method == REFERENCE), None)
    return PlantedSection(
        title, _words(first, header.watch), [_trained(*p) for p in found], _on_same(*same) if same else []
    )  # fmt: skip


def _label(run: TrainingRun) -> str:
    status = "" if run.status == "done" else f" ({run.status})"
    return f"{labels.method_label(run.method)}, seed {run.seed}{status}"


def _trained(run: TrainingRun, log: token_log.TokenLog) -> TrainedMask:
    tokens, steps = planted.tokens_of(log), log.histogram["step"].to_numpy()
    return TrainedMask(
        _label(run), run.method, run.seed, run.path, _sha256(run), log.header.selector, log.header.tau_p,
        log.header.q, (int(steps.min()), int(steps.max())), planted.as_trained(tokens), planted.base_rates(tokens),
    )  # fmt: skip


def _on_same(run: TrainingRun, log: token_log.TokenLog) -> list[MasksOnSameTokens]:
    first, header = int(np.min(log.histogram["step"].to_numpy())), log.header
    parts: list[tuple[str, int | None]] = [(f"All tokens of {_label(run)}", None)]
    if first == 1:  # a longer log's first step was sampled by a trained policy
        parts.append((f"Base model: step 1 of {_label(run)}", first))
    out = []
    for title, step in parts:
        tokens = planted.tokens_of(log, step)
        out.append(
            MasksOnSameTokens(
                title, header.tau_p, header.q, planted.compare(tokens, header.q), planted.base_rates(tokens)
            )
        )
    return out


def _words(run: TrainingRun, ids: Sequence[int]) -> tuple[str, ...]:
    """The planted words as text; their ids where the run has no tokenizer beside its log."""
    file = run.folder / token_log.FOLDER / token_log.TOKENIZER
    if not file.exists():
        return tuple(f"id {i}" for i in ids)
    vocabulary = Vocabulary.read(file)
    return tuple(vocabulary.one(i).strip() for i in ids)


def _sha256(run: TrainingRun) -> str:
    digest = hashlib.sha256()
    for part in token_log.shards(run.folder / token_log.FOLDER):
        for path in part:
            digest.update(path.read_bytes())
    return digest.hexdigest()
