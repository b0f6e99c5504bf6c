"""Rare tokens labelled by readers who do not know the mask: a sheet to label, and what two readings of it say.

    DIR/sheet.jsonl   what a reader sees: id, problem, the response before the token, the token, the response after it
    DIR/key.jsonl     what a reader must not see: id, weight, what each mask does with it, where it stands
    DIR/drawn.json    how many were drawn of how many, the seed, the logs

A reading is a file of lines {"id": "017", "label": "harmful" | "neutral" | "useful"}, one for each line of the sheet.
The sheet has neither probabilities nor what else the model could have said: they would give the mask away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.tables import shown, signed
from stapo_repro.tables.render import grid
from stapo_repro.tokens import planted
from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.numbers import case
from stapo_repro.tokens.shares import Interval, Share, Sums, percentiles
from stapo_results import benchmarks, store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Record, Sample
from stapo_results.seeds import derive_seed
from stapo_results.statistics import resampled_sums
from stapo_results.token_log import TokenLog

Label = Literal["harmful", "neutral", "useful"]
LABELS: tuple[Label, ...] = get_args(Label)
MASKS = (planted.S2T, planted.RANDOM, planted.HIGH, planted.FULL)
NAMES = {planted.S2T: "S2T", planted.RANDOM: "random", planted.HIGH: "high entropy", planted.FULL: "all rare"}
SHEET, KEY, DRAWN = "sheet.jsonl", "key.jsonl", "drawn.json"
_SILENCED, _KEPT = "silenced", "kept"


class Shown(BaseModel):
    """A line of the sheet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    problem: str
    before: str
    token: str
    after: str


class Hidden(BaseModel):
    """A line of the key.

    Attributes:
        weight: how many rare tokens of its part (silenced by S2T, kept) it stands for.
        masks: the chance with which each mask silences it (`planted.weights`).
        prompt_id, sample, position: where it stands in the log of `run`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    weight: float
    masks: dict[str, float]
    run: str
    step: int
    prompt_id: str
    sample: int
    position: int
    probability: float
    entropy: float


class Drawn(Record):
    """drawn.json. there, drawn: tokens by part. logs: run -> file -> SHA-256 of what was read."""

    seed: int
    each: int
    there: dict[str, int]
    drawn: dict[str, int]
    logs: dict[str, dict[str, str]]


class Reading(BaseModel):
    """A line of a reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    label: Label


Texts = Mapping[tuple[str, int], str]
"""(prompt_id, sample) -> a whole response."""


def texts_of(samples: Path) -> dict[tuple[str, int], str]:
    """The responses of an evaluation, by the names that `stapo-train probe` gives them."""
    found = {}
    for s in store.read(samples, Sample):
        benchmark, setting = s.cell.split("/")[-3:-1]
        found[f"{benchmark}/{setting}/{s.problem_id}", s.sample_index] = s.response
    return found


def problems_of(texts: Texts, data_dir: Path) -> dict[str, str]:
    """The problems of an evaluation's benchmarks, by the names that a probe gives their responses."""
    cells = sorted({tuple(name.split("/")[:2]) for name, _ in texts})
    return {f"{b}/{setting}/{p.id}": p.problem for b, setting in cells for p in benchmarks.load(b, data_dir).problems}


