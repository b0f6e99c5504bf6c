"""The worth of tokens by kind, the map over probability and entropy, the claims with their power; the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from stapo_repro.statistics import ALPHA
from stapo_repro.text import grid, model_text, number_shown, p_shown, shown, signed, small_percent
from stapo_repro.tokens.log import LoggedRun, in_text, load, marked
from stapo_repro.tokens.numbers import case
from stapo_repro.tokens.shares import Array, Sums, interval
from stapo_results import token_log
from stapo_results.resampling import RESAMPLES
from stapo_results.schema import Run
from stapo_results.statistics import Number, holm
from stapo_results.store import read, read_json
from studies import command
from studies.worth.bins import bins
from studies.worth.figure import worth_map
from studies.worth.record import KINDS, WORTH, TokenWorth

FILE = Path(__file__).with_name("claims.json")
RECORDS = command.RECORDS / "worth"
_PROBES = command.RECORDS / "real"
_REAL = "qwen2.5-coder-0.5b"
_LOWER = (1e-4, 5e-4)
"""Probabilities below the paper's tau_p, 0.002: would a lower one do better?"""
_MORE = 500_000
"""Draws of problems: a p of 0.05 after Holm has a standard error of 0.001 by them, of 0.006 by those that judge."""
_ROWS = {"ordinary": "ordinary, half of each"}
_PLACE = ("prompt_id", "sample", "position")
_TITLES = {"paper": "planted words of the world paper", "costly": "planted words of the world costly",
           "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct"}  # fmt: skip


class WorthClaim(BaseModel):
    """A mean Q - V of `first`, or its difference to that of `second`, that is below 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    claim: str
    first: str
    second: str
    below: Literal[True]


class WorthClaims(BaseModel):
    """claims.json. design: tokens of a kind, and continuations with a token and without it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    source: str
    written: str
    runs: str
    design: dict[str, int]
    rule: str
    claims: tuple[WorthClaim, ...]


def detectable(
    tokens: Sequence[int], of: int, *, value: float = 0.4, between: float = 0.2, clustering: float = 1.5,
    level: float = 0.05, tests: int = 4, power: float = 0.8,
) -> float:  # fmt: skip
    """The mean Q - V, or with two kinds its difference, that is found with this power at Holm's first level.

    Args:
        tokens: of the one kind, or of both.
        of: continuations with a token, and without it.
        value: V. between: standard deviation of Q - V between tokens. clustering: design effect of problems.
    """
    one = 2 * value * (1 - value) / of + between**2  # variance of a token's measured Q - V
    se = math.sqrt(sum(clustering * one / n for n in tokens))
    normal = NormalDist()
    return (normal.inv_cdf(1 - level / tests / 2) + normal.inv_cdf(power)) * se


def groups(tokens: Sequence[TokenWorth]) -> dict[str, np.ndarray]:
    """Name -> which tokens: the kinds, those not rare, rare ones by the median entropy, silenced ones of lower
    probability, what was planted."""
    kind, p = np.array([t.kind for t in tokens]), np.array([t.probability for t in tokens])
    entropy, planted = np.array([t.entropy for t in tokens]), np.array([t.planted for t in tokens])
    found = {name: kind == name for name in KINDS}
    rare = found["silenced"] | found["kept"]
    middle = np.median(entropy[rare]) if rare.any() else math.nan
    found |= {"ordinary": ~rare, "rare, low entropy": rare & (entropy < middle),
              "rare, high entropy": rare & (entropy >= middle)}  # fmt: skip
    for tau in _LOWER:
        found |= {f"seen afterwards: silenced, p < {tau:g}": found["silenced"] & (p < tau),
                  f"seen afterwards: silenced, p >= {tau:g}": found["silenced"] & (p >= tau)}  # fmt: skip
    return found | {f"planted: {name}": planted == name for name in ("useful", "spurious") if (planted == name).any()}


def sums_of(tokens: Sequence[TokenWorth], resamples: int = RESAMPLES) -> Sums:
    """Sums of Q - V, Q and V over the tokens of each group, with draws of problems."""
    _, problem = np.unique([t.prompt_id for t in tokens], return_inverse=True)
    with_T, without_T = (np.array([getattr(t, f"right_{side}") / t.of for t in tokens]) for side in ("with", "without"))
    columns = {}
    for name, which in groups(tokens).items():
        columns |= {name: which, f"{name} Q": which * with_T, f"{name} V": which * without_T}
        columns[f"{name} Q < V"] = which * (with_T < without_T)
        columns[f"{name} worth"] = which * (with_T - without_T)
    return Sums(problem, columns, "problems", resamples)


