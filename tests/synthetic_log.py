"""Made-up token logs of the miniature for tests: the tokens that matter, one by one, and how many others there were."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stapo_results import token_log

JUNK = (4, 5)  # ids of the planted words
USEFUL = 7  # of a useful one
WORD = 9  # any other id


@dataclass(frozen=True)
class Token:
    prompt: str
    junk: bool = False
    useful: bool = False
    rare: bool = True
    entropy: float = 0.5
    silenced: bool = False
    tau_h: float | None = None
    batch: int = 1
    step: int = 1
    advantage: float = 1.0
    p: float = 0.001  # where it is rare


@dataclass(frozen=True)
class Others:
    """Tokens without a row: of responses with A > 0 (`correct`), some of them silenced, and of all others."""

    correct: int = 0
    silenced: int = 0
    wrong: int = 0
    batch: int = 1
    step: int = 1


def with_thresholds(tokens: list[Token], q: float) -> list[Token]:
    """The tokens with tau_h as the trainer writes it, and silenced as S2T silences them."""
    out = []
    for t in tokens:
        group = [u.entropy for u in tokens if (u.step, u.batch) == (t.step, t.batch) and u.rare]
        tau_h = float(np.quantile(np.float32(group).astype(np.float64), q)) if group else None
        out.append(replace(t, tau_h=tau_h, silenced=t.rare and tau_h is not None and np.float32(t.entropy) < tau_h))
    return out


def write(
    run: Path, tokens: list[Token], others: Iterable[Others] = (), *, q: float = 0.75, selector="silence_spurious",
    watch: tuple[int, ...] = JUNK, left_out: int = 0, split: bool = True, mode="on",
) -> None:  # fmt: skip
    """Write the log of a run, a file a step (or all steps in one), with the counts of its rows and of the others."""
    header = token_log.LogHeader(
        mode=mode, selector=selector, tau_p=0.002, q=q, vocabulary=16, watch=watch, useful=(USEFUL,), left_out=left_out
    )  # fmt: skip
    others = list(others)
    steps = sorted({t.step for t in tokens} | {o.step for o in others})
    for part in [[s] for s in steps] if split else [steps]:
        rows = [t for t in tokens if t.step in part]
        counts = _counts(rows, [o for o in others if o.step in part])
        token_log.write(run / token_log.FOLDER, part[0], _rows(rows), counts, header)


def _rows(rows: list[Token]) -> dict[str, list]:
    n = len(rows)
    number = [[u for u in rows if u.step == t.step].index(t) for t in rows]
    return {
        "step": [t.step for t in rows], "mini_batch": [t.batch for t in rows], "prompt_id": [t.prompt for t in rows],
        "sample": [0] * n, "position": number,
        "token": [JUNK[i % 2] if t.junk else USEFUL if t.useful else WORD for i, t in zip(number, rows, strict=True)],
        "advantage": [t.advantage for t in rows], "logprob": [math.log(t.p if t.rare else 0.3) for t in rows],
        "entropy": [t.entropy for t in rows], "ratio": [1.0] * n, "clipped": [False] * n, "collision": [0.5] * n,
        "rare": [t.rare for t in rows], "silenced": [t.silenced for t in rows], "tau_h": [t.tau_h for t in rows],
        "old_logprob": [-1.0] * n, "sampler_logprob": [math.nan] * n, "mismatched": [False] * n,
        "top_tokens": [[9, 4]] * n, "top_logprobs": [[-0.1, -3.0]] * n, "before": [[1, 2, 3]] * n, "after": [[6]] * n,
    }  # fmt: skip


def _counts(rows: list[Token], others: list[Others]) -> dict[str, list]:
    """One line a row, and up to three for each of the others."""
    lines = [
        (t.step, t.batch, np.sign(t.advantage), t.rare, t.tau_h is not None and t.entropy < t.tau_h, t.silenced, 1)
        for t in rows
    ]
    for o in others:
        for sign, silenced, count in ((1, False, o.correct - o.silenced), (1, True, o.silenced), (-1, False, o.wrong)):
            if count:
                lines.append((o.step, o.batch, sign, False, False, silenced, count))
    names = ("step", "mini_batch", "sign", "rare", "below", "silenced", "tokens")
    columns = {name: [line[i] for line in sorted(lines)] for i, name in enumerate(names)}
    n = len(lines)
    return {
        **columns,
        "mismatched": [False] * n,
        "rises": [False] * n,
        "log10_p": [36] * n,
        "entropy": [0] * n,
        "norm_sum": [0.5] * n,
    }
