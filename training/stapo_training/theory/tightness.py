"""How tight the theorem's bounds are on the tokens of a run, by quadrant of probability and entropy.

Reads RUN/token_log/*.parquet. The columns' precision decides what can be said: statistics are logged in float32, so a
squared norm below RESOLUTION x |w|^2, that of a token with p close to 1, is not resolved and enters no ratio.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stapo_results.errors import BadInput
from stapo_results.schema import Run, TheoryQuadrant
from stapo_results.store import read_json
from stapo_training.selectors import quantile
from stapo_training.theory.gradient import lower_factor, printed_factor, upper_factor

COLUMNS = ("logprob", "entropy", "advantage", "collision")
RESOLUTION = 1e-3
"""In units of |w|^2. Float32 statistics give the factor to about 1e-6, so ratios are right to about 1e-3."""
ROUNDING = 1e-5
"""A bound is broken when it is beyond the factor by more than this: what float32 statistics may be off by."""


@dataclass(frozen=True)
class Tokens:
    """N logged tokens, float64: log-probability, entropy (nats), advantage, collision probability."""

    logprob_N: torch.Tensor
    entropy_N: torch.Tensor
    advantage_N: torch.Tensor
    collision_N: torch.Tensor

    def take(self, index: torch.Tensor) -> Tokens:
        return Tokens(self.logprob_N[index], self.entropy_N[index], self.advantage_N[index], self.collision_N[index])


@dataclass(frozen=True)
class Source:
    """Where a run's tokens come from: its record, the softmax's width, S2T's thresholds."""

    run: Run
    vocabulary: int
    tau_p: float
    q: float


def read_source(folder: Path, vocabulary: int | None) -> Source:
    """The run's record and what of its settings the quadrants need.

    Raises:
        BadInput: no training run, or its model's vocabulary is found neither in a checkpoint nor in `vocabulary`.
    """
    if not (folder / "run.json").is_file():
        raise BadInput(
            "no training run",
            found=folder,
            expected="a folder with run.json",
            next_step="name the run.out of a training",
        )
    run = read_json(folder / "run.json", Run)
    actor: dict[str, Any] = run.config.get("actor_rollout_ref", {})
    selector = actor.get("selector", {})
    if vocabulary is None:
        model = Path(str(actor.get("model", {}).get("path", "")))
        places = [*sorted(folder.glob("checkpoints/*/actor/huggingface/config.json")), model / "config.json"]
        there = [p for p in places if p.is_file()]
        if not there:
            raise BadInput(
                "the size of the run's vocabulary is not known: C_V depends on it",
                found=f"no config.json in a checkpoint of {folder}, none in {model}",
                next_step="give it with --vocabulary (config.json's vocab_size: the width of the logits)",
            )
        vocabulary = int(json.loads(there[0].read_text())["vocab_size"])
    return Source(run, vocabulary, float(selector.get("tau_p", 0.002)), float(selector.get("q", 0.75)))