def draws(sums: Sums, first: str, second: str = "") -> Array:
    """(1 + B,) the mean Q - V of a group, or its difference to another's, then the same of each draw of problems."""
    values = sums.ratio(f"{first} worth", first)
    return values - sums.ratio(f"{second} worth", second) if second else values


def worth(sums: Sums, first: str, second: str = "") -> Number:
    """`draws` as a number; no interval where a group has one problem."""
    return interval(draws(sums, first, second), min(sums.clusters[name] for name in (first, second) if name))


def at_equal_value(tokens: Sequence[TokenWorth], first: str, second: str) -> Number:
    """The mean Q - V of a kind minus that of another, where V is distributed alike: as among both together.

    V of a few continuations is inexact. Half of them, chosen in every way, tell a token's stratum, and the V that is
    taken from Q is of the other half: an error in both would move the difference (regression to the mean). The strata
    are inexact as well, so a difference that comes from V is not taken away whole.
    """
    both = [t for t in tokens if t.kind in (first, second)]
    if {t.kind for t in both} != {first, second}:
        return Number()
    _, problem = np.unique([t.prompt_id for t in both], return_inverse=True)
    kind, of = np.array([t.kind for t in both]), both[0].of
    right_T, with_T = (np.array([getattr(t, f"right_{side}") for t in both]) for side in ("without", "with"))
    columns, half = dict[str, Array](), of // 2
    for j in range(half + 1):  # right ones of the half that tells the stratum
        chance_T = np.array([math.comb(k, j) * math.comb(of - k, half - j) for k in right_T]) / math.comb(of, half)
        gain_T = with_T / of - (right_T - j) / (of - half)
        columns[f"{j}"] = chance_T
        for name in (first, second):
            columns |= {
                f"{name} {j}": chance_T * (kind == name),
                f"{name} worth {j}": chance_T * gain_T * (kind == name),
            }
    sums = Sums(problem, columns, "problems")
    reached = [j for j in range(half + 1) if sums.of[f"{j}"][0] > 0]
    ratio_JB = [[sums.ratio(f"{name} worth {j}", f"{name} {j}") for j in reached] for name in (first, second)]
    weight_JB = np.array([sums.of[f"{j}"] for j in reached])
    gap_JB = np.array(ratio_JB[0]) - np.array(ratio_JB[1])
    mean_B = np.where(weight_JB > 0, weight_JB * gap_JB, 0.0).sum(0) / weight_JB.sum(0)  # a draw may miss a stratum
    return interval(mean_B, min(sums.clusters[f"{name} {j}"] for name in (first, second) for j in reached))


def two_sided(values_1B: Array) -> float:
    """p of "it is 0": twice the share of draws beyond 0, plus 1 above and below (Davison and Hinkley 1997)."""
    drawn_B = values_1B[1:][~np.isnan(values_1B[1:])]
    other = min((drawn_B <= 0).sum(), (drawn_B >= 0).sum())
    return float(min(1.0, 2 * (other + 1) / (len(drawn_B) + 1)))


def judged(claims: Sequence[WorthClaim], sums: Sums | None) -> list[tuple[Number, float, str]]:
    """Of each claim the number, its p after Holm over all of them, and the verdict.

    Without an interval nothing is decided: its p counts as 1. A group without a token is not run.
    """
    numbers = [worth(sums, c.first, c.second) if sums else Number() for c in claims]
    pairs = zip(numbers, claims, strict=True)
    p = holm([two_sided(draws(sums, c.first, c.second)) if sums and n.has_interval else 1.0 for n, c in pairs])
    verdicts = ("undecided", "holds", "fails")
    return [(n, q if n.known else math.nan, "not run" if not n.known else verdicts[(q < ALPHA) * (1 + (n.mean > 0))])
            for n, q in zip(numbers, p, strict=True)]  # fmt: skip


