"""A sheet of rare tokens for readers who do not know the mask; `readings` has what two readings of it say.

    DIR/sheet.jsonl   what a reader sees: id, problem, the response before the token, the token, the response after it
    DIR/key.jsonl     what a reader must not see: id, weight, what each mask does with it, where it stands
    DIR/drawn.json    how many were drawn of how many, the seed, the logs

The sheet has neither probabilities nor what else the model could have said: they would give the mask away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from stapo_repro.tokens import planted
from stapo_repro.tokens.logged_run import LoggedRun
from stapo_repro.tokens.numbers import case
from stapo_results import benchmarks, store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Record, Sample
from stapo_results.seeds import derive_seed
from stapo_results.token_log import TokenLog

MASKS = tuple(planted.NAMES)
SHEET, KEY, DRAWN = "sheet.jsonl", "key.jsonl", "drawn.json"
PARTS = _SILENCED, _KEPT = "silenced", "kept"


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
