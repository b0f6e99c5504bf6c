"""Made-up token logs of the miniature for tests: the tokens that matter, one by one, and how many others there were."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stapo_results import token_log

JUNK = (4, 5)  # ids of the planted words
WORD = 9  # any other id


@dataclass(frozen=True)
class Token:
    prompt: str
    junk: bool = False
    rare: bool = True
    entropy: float = 0.5
    silenced: bool = False
    tau_h: float | None = None
    batch: int = 1
    step: int = 1
    advantage: float = 1.0


@dataclass(frozen=True)
class Others:
    """Tokens without a row: of responses with A > 0 (`correct`), some of them silenced, and of all others."""

    correct: int = 0
    silenced: int = 0
    wrong: int = 0
    batch: int = 1
    step: int = 1


def with_thresholds(tokens: Iterable[Token], q: float) -> list[Token]:
    """The tokens with tau_h as the trainer writes it, and silenced as S2T silences them."""
    tokens, out = list(tokens), []
    for t in tokens:
        group = [u.entropy for u in tokens if (u.step, u.batch) == (t.step, t.batch) and u.rare]
        tau_h = float(np.quantile(np.float32(group).astype(np.float64), q)) if group else None
        silenced = t.rare and tau_h is not None and float(np.float32(t.entropy)) < tau_h
        out.append(Token(**{**t.__dict__, "tau_h": tau_h, "silenced": silenced}))
    return out


def write(
    run: Path, tokens: list[Token], others: Iterable[Others] = (), *, q: float = 0.75, selector="silence_spurious",
    watch: tuple[int, ...] = JUNK, left_out: int = 0, split: bool = True, mode="on",
) -> None:  # fmt: skip
    """Write the log of a run, a file a step (or all steps in one), with the counts of its rows and of the others."""
    header = token_log.LogHeader(
        mode=mode, selector=selector, tau_p=0.002, q=q, vocabulary=16, watch=watch, left_out=left_out
    )  # fmt: skip
    others = list(others)
    steps = sorted({t.step for t in tokens} | {o.step for o in others})
    for part in [[s] for s in steps] if split else [steps]:
        rows = [t for t in tokens if t.step in part]
        counts = _counts(rows, [o for o in others if o.step in part])
        token_log.write(run / token_log.FOLDER, part[0], _rows(rows), counts, header)


def _p(t: Token) -> float:
    return 0.001 if t.rare else 0.3


def _rows(rows: list[Token]) -> dict[str, list]:
    n = len(rows)
    number = [[u for u in rows if u.step == t.step].index(t) for t in rows]
    return {
        "step": [t.step for t in rows], "mini_batch": [t.batch for t in rows], "prompt_id": [t.prompt for t in rows],
        "sample": [0] * n, "position": number,
        "token": [JUNK[i % 2] if t.junk else WORD for i, t in zip(number, rows, strict=True)],
        "advantage": [t.advantage for t in rows], "logprob": [math.log(_p(t)) for t in rows],
        "entropy": [t.entropy for t in rows], "ratio": [1.0] * n, "clipped": [False] * n, "collision": [0.5] * n,
        "rare": [t.rare for t in rows], "silenced": [t.silenced for t in rows], "tau_h": [t.tau_h for t in rows],
        "top_tokens": [[9, 4]] * n, "top_logprobs": [[-0.1, -3.0]] * n, "before": [[1, 2, 3]] * n, "after": [[6]] * n,
    }  # fmt: skip


def _counts(rows: list[Token], others: list[Others]) -> dict[str, list]:
    seen: Counter = Counter()
    for t in rows:
        log10_p, entropy = (int(b[0]) for b in token_log.bins(np.log([_p(t)]), np.array([t.entropy])))
        below = t.tau_h is not None and t.entropy < t.tau_h
        sign = (t.advantage > 0) - (t.advantage < 0)
        seen[t.step, t.batch, sign, t.rare, below, t.silenced, math.log(_p(t)) + t.entropy < 0, log10_p, entropy] += 1
    for o in others:
        for sign, silenced, count in ((1, False, o.correct - o.silenced), (1, True, o.silenced), (-1, False, o.wrong)):
            if count:
                seen[o.step, o.batch, sign, False, False, silenced, False, 47, 0] += count
    names = ("step", "mini_batch", "sign", "rare", "below", "silenced", "rises", "log10_p", "entropy")
    keys = sorted(seen)
    columns = {name: [key[i] for key in keys] for i, name in enumerate(names)}
    return {**columns, "tokens": [seen[k] for k in keys], "norm_sum": [0.5 * seen[k] for k in keys]}
