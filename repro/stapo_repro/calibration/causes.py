"""What a gap can be made of: one cause changed on the same responses, everything else fixed; then all of a source's
together, and what remains to its published score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stapo_repro.calibration.judging import Difference, at, judged, mean, measured, obstacle, other_problems, scores
from stapo_repro.calibration.published import Published
from stapo_repro.calibration.regrade import Means, Responses, responses
from stapo_repro.read import Loaded
from stapo_results.schema import CellRecord
from stapo_results.statistics.fixed import Fixed, against_printed, by_sample, first_samples, noise

PRESETS = ("ours", "math-verify", "justrl", "strict")
Kind = Literal["grader", "grader again", "judge", "limit", "samples", "source", "remainder"]
SINGLE = ("grader", "judge", "limit")  # one family of tests; so are "source" and "remainder", each; others stand alone


@dataclass(frozen=True)
class Change:
    """One cause changed in one cell of ours; of a source, all causes together, or what remains after them.

    Attributes:
        cell: our cell's id; setting: how a table names it.
        cause: what was changed; `kind` groups it.
        alone: both scores are of the rule alone, though the cell is scored with a judge.
        before, after: scores in percent; the difference is after minus before.
        gained, lost: samples that became right, and wrong; None where they cannot be counted one by one.
        noise: standard error that this many samples leave in the score, in points; of `samples` alone.
    """

    cell: str
    benchmark: str
    setting: str
    kind: Kind
    cause: str
    before: float | None
    after: float | None
    gained: int | None
    lost: int | None
    difference: Difference
    noise: float | None = None
    alone: bool = False

    @property
    def name(self) -> str:
        return self.cause + (" (rule alone)" if self.alone else "")


def changes(
    cells: Sequence[Loaded], means: Means, published: Sequence[Published], limits: Sequence[int],
    samples: Sequence[int], margin: float,
) -> list[Change]:  # fmt: skip
    """Every cause of every cell, judged together, and every source.

    Args:
        published: their shorter limits and fewer samples are tried, with `limits` and `samples`.

    Raises:
        BadInput: a benchmark at hand is another copy than a run's.
    """
    found: list[Change] = []
    for c in cells:
        with responses(c, means) as mine:
            found += _of_cell(mine, published, limits, samples)
    families: dict[object, list[int]] = {}
    for i, x in enumerate(found):
        family = "single" if x.kind in SINGLE else x.kind if x.kind in ("source", "remainder") else i
        families.setdefault(family, []).append(i)
    for members in families.values():
        for i, d in zip(members, judged([found[i].difference for i in members], margin), strict=True):
            found[i] = replace(found[i], difference=d)
    return found


def cause_of(setting: str, theirs: object, n: int) -> str:
    """The cause that changes this setting of ours into a source's, as `Change.cause` names it; "" for none of them."""
    if setting == "judge":
        return "without the judge" if theirs == "none" else ""
    if setting == "n":
        return f"first {theirs} of {n} samples"
    return {"grader": f"grader {theirs}", "max_tokens": f"limit {theirs} tokens"}.get(setting, "")


def own_grader(r: CellRecord) -> str:
    return r.grader.split(",")[0] or "ours"


def _of_cell(
    mine: Responses, published: Sequence[Published], limits: Sequence[int], samples: Sequence[int]
) -> Iterator[Change]:
    r, own = mine.record, own_grader(mine.record)
    theirs = [p for p in published if p.benchmark == r.cell.benchmark]
    rule = scores(r, "rule")
    if mine.why:
        yield _change(r, "grader", f"graders {', '.join(PRESETS)}", why=mine.why)
    else:
        for preset in PRESETS:  # the run's own too: it finds a grader that has changed since
            again = preset == own
            yield _paired(mine, "grader again" if again else "grader", cause_of("grader", preset, 0)
                          + (", again" if again else ""), rule, mine.graded(preset))  # fmt: skip
    if r.scored_by == "rule+judge":
        yield _paired(mine, "judge", "without the judge", scores(r), rule)
    else:
        asked = any(p.judged for p in r.problems)
        why = "its word does not count here" if asked else "none was asked: stapo-eval judge --run RUN"
        yield _change(r, "judge", "with a judge", why=why)
    for limit in sorted({*limits, *(p.setting.max_tokens for p in theirs if p.setting.max_tokens)}, reverse=True):
        if limit < r.max_tokens:
            cause, why = cause_of("max_tokens", limit, 0), _no_limit(mine)
            if why:
                yield _change(r, "limit", cause, why=why)
            else:
                yield _paired(mine, "limit", cause, rule, mine.graded(own, limit))
    for n in sorted({*samples, *(p.n for p in theirs if p.n)}, reverse=True):
        if n < r.n:
            yield _fewer(r, n)
    for p in theirs:
        yield from _as_source(mine, p)