def draw(
    runs: Sequence[LoggedRun],
    each: int,
    seed: int,
    texts: Texts | None = None,
    problems: Mapping[str, str] | None = None,
) -> tuple[list[Shown], list[Hidden], Drawn]:
    """Draw up to `each` of the rare tokens that S2T silences and of those that it keeps, and mix them.

    Every token of a part has the same chance, whatever its response.

    Args:
        texts: whole responses; without them a token stands in the context that its log keeps.
        problems: prompt_id -> the problem's text.

    Returns:
        The sheet, the key in its order, and how many were drawn of how many.

    Raises:
        BadInput: a part has no token.
        RecordError: a log without all its rare tokens, or a text that has another token at a logged place.
    """
    rng = np.random.default_rng(derive_seed("labelling", seed))
    chances = [_chances(run) for run in runs]
    parts: dict[str, list[tuple[int, int]]] = {_SILENCED: [], _KEPT: []}
    for n, run in enumerate(runs):
        for i in np.flatnonzero(run.rows["rare"]).tolist():
            parts[_SILENCED if chances[n][planted.S2T][i] else _KEPT].append((n, i))
    chosen: list[tuple[str, tuple[int, int]]] = []
    for part, there in parts.items():
        if not there:
            raise BadInput(f"no rare token is {part}", found=", ".join(r.name for r in runs),
                           expected="both kinds, in responses with a positive advantage",
                           next_step="probe more responses")  # fmt: skip
        chosen += [(part, there[k]) for k in rng.permutation(len(there))[:each].tolist()]
    drawn = Counter(part for part, _ in chosen)
    sheet, key = [], []
    for number, k in enumerate(rng.permutation(len(chosen)).tolist(), 1):
        part, (n, i) = chosen[k]
        run, name = runs[n], f"{number:03d}"
        one = case(run.vocabulary, run.records(np.array([i]))[0], part)
        before, after = one.before, one.after
        if texts is not None:
            before, after = _around(run, i, texts, (one.prompt_id, one.sample), one.position)
        problem = (problems or {}).get(one.prompt_id, "")
        sheet.append(Shown(id=name, problem=problem, before=before, token=one.token, after=after))
        key.append(Hidden(
            id=name, weight=len(parts[part]) / drawn[part], masks={m: float(c[i]) for m, c in chances[n].items()},
            run=run.name, step=one.step, prompt_id=one.prompt_id, sample=one.sample, position=one.position,
            probability=one.probability, entropy=one.entropy,
        ))  # fmt: skip
    logs, there = {r.name: r.inputs for r in runs}, {part: len(of) for part, of in parts.items()}
    return sheet, key, Drawn(seed=seed, each=each, there=there, drawn=dict(drawn), logs=logs)


def _chances(run: LoggedRun) -> dict[str, np.ndarray]:
    """The chance (R,) with which each mask silences each logged token."""
    tokens = planted.tokens_of(TokenLog(run.table, run.histogram, run.header))
    positive_R = run.rows["advantage"] > 0
    out = {mask: np.zeros(len(positive_R)) for mask in MASKS}
    for mask, chance_N in planted.weights(tokens, run.header.q).items():
        out[mask][positive_R] = chance_N
    return out


def _around(run: LoggedRun, row: int, texts: Texts, name: tuple[str, int], position: int) -> tuple[str, str]:
    """The text of a response before and after a token."""
    text = texts.get(name)
    found = run.vocabulary.places(text) if text is not None else []
    if text is not None and position == len(found):  # the token that ends the response
        return text, ""
    token = int(run.table["token"][row].as_py())
    if text is None or position > len(found) or found[position][0] != token:
        what = "no such response" if text is None else f"another token at {position}"
        raise RecordError(
            f"the responses are not those of the log {run.name}",
            found=f"{name[0]}, sample {name[1]}: {what}",
            expected="the samples.jsonl that was probed",
            next_step="leave out --samples: the log keeps some context of each token",
        )
    _, begin, end = found[position]
    return text[:begin], text[end:]


def read_labels(file: Path, sheet: Sequence[Shown]) -> dict[str, Label]:
    """A reading, by id. Raises: RecordError for an id that is missing, twice, or not on the sheet."""
    lines = list(store.read(file, Reading))
    wanted, count = {s.id for s in sheet}, Counter(x.id for x in lines)
    kinds = {
        "missing": wanted - count.keys(),
        "not on the sheet": count.keys() - wanted,
        "twice": {i for i, n in count.items() if n > 1},
    }
    if wrong := "; ".join(f"{kind}: {', '.join(sorted(ids)[:5])}" for kind, ids in kinds.items() if ids):
        expected = f"each of the {len(wanted)} ids once"
        raise RecordError(f"{file} is no reading of this sheet", found=wrong, expected=expected, next_step="mend it")
    return {x.id: x.label for x in lines}


@dataclass(frozen=True)
class Labelled:
    """What two readings say.

    Attributes:
        tokens: how many were read.
        table: (first reading's label, second's) -> tokens.
        agreement: share of equal labels. kappa: Cohen's, of the unweighted tokens.
        shares: mask -> label -> share among the tokens that it would silence, the mean of both readings, weighted so
            that silenced and kept tokens count as often as they occur.
        differences: mask -> label -> S2T's share less this mask's, in the same draws.
    """

    tokens: int
    table: dict[tuple[Label, Label], int]
    agreement: Share
    kappa: Interval
    shares: dict[str, dict[str, Share]]
    differences: dict[str, dict[str, Interval]]


