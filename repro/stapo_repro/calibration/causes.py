"""What a gap can be made of: one cause changed on the same responses, everything else fixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stapo_repro.calibration.judging import Difference, judged, measured, obstacle, scores
from stapo_repro.calibration.published import Published
from stapo_repro.calibration.regrade import Responses
from stapo_repro.records.reading import Loaded
from stapo_results.schema import CellRecord
from stapo_results.statistics.fixed import by_sample, first_samples, noise

PRESETS = ("ours", "math-verify", "justrl", "strict")
NO_RESPONSES = "the folder holds no responses (samples.jsonl)"
Kind = Literal["grader", "judge", "limit", "samples"]


@dataclass(frozen=True)
class Change:
    """One cause changed in one cell of ours.

    Attributes:
        cause: what was changed; `kind` groups it. A grader's and a limit's change is of the rule's verdicts alone.
        before, after: scores in percent; the difference is after minus before.
        gained, lost: samples that became right, and wrong.
        noise: standard error that this many samples leave in the score, in points; of `samples` alone.
    """

    benchmark: str
    setting: str
    kind: Kind
    cause: str
    before: float | None
    after: float | None
    gained: int
    lost: int
    difference: Difference
    noise: float | None = None


def changes(
    cells: Sequence[Loaded], responses: Responses, published: Sequence[Published], limits: Sequence[int],
    samples: Sequence[int], margin: float,
) -> list[Change]:  # fmt: skip
    """Every cause of every cell, judged together.

    Args:
        published: their shorter limits and fewer samples are tried, with `limits` and `samples`.
    """
    found = [x for c in cells for x in _of_cell(c.record, responses, published, limits, samples)]
    verdicts = judged([x.difference for x in found], margin)
    return [replace(x, difference=d) for x, d in zip(found, verdicts, strict=True)]


def cause_of(setting: str, theirs: object, n: int) -> str:
    """The cause that changes this setting of ours into a source's, as `Change.cause` names it; "" for none of them."""
    if setting == "judge":
        return "without the judge" if theirs == "none" else ""
    if setting == "n":
        return f"first {theirs} of {n} samples"
    return {"grader": f"grader {theirs}", "max_tokens": f"limit {theirs} tokens"}.get(setting, "")


def _of_cell(
    r: CellRecord, responses: Responses, published: Sequence[Published], limits: Sequence[int], samples: Sequence[int]
) -> Iterator[Change]:
    theirs = [p for p in published if p.benchmark == r.cell.benchmark]
    own = r.grader.split(",")[0] or "ours"
    if responses.has(r):
        for preset in PRESETS:  # the run's own too: it finds a grader that has changed since
            cause = f"grader {preset}{', again' if preset == own else ''}"
            yield _paired(r, "grader", cause, responses.graded(r, preset))
    else:
        yield _not_run(r, "grader", f"graders {', '.join(PRESETS)}", NO_RESPONSES)
    asked = any(p.judged for p in r.problems)
    if r.scored_by == "rule+judge":
        yield _paired(r, "judge", "without the judge", scores(r, "rule"), scores(r))
    else:
        why = "its word does not count here" if asked else "none was asked: stapo-eval judge --run RUN"
        yield _not_run(r, "judge", "with a judge", why)
    for limit in sorted({*limits, *(p.setting.max_tokens for p in theirs if p.setting.max_tokens)}, reverse=True):
        if limit < r.max_tokens:
            yield _limited(r, responses, own, limit)
    for n in sorted({*samples, *(p.n for p in theirs if p.n)}, reverse=True):
        if n < r.n:
            yield _fewer(r, n)


def _limited(r: CellRecord, responses: Responses, preset: str, limit: int) -> Change:
    cause = f"limit {limit} tokens"
    if not responses.has(r):
        return _not_run(r, "limit", cause, NO_RESPONSES)
    if responses.tokenizer_of(r) is None:
        return _not_run(r, "limit", cause, "the model's tokenizer.json is not at hand: --tokenizer DIR")
    return _paired(r, "limit", cause, responses.graded(r, preset, limit))


def _fewer(r: CellRecord, n: int) -> Change:
    whole = np.array(scores(r))
    spread = noise(whole).variance * r.n / n
    left = None if np.isnan(spread) else round(100 * spread**0.5, 6)
    found = measured(first_samples(whole, n), obstacle(r))
    return Change(r.cell.benchmark, r.cell.setting, "samples", f"first {n} of {r.n} samples", _percent(whole),
                  _percent(whole[:, :n]), 0, 0, found, left)  # fmt: skip


def _paired(
    r: CellRecord, kind: Kind, cause: str, after: list[list[float]], before: list[list[float]] | None = None
) -> Change:
    """The same samples with other verdicts; `before`: the rule's by default."""
    old, new = np.array(before or scores(r, "rule")), np.array(after)
    found = measured(by_sample(new, old), obstacle(r))
    gained, lost = int((new > old).sum()), int((new < old).sum())
    return Change(r.cell.benchmark, r.cell.setting, kind, cause, _percent(old), _percent(new), gained, lost, found)


def _not_run(r: CellRecord, kind: Kind, cause: str, why: str) -> Change:
    return Change(r.cell.benchmark, r.cell.setting, kind, cause, None, None, 0, 0, Difference(why=why))


def _percent(values: np.ndarray) -> float | None:
    mean = float(values.mean())
    return None if mean != mean else round(100 * mean, 6)