def _no_limit(mine: Responses) -> str:
    return mine.why or ("" if mine.tokenizer else "the model's tokenizer.json is not at hand: --tokenizer DIR")


def _fewer(r: CellRecord, n: int) -> Change:
    whole = np.array(scores(r))
    spread = noise(whole).variance * r.n / n
    left = None if np.isnan(spread) else round(100 * spread**0.5, 6)
    return _change(r, "samples", cause_of("n", n, r.n), whole, whole[:, :n], first_samples(whole, n), left=left)


def _as_source(mine: Responses, theirs: Published) -> Iterator[Change]:
    """Our responses as a source would have scored them, as far as they allow, and its published score minus that.

    With a judge on both sides its word on other verdicts is not on record, so grader and limit stay as they are.
    """
    r, s = mine.record, theirs.setting
    judged_still = r.scored_by == "rule+judge" and s.judge != "none"
    before = scores(r)
    after, done, n = before, [], r.n
    if r.scored_by == "rule+judge" and not judged_still:
        after, done = scores(r, "rule"), ["without the judge"]
    if not judged_still and not mine.why:
        preset = s.grader if s.grader in PRESETS else own_grader(r)
        limit = s.max_tokens if s.max_tokens and s.max_tokens < r.max_tokens and mine.tokenizer else 0
        done += [cause_of("grader", preset, 0)] * (preset != own_grader(r))
        done += [cause_of("max_tokens", limit, 0)] * bool(limit)
        after = mine.graded(preset, limit) if preset != own_grader(r) or limit else after
    wanted = {"grader": s.grader not in (None, own_grader(r)), "max_tokens": s.max_tokens not in (None, r.max_tokens)}
    untried = [x for k, apart in wanted.items() if apart and (x := cause_of(k, getattr(s, k), 0)) not in done]
    if theirs.n and theirs.n < r.n:
        done, n = [*done, cause_of("n", theirs.n, r.n)], theirs.n
    x, y = np.array(before), np.array(after)
    found = by_sample(y, x, same_responses=True) if n == r.n else first_samples(x, n, y)
    if done:
        yield _change(r, "source", f"as {theirs.source}: {', '.join(done)}", x, y[:, :n], found, why=_gone(mine, y))
    rest = against_printed(y[:, :n], theirs.value / 100, theirs.n or 0, None if theirs.sd is None else theirs.sd / 100)
    rest = Fixed(-rest.difference, rest.se, -rest.high, -rest.low, rest.p)
    why = _gone(mine, y) or other_problems(r) or ("" if theirs.n else "their samples a problem are not stated")
    cause = f"remains to {theirs.source}" + (f" (not tried: {', '.join(untried)})" if untried else "")
    yield _change(r, "remainder", cause, y[:, :n], theirs.value / 100, rest, why=why)


def _gone(mine: Responses, after: np.ndarray) -> str:
    return f"{mine.missing} responses missing from samples.jsonl" if mine.missing and np.isnan(after).any() else ""


def _paired(mine: Responses, kind: Kind, cause: str, before: list[list[float]], after: list[list[float]]) -> Change:
    """The same responses with other verdicts. Only the judge's own change is of what is scored with it."""
    r, old, new = mine.record, np.array(before), np.array(after)
    why, alone = _gone(mine, new), kind != "judge" and r.scored_by == "rule+judge"
    counts = (None, None) if why else (int((new > old).sum()), int((new < old).sum()))
    return _change(r, kind, cause, old, new, by_sample(new, old, same_responses=True), why=why,
                   alone=alone, counts=counts)  # fmt: skip


def _change(
    r: CellRecord, kind: Kind, cause: str, before: ArrayLike = math.nan, after: ArrayLike = math.nan,
    found: Fixed | None = None, *, why: str = "", left: float | None = None, alone: bool = False,
    counts: tuple[int | None, int | None] = (None, None),
) -> Change:  # fmt: skip
    """Without its verdict; without `found` it is "not run"."""
    d = measured(found, why or obstacle(r)) if found else Difference(why=why)
    where = r.cell.id, r.cell.benchmark, at(r.cell)
    return Change(*where, kind, cause, mean(before), mean(after), *counts, d, left, alone)