def score(key: Sequence[Hidden], first: Mapping[str, Label], second: Mapping[str, Label]) -> Labelled:
    """Agreement, and the labels by mask, with 95 % intervals over prompts."""
    both: list[tuple[Label, Label]] = [(first[k.id], second[k.id]) for k in key]
    _, prompt_N = np.unique([f"{k.run}\0{k.prompt_id}" for k in key], return_inverse=True)
    weight_N = np.array([k.weight for k in key])
    columns = {"all": np.ones(len(key)), "equal": np.array([float(a == b) for a, b in both])}
    for mask in MASKS:
        columns[mask] = weight_N * [k.masks[mask] for k in key]
        for label in LABELS:
            columns[f"{mask} {label}"] = columns[mask] * [((a == label) + (b == label)) / 2 for a, b in both]
    sums = Sums(prompt_N, columns, "prompts")
    return Labelled(
        tokens=len(key),
        table={(a, b): both.count((a, b)) for a in LABELS for b in LABELS},
        agreement=sums.share("equal", "all"),
        kappa=_kappa(prompt_N, both),
        shares={m: {label: sums.share(f"{m} {label}", m) for label in LABELS} for m in MASKS},
        differences={
            m: {x: sums.difference((f"{planted.S2T} {x}", planted.S2T), (f"{m} {x}", m)) for x in LABELS}
            for m in MASKS[1:]
        },
    )


def _kappa(prompt_N: np.ndarray, both: Sequence[tuple[Label, Label]]) -> Interval:
    """Cohen's kappa (1960) with its percentile interval over draws of prompts; no number where chance explains all."""
    pairs = [(a, b) for a in LABELS for b in LABELS]
    counts_CK = np.zeros((int(prompt_N.max()) + 1, len(pairs)))
    for c, pair in zip(prompt_N, both, strict=True):
        counts_CK[c, pairs.index(pair)] += 1

    def kappa(counts_BK: np.ndarray) -> np.ndarray:
        table = counts_BK.reshape(-1, len(LABELS), len(LABELS))
        n = table.sum(axis=(1, 2))
        observed = np.trace(table, axis1=1, axis2=2) / n
        chance = (table.sum(axis=2) * table.sum(axis=1)).sum(axis=1) / n**2
        return np.divide(observed - chance, 1 - chance, out=np.full(len(n), np.nan), where=chance < 1)

    return percentiles(float(kappa(counts_CK.sum(axis=0)[None])[0]), kappa(resampled_sums(counts_CK)))


Printed = tuple[float | None, float | None, float | None]
"""A value and the ends of its interval."""


class LabelRecord(Record):
    """labels.json: shares and differences in percent. readings: SHA-256 of both files. table: first reading's label,
    second's, tokens. shares, differences: see `Labelled`."""

    drawn: Drawn
    readings: tuple[str, str]
    tokens: int
    table: dict[str, dict[str, int]]
    agreement: Printed
    kappa: Printed
    shares: dict[str, dict[str, Printed]]
    differences: dict[str, dict[str, Printed]]


def to_record(found: Labelled, drawn: Drawn, readings: tuple[str, str]) -> LabelRecord:
    """What is written."""
    return LabelRecord(
        drawn=drawn,
        readings=readings,
        tokens=found.tokens,
        table={a: {b: found.table[a, b] for b in LABELS} for a in LABELS},
        agreement=_printed(found.agreement),
        kappa=_printed(found.kappa, 1.0),
        shares={m: {x: _printed(s) for x, s in by.items()} for m, by in found.shares.items()},
        differences={m: {x: _printed(d) for x, d in by.items()} for m, by in found.differences.items()},
    )


def _printed(i: Interval, factor: float = 100.0) -> Printed:
    value, low, high = (None if x is None else round(factor * x, 8) for x in (i.value, i.low, i.high))
    return value, low, high


def to_markdown(r: LabelRecord) -> list[str]:
    """Agreement in a sentence, the labels by mask as a table."""
    rows = [[NAMES[m], *(_text(r.shares[m][x]) for x in LABELS)] for m in MASKS]
    rows += [[f"S2T minus {NAMES[m]}", *(_text(r.differences[m][x], sign=True) for x in LABELS)] for m in MASKS[1:]]
    return [
        f"{r.tokens} tokens, read twice: {_text(r.agreement)} % equal, Cohen's kappa {_text(r.kappa, 2)}.",
        "",
        *grid(("Tokens that the mask silences", *(f"{x} (%)" for x in LABELS)), rows),
    ]


def _text(p: Printed, digits: int = 1, *, sign: bool = False) -> str:
    value, low, high = p
    if value is None:
        return "n/a"
    ends = "" if low is None else f" ({shown(low, digits)} to {shown(high, digits)})"
    return f"{(signed if sign else shown)(value, digits)}{ends}"