def section(tokens: Sequence[TokenWorth]) -> list[str]:
    """A measurement: the groups, and the map."""
    sums, of = sums_of(tokens), groups(tokens)
    rows = [
        [_ROWS.get(name, name), f"{int(which.sum())}", shown(100 * float(sums.ratio(f"{name} Q", name)[0]), 1),
         shown(100 * float(sums.ratio(f"{name} V", name)[0]), 1), number_shown(worth(sums, name), 1, 100, sign=True),
         shown(100 * float(sums.ratio(f"{name} Q < V", name)[0]), 0)]
        for name, which in of.items() if which.any()
    ]  # fmt: skip
    lines = [*grid(("Tokens", "Measured", "Q (%)", "V (%)", "Q - V (points)", "Tokens with Q < V (%)"), rows), ""]
    for tau in _LOWER:
        below, above = (f"seen afterwards: silenced, p {sign} {tau:g}" for sign in ("<", ">="))
        if (found := worth(sums, below, above)).has_interval:
            points = number_shown(found, 1, 100, sign=True)
            lines += [f"Seen afterwards: silenced tokens below {tau:g} minus the others: {points} points.", ""]
    planted = any(t.planted for t in tokens)  # such worlds say themselves where V comes from
    if not planted and (alike := at_equal_value(tokens, "silenced", "kept")).has_interval:
        points = number_shown(alike, 1, 100, " points", sign=True)
        said = f"Seen afterwards: silenced minus kept tokens, where V is distributed alike: {points}."
        lines += [f"{said} Half of a token's continuations tell its V for that, the other half are in Q - V.", ""]
    lines += [
        "Q - V in points by probability, down, and entropy:",
        "",
    ]
    rows_of: dict[str, list[str]] = {}
    for b in (cells := bins(tokens)):
        rows_of.setdefault(b.rate, [b.rate]).append(f"{signed(100 * b.worth.mean, 0)} ({b.tokens})" if b.tokens else "")
    head = ("p", *(f"{name} nats" for name in dict.fromkeys(b.entropy for b in cells)))
    return [*lines, *grid(head, list(rows_of.values())), ""]


def weighted(tokens: Sequence[TokenWorth], there: Mapping[str, int], middle: float) -> Number:
    """Rare tokens below an entropy minus those above it, where `there` has so many of each kind."""
    of = [t for t in tokens if t.kind in there]
    _, problem = np.unique([t.prompt_id for t in of], return_inverse=True)
    weight = np.array([there[t.kind] / sum(x.kind == t.kind for x in of) for t in of])
    gain = np.array([(t.right_with - t.right_without) / t.of for t in of])
    low = np.array([t.entropy < middle for t in of])
    columns = {"low": weight * low, "high": weight * ~low}
    sums = Sums(problem, columns | {f"{side} worth": part * gain for side, part in columns.items()}, "problems")
    return interval(draws(sums, "low", "high"))


def as_the_log_has_them(tokens: Sequence[TokenWorth], log: LoggedRun) -> list[str]:
    """The claim on entropy with the weights and the median of the log's rare tokens, those behind a box too, of which
    none was drawn: the design drew as many kept tokens as silenced ones."""
    rare, silenced = (log.rows[name].astype(bool) for name in ("rare", "silenced"))
    middle = float(np.median(log.rows["entropy"][rare]))
    there = {"silenced": int((rare & silenced).sum()), "kept": int((rare & ~silenced).sum())}
    of = [t for t in tokens if t.kind in there]
    median = float(np.median([t.entropy for t in of]))
    below = [t.kind == "silenced" for t in of if t.entropy < median]
    points = number_shown(weighted(tokens, there, middle), 1, 100, " points", sign=True)
    return [
        f"The log has {there['silenced']} silenced and {there['kept']} kept rare tokens, those behind a box too. The "
        f"sample has as many kept as silenced ones. So its median entropy is higher, {shown(median)} nats, and "
        f"{sum(below)} of the {len(below)} below it are silenced. Seen afterwards: at the log's own median, "
        f"{shown(middle)} nats, and with the log's weights, low minus high is {points}.",
        "",
    ]


