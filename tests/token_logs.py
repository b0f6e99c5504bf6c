"""Token logs made up for tests: rows by hand or at random, and the histogram that belongs to them."""

from __future__ import annotations

import atexit
import functools
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stapo_results import token_log
from stapo_results.schema import StepMetrics
from stapo_results.store import append
from stapo_training.miniature.tokenizer import core_tokenizer
from stapo_training.token_log.rows import gradient_norm

TAU_P, Q = 0.002, 0.75


@functools.cache
def _tokenizer_file() -> Path:
    folder = tempfile.mkdtemp(prefix="stapo-tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "tokenizer.json"
    core_tokenizer().save(str(file))
    return file


@functools.cache
def tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(_tokenizer_file()))


def ids(text: str) -> list[int]:
    return tokenizer().encode(text).ids


def header(**change: Any) -> token_log.LogHeader:
    own = {"mode": "full", "selector": "silence_spurious", "tau_p": TAU_P, "q": Q, "vocabulary": 391}
    return token_log.LogHeader(**(own | change))


def row(**change: Any) -> dict[str, Any]:
    """A rare, silenced token with everything at a plain value."""
    own = {
        "step": 1, "mini_batch": 1, "prompt_id": "p0", "sample": 0, "position": 5, "token": ids("7")[0],
        "advantage": 1.0, "logprob": -7.0, "entropy": 0.1, "ratio": 1.0, "clipped": False, "collision": 0.9,
        "old_logprob": -7.0, "sampler_logprob": math.nan, "mismatched": False,
        "rare": True, "silenced": True, "tau_h": 0.5, "top_tokens": ids("345678")[:5],
        "top_logprobs": [-0.1, -3.0, -4.0, -5.0, -6.0], "before": ids("What is 12 + 30?"), "after": ids("\n\n4"),
    }  # fmt: skip
    return own | change


def histogram(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The counts of these rows alone, one line a row: lines of equal bins add up in whoever reads them."""
    tau = np.array([np.nan if r["tau_h"] is None else r["tau_h"] for r in rows])
    entropy = np.array([r["entropy"] for r in rows], dtype=np.float64)
    log10_p, in_nats = token_log.bins(np.array([r["logprob"] for r in rows]), entropy)
    of_norm = ("advantage", "ratio", "clipped", "logprob", "collision")
    norm = gradient_norm(*(np.array([r[c] for r in rows]) for c in of_norm))
    return {
        "step": [r["step"] for r in rows],
        "mini_batch": [r["mini_batch"] for r in rows],
        "sign": [int(np.sign(r["advantage"])) for r in rows],
        "rare": [r["rare"] for r in rows],
        "below": (entropy < tau).tolist(),
        "silenced": [r["silenced"] for r in rows],
        "mismatched": [r["mismatched"] for r in rows],
        "rises": [r["logprob"] + r["entropy"] < 0 for r in rows],
        "log10_p": log10_p.tolist(),
        "entropy": in_nats.tolist(),
        "tokens": [1] * len(rows),
        "norm_sum": norm.tolist(),
    }


def write(
    run: Path, rows: Sequence[Mapping[str, Any]], more: Sequence[Mapping[str, Any]] = (), *, tokenizer: bool = True,
    **change: Any,
) -> Path:  # fmt: skip
    """A run folder with one file a step. `more`: rows that only the histogram counts."""
    own = header(**change)
    steps = sorted({r["step"] for r in (*rows, *more)}) or [1]
    for step in steps:
        mine = [r for r in rows if r["step"] == step]
        columns = {name: [r[name] for r in mine] for name in token_log.TOKENS}
        counted = histogram([r for r in (*mine, *more) if r["step"] == step])
        token_log.write(run / token_log.FOLDER, step, columns, counted, own)
    if tokenizer:
        shutil.copy(_tokenizer_file(), run / token_log.FOLDER / token_log.TOKENIZER)
    return run


def metrics(run: Path, silenced: Mapping[int, float], tokens: float = 10.0, attempt: int = 0) -> None:
    """metrics.jsonl with the mean number of silenced tokens of a mini-batch, by step."""
    append(
        run / "metrics.jsonl",
        [
            StepMetrics(
                step=k, attempt=attempt, values={"actor/selector/silenced_tokens": v, "silenced_share": v / tokens}
            )
            for k, v in silenced.items()
        ],
    )


def random_rows(steps: int, per_batch: int, silences: bool = True) -> list[dict[str, Any]]:
    """Tokens of a made-up training: most are likely, some rare, S2T's rule applied to each mini-batch."""
    rng = np.random.default_rng(0)
    words = np.array(sorted(set(ids("What is 0123456789 hmm well okay maybe so um + and The answer is }. step"))))
    found = []
    for batch in range(2 * steps):
        logprob = -rng.gamma(0.35, 2.2, per_batch)
        entropy = np.minimum(rng.gamma(0.9, 0.5, per_batch) - 0.04 * logprob, 5.0).astype(np.float32)
        advantage = rng.choice([-1.2, 0.7], per_batch)
        rare = (advantage > 0) & (np.exp(logprob) < TAU_P)
        tau = float(np.quantile(entropy[rare].astype(np.float64), Q)) if rare.any() else None
        below = np.zeros(per_batch, bool) if tau is None else entropy.astype(np.float64) < tau
        columns = {
            "prompt_id": [f"p{i % 7}" for i in range(per_batch)],
            "sample": [i % 8 for i in range(per_batch)],
            "position": [i // 8 for i in range(per_batch)],
            "token": words[rng.zipf(1.6, per_batch) % len(words)].tolist(),
            "advantage": advantage.tolist(),
            "logprob": logprob.tolist(),
            "entropy": entropy.tolist(),
            "collision": rng.uniform(0.2, 1, per_batch).tolist(),
            "rare": rare.tolist(),
            "silenced": (rare & below & silences).tolist(),
        }
        one = {"step": 1 + batch // 2, "mini_batch": 1 + batch % 2, "tau_h": tau}
        found += [
            row(**one, **dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)
        ]
    return found


# the tokens that matter, one by one, and how many others there were
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


def write_tokens(
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
        rows.append(row(**of_it))
    for o in others:
        for sign, silenced, count in ((1, False, o.correct - o.silenced), (1, True, o.silenced), (-1, False, o.wrong)):
            where = {"step": o.step, "mini_batch": o.batch, "advantage": sign, "rare": False, "tau_h": None}
            counted += [row(**where, silenced=silenced)] * count
    own = {"mode": "on", "selector": selector, "vocabulary": 16, "watch": watch, "useful": (USEFUL,)} | change
    write(run, rows, counted, tokenizer=False, **own)
