"""How tight the theorem's bounds are on the tokens of a run, by quadrant of probability and entropy.

Reads the token log (`stapo_results.token_log`) of a training or of a probe. Its statistics are float32, so a squared
norm below RESOLUTION x |w|^2, that of a token with p close to 1, is not resolved and enters no ratio.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch

from stapo_results import token_log
from stapo_results.errors import BadInput
from stapo_results.schema import Run, TheoryQuadrant
from stapo_results.store import read_json
from stapo_training.selection.selectors import quantile
from stapo_training.theory.gradient import lower_factor, printed_factor, upper_factor
from stapo_training.token_log.rows import gradient_norm

RESOLUTION = 1e-3
"""In units of |w|^2. Float32 statistics give the factor to about 1e-6, so ratios are right to about 1e-3."""
ROUNDING = 1e-5
"""A bound is broken when it is beyond the factor by more than this: what float32 statistics may be off by."""


@dataclass(frozen=True)
class Tokens:
    """N logged tokens, float64: log-probability, entropy (nats), advantage, collision probability, gradient norm,
    S2T's entropy threshold of its mini-batch (NaN: it has none), and which mini-batch that is."""

    logprob_N: torch.Tensor
    entropy_N: torch.Tensor
    advantage_N: torch.Tensor
    collision_N: torch.Tensor
    norm_N: torch.Tensor
    tau_h_N: torch.Tensor
    batch_N: torch.Tensor

    def take(self, index: torch.Tensor) -> Tokens:
        return Tokens(*(getattr(self, f.name)[index] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.logprob_N)


@dataclass
class RunBounds:
    """What the tokens of a run say of the bounds; empty without a run.

    Attributes:
        about: what the run's record says of it, since its folder does not stand among the records.
        quadrants: of the tokens with A > 0.
        numbers: of the whole log.
        missing: what the run would have to log.
    """

    run_id: str = ""
    about: dict[str, str] = field(default_factory=dict)
    quadrants: list[TheoryQuadrant] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def measure(folder: Path) -> RunBounds:
    """The bounds on a run's tokens.

    Entropies are parted at tau_h of the token's own mini-batch, as Algorithm 1 does.

    Raises:
        BadInput: no run, or a log with values that no softmax over its vocabulary gives.
        RecordError: a damaged log.
    """
    if not (folder / "run.json").is_file():
        raise BadInput(
            "no run with a token log",
            found=folder,
            expected="a folder with run.json and token_log/",
            next_step="name the run.out of a training, or the --out of stapo-train probe",
        )
    run = read_json(folder / "run.json", Run)
    out = RunBounds(run.run_id, _about(run))
    log = token_log.read(folder)
    if log is None:
        out.missing.append(f"{token_log.FOLDER}/*.parquet (single tokens); metrics.jsonl holds means only")
        return out
    header = log.header
    tokens = _tokens(log)
    _refuse_impossible(tokens, folder, header.vocabulary)
    positive = tokens.take(tokens.advantage_N > 0)
    out.numbers = {
        "vocabulary": float(header.vocabulary),
        "tau_p": header.tau_p,
        "q": header.q,
        "tokens": float(len(tokens)),
        "tokens with A > 0": float(len(positive)),
    }
    if header.policy == "old":
        out.missing.append("the current policy's entropies: selector.policy=old logs those of the old policy")
    elif positive.tau_h_N.isnan().all():
        out.missing.append("an entropy threshold: no mini-batch has a token with A > 0 and p < tau_p")
    else:
        _add_quadrants(out, positive, header)
    return out


def _about(run: Run) -> dict[str, str]:
    own = run.config.get("run", {})
    named = {k: str(own[k]) for k in ("method", "size", "seed", "steps") if k in own}
    return {"kind": run.kind, **named, "code_commit": run.code_commit + ("+dirty" if run.code_dirty else "")}


def _tokens(log: token_log.TokenLog) -> Tokens:
    wanted = ("logprob", "entropy", "advantage", "collision", "ratio", "clipped", "tau_h", "step", "mini_batch")
    c = {name: log.tokens[name].to_numpy() for name in wanted}
    norm = gradient_norm(c["advantage"], c["ratio"], c["clipped"], c["logprob"], c["collision"])
    batch = c["step"].astype("int64") << 16 | c["mini_batch"]
    columns = (c["logprob"], c["entropy"], c["advantage"], c["collision"], norm, c["tau_h"], batch)
    return Tokens(*(torch.from_numpy(x.astype("float64")) for x in columns))


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
                f"{int(wrong_N.sum())} tokens of the token log have a value of {name} that no softmax gives",
                found=f"{values_N[wrong_N][:3].tolist()} in {folder / token_log.FOLDER}",
                expected=f"{low:.5g} to {high:.5g} (vocabulary {vocabulary:,})",
                next_step="see whether the model had diverged; if not, the log is damaged",
            )


def _add_quadrants(out: RunBounds, positive: Tokens, header: token_log.LogHeader) -> None:
    # a mini-batch without a rare token has no threshold: its tokens are not below one
    rare_N, low_N = positive.logprob_N.exp() < header.tau_p, positive.entropy_N < positive.tau_h_N
    parts = {"p < tau_p, H < tau_h": rare_N & low_N, "p < tau_p, H >= tau_h": rare_N & ~low_N}
    if header.mode == "full":
        parts |= {"p >= tau_p, H < tau_h": ~rare_N & low_N, "p >= tau_p, H >= tau_h": ~rare_N & ~low_N}
    else:  # they would hold the watched words alone
        out.missing.append("tokens with p >= tau_p: token_log.mode=full logs them")
    tokens = {name: positive.take(part_N) for name, part_N in parts.items()}
    out.quadrants = [_quadrant(name, t, header.vocabulary) for name, t in tokens.items()]
    finite_N = positive.tau_h_N.isfinite()
    thresholds = dict(zip(positive.batch_N[finite_N].tolist(), positive.tau_h_N[finite_N].tolist(), strict=True))
    out.numbers["tau_h, median"] = statistics.median(thresholds.values())
    spurious, kept = list(tokens.values())[:2]
    out.numbers |= _ordered(spurious, kept, header.vocabulary)
    out.numbers = {k: float(f"{v:.6g}") for k, v in out.numbers.items()}
    if header.left_out:
        out.missing.append(f"{header.left_out} rows that the log's bounds left out")
    if header.loss != "vanilla":
        out.missing.append(f"the clip of the loss {header.loss}: norms are those of the surrogate without one")


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
        "norm_mean": t.norm_N.mean(),
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