def extremes(tokens: Sequence[TokenWorth], log: LoggedRun, each: int = 10) -> list[str]:
    """The rare tokens of highest and of lowest Q - V that the log has, in their context, at most half of them in each
    table; of equal ones those of lower probability first."""
    places = zip(*(log.table[name].to_pylist() for name in _PLACE), strict=True)
    row_of = {place: i for i, place in enumerate(places)}
    rare = sorted((t for t in tokens if t.kind in ("silenced", "kept")), key=lambda t: t.probability)
    logged = [(t, row_of[place]) for t in rare if (place := (t.prompt_id, t.sample, t.position)) in row_of]
    each = min(each, len(logged) // 2)
    if not each:
        return []
    lines = [
        f"Seen afterwards: {len(logged)} of {len(rare)} rare tokens are in the log of {log.name}. These are chosen by "
        "their own measured Q - V, so much of it is chance.",
        "",
    ]
    for title, sign in (("highest", -1), ("lowest", 1)):
        rows = []
        for t, i in sorted(logged, key=lambda of: sign * (of[0].right_with - of[0].right_without) / of[0].of)[:each]:
            c = case(log.vocabulary, log.records(np.array([i]))[0], t.kind)
            top = " · ".join(f"{model_text(marked(text))} {small_percent(p, 2)}" for text, p in c["top"][:2])
            text, right = in_text(c["before"][-60:], c["token"], c["after"][:20]), (t.right_with, t.right_without)
            ends = [f"{n} of {t.of}" for n in right]
            rows.append([text, small_percent(t.probability), shown(t.entropy), t.kind, top, *ends])
        head = ("Token in its context", "p", "H (nats)", "S2T", "Most likely", "Right with it", "Without")
        lines += [f"The {each} of {title} Q - V:", "", *grid(head, rows, 1), ""]
    return lines


def as_designed(design: Mapping[str, int], record: Path) -> bool:
    """Whether a measurement has the tokens of a kind and the continuations that the claims were written for."""
    if not record.is_dir():
        return False
    run = read_json(record / "run.json", Run)
    config = run.config
    of_kind = {"silenced": config["each"], "kept": config["each"], "ordinary": config["ordinary"] or config["each"]}
    given = (config["seed"], config.get("anywhere", False), config["max_tokens"], config.get("kinds") or [], run.status)
    return design == of_kind | {"continuations": config["of"]} and given == (0, False, 512, [], "done")


def add(files: dict[Path, bytes]) -> None:
    """Add results/tables/worth.md from the committed measurements."""
    claims = read_json(FILE, WorthClaims)
    d = claims.design
    lines = ["# What a token is worth", "", claims.rule, "", f"The runs: {claims.runs}.", "", "## Claims", ""]
    measured = {f.parent.name: list(read(f, TokenWorth)) for f in sorted(RECORDS.glob(f"*/{WORTH}"))}
    real = measured.get(_REAL) if as_designed(d, RECORDS / _REAL) else None
    size = {"silenced": d["silenced"], "kept": d["kept"], "ordinary": 2 * d["ordinary"],
            "rare, low entropy": d["kept"], "rare, high entropy": d["kept"]}  # fmt: skip
    rows = []
    once, again = (judged(claims.claims, sums_of(real, n) if real else None) for n in (RESAMPLES, _MORE))
    for c, (value, p, verdict), (_, p_again, _) in zip(claims.claims, once, again, strict=True):
        least = detectable([size[name] for name in (c.first, c.second) if name], d["continuations"])
        found = [number_shown(value, 1, 100, sign=True), p_shown(p)] if value.known else ["not run", ""]
        rows.append([c.claim, shown(100 * least, 1), *found, verdict, p_shown(p_again) if value.known else ""])
    head = (
        "Claim",
        "Detectable (points)",
        "Q - V (points)",
        "p after Holm",
        "Verdict",
        f"Seen afterwards: p by {_MORE:,} draws",
    )
    lines += [*grid(head, rows), ""]
    asked = {log.parent: read_json(log.parent / "run.json", Run) for log in sorted(_PROBES.rglob(token_log.FOLDER))}
    log_of = {run.revisions["data"].removeprefix("sha256:"): f for f, run in asked.items() if run.kind == "probe"}
    for name, tokens in measured.items():
        lines += [f"## {name}", "", *section(tokens)]
        if (data := read_json(RECORDS / name / "run.json", Run).revisions["data"]) in log_of:
            lines += [*as_the_log_has_them(tokens, log := load(log_of[data])), *extremes(tokens, log)]
    files[command.TABLES / "worth.md"] = "\n".join(lines).encode()
    maps = [
        worth_map(name, f"What a token is worth: {_TITLES.get(name, name)}", tokens)
        for name, tokens in measured.items()
    ]
    command.add_figures(files, "worth", maps)
