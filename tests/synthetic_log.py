"""Made-up token logs of the miniature for tests: the tokens that matter, one by one, and how many others there were."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import token_logs as logs

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
    run: Path, tokens: list[Token], others: Iterable[Others] = (), *, selector: str = "silence_spurious",
    watch: tuple[int, ...] = JUNK, **change: Any,
) -> None:  # fmt: skip
    """Write the log of a run, a file a step, with the counts of its rows and of the others."""
    rows, counted = [], []
    for t in tokens:
        i = [u for u in tokens if u.step == t.step].index(t)
        of_it = {
            "step": t.step, "mini_batch": t.batch, "prompt_id": t.prompt, "position": i, "advantage": t.advantage,
            "token": JUNK[i % 2] if t.junk else USEFUL if t.useful else WORD, "rare": t.rare, "silenced": t.silenced,
            "logprob": math.log(0.001 if t.rare else 0.3), "entropy": t.entropy, "tau_h": t.tau_h,
        }  # fmt: skip
        rows.append(logs.row(**of_it))
    for o in others:
        for sign, silenced, count in ((1, False, o.correct - o.silenced), (1, True, o.silenced), (-1, False, o.wrong)):
            where = {"step": o.step, "mini_batch": o.batch, "advantage": sign, "rare": False, "tau_h": None}
            counted += [logs.row(**where, silenced=silenced)] * count
    own = {"mode": "on", "selector": selector, "vocabulary": 16, "watch": watch, "useful": (USEFUL,)} | change
    logs.write(run, rows, counted, tokenizer=False, **own)