def read_tokens(folder: Path, vocabulary: int) -> tuple[Tokens | None, list[str]]:
    """(the tokens of RUN/token_log, what is missing): no tokens where a shard or a column is not there.

    Raises:
        BadInput: a shard is no Parquet file, or holds values that no softmax over the vocabulary gives.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shards = sorted((folder / "token_log").glob("*.parquet"))
    if not shards:
        return None, [f"token_log/*.parquet (per token: {', '.join(COLUMNS)}); metrics.jsonl holds means only"]
    columns: dict[str, list[torch.Tensor]] = {c: [] for c in COLUMNS}
    for shard in shards:
        try:
            lacking = [c for c in COLUMNS if c not in pq.read_schema(shard).names]
            if lacking:
                return None, [f"column {c} of token_log/{shard.name}" for c in lacking]
            table = pq.read_table(shard, columns=list(COLUMNS))
        except pa.ArrowInvalid as e:
            raise BadInput(
                "a shard of the token log cannot be read", found=f"{shard}: {e}", next_step="delete it, or train again"
            ) from None
        for c in COLUMNS:
            columns[c].append(torch.from_numpy(table[c].to_numpy().astype("float64")))
    t = Tokens(*(torch.cat(columns[c]) for c in COLUMNS))
    _refuse_impossible(t, folder, vocabulary)
    return t, []


def _refuse_impossible(t: Tokens, folder: Path, vocabulary: int) -> None:
    widest = float(torch.tensor(float(vocabulary)).log())
    limits = {
        "logprob": (t.logprob_N, -torch.inf, ROUNDING),
        "entropy": (t.entropy_N, -ROUNDING, widest + ROUNDING),
        "advantage": (t.advantage_N, -torch.inf, torch.inf),
        "collision": (t.collision_N, 0.0, 1 + ROUNDING),
    }
    for name, (values_N, low, high) in limits.items():
        wrong_N = ~(torch.isfinite(values_N) & (values_N >= low) & (values_N <= high))
        if wrong_N.any():
            raise BadInput(
                f"{int(wrong_N.sum())} tokens of the token log have a {name} that no softmax gives",
                found=f"{values_N[wrong_N][:3].tolist()} in {folder / 'token_log'}",
                expected=f"{low:.5g} to {high:.5g} (vocabulary {vocabulary:,})",
                next_step="check --vocabulary, or the run that wrote the log",
            )


def quadrants(tokens: Tokens, source: Source) -> tuple[list[TheoryQuadrant], dict[str, float], list[str]]:
    """(the four quadrants of the tokens with A > 0, numbers of the whole, what is missing).

    tau_h is the q-quantile of the entropies of all logged tokens with A > 0 and p < tau_p: one for the run, where
    Algorithm 1 has one a mini-batch.
    """
    positive = tokens.take(tokens.advantage_N > 0)
    rare_N = positive.logprob_N.exp() < source.tau_p
    tau_h = quantile(positive.entropy_N[rare_N], source.q)
    whole = {
        "vocabulary": float(source.vocabulary),
        "tau_p": source.tau_p,
        "q": source.q,
        "tokens": float(len(tokens.logprob_N)),
        "tokens with A > 0": float(len(positive.logprob_N)),
    }
    if not rare_N.any() or not 0 < source.q < 1:
        return [], whole, [f"an entropy threshold: q = {source.q} of {int(rare_N.sum())} tokens with A > 0, p < tau_p"]
    low_N = positive.entropy_N < tau_h
    parts = {
        "p < tau_p, H < tau_h": positive.take(rare_N & low_N),
        "p < tau_p, H >= tau_h": positive.take(rare_N & ~low_N),
        "p >= tau_p, H < tau_h": positive.take(~rare_N & low_N),
        "p >= tau_p, H >= tau_h": positive.take(~rare_N & ~low_N),
    }
    found = [_quadrant(name, part, source.vocabulary) for name, part in parts.items()]
    spurious, kept = list(parts.values())[:2]
    whole |= {"tau_h": tau_h} | _ordered(spurious, kept, source.vocabulary)
    return found, {k: float(f"{v:.6g}") for k, v in whole.items()}, []


def _factors(t: Tokens, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(lower bound, factor, upper bound) (N,) in units of |w|^2."""
    gap_N = -t.logprob_N.clamp(max=0.0).expm1()
    return (
        lower_factor(gap_N, t.entropy_N),
        printed_factor(1 - gap_N, t.collision_N),
        upper_factor(gap_N, t.entropy_N, vocabulary),
    )


def _quadrant(name: str, t: Tokens, vocabulary: int) -> TheoryQuadrant:
    if not len(t.logprob_N):
        return TheoryQuadrant(quadrant=name, tokens=0)
    lower_N, factor_N, upper_N = _factors(t, vocabulary)
    resolved_N = factor_N >= RESOLUTION
    broken_N = (lower_N > factor_N + ROUNDING) | (upper_N < factor_N - ROUNDING)
    values = {
        "probability_median": t.logprob_N.exp().median(),
        "entropy_median": t.entropy_N.median(),
        "norm_mean": (t.advantage_N.abs() * factor_N.clamp(min=0.0).sqrt()).mean(),
        "entropy_rises_share": (t.logprob_N + t.entropy_N < 0).double().mean(),
        "broken_bounds": broken_N.sum(),
        "unresolved": (~resolved_N).sum(),
    }
    if resolved_N.any():
        lower_R, upper_R = (x[resolved_N] / factor_N[resolved_N] for x in (lower_N, upper_N))
        values |= {
            "lower_median": lower_R.median(),
            "lower_q05": torch.tensor(quantile(lower_R, 0.05)),
            "upper_median": upper_R.median(),
            "upper_q95": torch.tensor(quantile(upper_R, 0.95)),
            "lower_says_nothing_share": (lower_R <= 0).double().mean(),
        }
    rounded = {k: float(f"{float(v):.6g}") for k, v in values.items()}
    return TheoryQuadrant(quadrant=name, tokens=len(t.logprob_N), values=rounded)


def _ordered(spurious: Tokens, kept: Tokens, vocabulary: int) -> dict[str, float]:
    """Of the pairs (rare token of low entropy, rare token of high entropy): the share in which the first one's norm is
    larger at the same |w|, and the share in which the bounds alone settle that. Empty without a pair."""
    pairs = len(spurious.logprob_N) * len(kept.logprob_N)
    if not pairs:
        return {}
    lower_N, factor_N, _ = _factors(spurious, vocabulary)
    _, other_M, upper_M = _factors(kept, vocabulary)
    by_norm = torch.searchsorted(other_M.sort().values, factor_N).sum()
    by_bounds = torch.searchsorted(upper_M.sort().values, lower_N).sum()
    return {"pairs_by_norm": float(by_norm) / pairs, "pairs_by_bounds": float(by_bounds) / pairs}
