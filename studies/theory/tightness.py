"""How tight the theorem's bounds are on the tokens of a run, by quadrant of probability and entropy.

Reads the token log (`stapo_results.token_log`) of a training or of a probe. Its statistics are float32, so a squared
norm below RESOLUTION x |w|^2, that of a token with p close to 1, is not resolved and enters no ratio.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from stapo_results import token_log
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_results.store import read_json
from stapo_training.token_log.rows import norm_factor
from studies.theory.formulas import lower_factor, upper_factor

RESOLUTION = 1e-3
"""In units of |w|^2. Float32 statistics give the factor to about 1e-6, so ratios are right to about 1e-3."""
ROUNDING = 1e-5
"""A bound is broken when it is beyond the factor by more than this: what float32 statistics may be off by."""


class TheoryQuadrant(BaseModel):
    """The tokens of a run in one quadrant of probability x entropy, and how far the bounds are from their norms.

    tokens 0: none was logged there, and there are no values. `values`: docs/theory.md explains each name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    quadrant: str
    tokens: Annotated[int, Field(ge=0)]
    values: dict[str, float] = {}


def measure(folder: Path) -> dict[str, Any]:
    """The bounds on a run's tokens, as `Theory`'s fields source_run, source_about, source, quadrants and missing.

    Entropies are parted at tau_h of the token's own mini-batch, as Algorithm 1 does.

    Raises:
        BadInput: no run.
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
    own = run.config.get("run", {})
    about = {"kind": run.kind} | {k: str(own[k]) for k in ("method", "size", "seed", "steps") if k in own}
    about["code_commit"] = run.code_commit + ("+dirty" if run.code_dirty else "")
    missing: list[str] = []
    found: dict[str, Any] = {"source_run": run.run_id, "source_about": about, "missing": missing}
    log = token_log.read(folder)
    if log is None:
        missing.append(f"{token_log.FOLDER}/*.parquet (single tokens); metrics.jsonl holds means only")
        return found
    header, tokens = log.header, _tokens(log)
    positive = tokens[tokens["advantage"] > 0]
    numbers = {
        "vocabulary": float(header.vocabulary),
        "tau_p": header.tau_p,
        "q": header.q,
        "tokens": float(len(tokens)),
        "tokens with A > 0": float(len(positive)),
    }
    if header.policy == "old":
        missing.append("the current policy's entropies: selector.policy=old logs those of the old policy")
        return found | {"source": numbers}
    known = positive[np.isfinite(positive["tau_h"])]
    if not len(known):
        missing.append("an entropy threshold: no mini-batch has a token with A > 0 and p < tau_p")
        return found | {"source": numbers}

    # a mini-batch without a rare token has no threshold: its tokens are not below one
    rare_N, low_N = np.exp(positive["logprob"]) < header.tau_p, positive["entropy"] < positive["tau_h"]
    parts = {"p < tau_p, H < tau_h": rare_N & low_N, "p < tau_p, H >= tau_h": rare_N & ~low_N}
    if header.mode == "full":
        parts |= {"p >= tau_p, H < tau_h": ~rare_N & low_N, "p >= tau_p, H >= tau_h": ~rare_N & ~low_N}
    else:  # they would hold the watched words alone
        missing.append("tokens with p >= tau_p: token_log.mode=full logs them")
    by_part = {name: positive[part_N] for name, part_N in parts.items()}
    thresholds = dict(zip(known["batch"].tolist(), known["tau_h"].tolist(), strict=True))
    numbers["tau_h, median"] = statistics.median(thresholds.values())
    # of the pairs (rare token of low entropy, rare token of high entropy): in which the first one's norm is larger at
    # the same |w|, and in which the bounds alone settle that
    spurious, kept = list(by_part.values())[:2]
    if pairs := len(spurious) * len(kept):
        for name, first, second in (("pairs_by_norm", "factor", "factor"), ("pairs_by_bounds", "lower", "upper")):
            numbers[name] = float(np.searchsorted(np.sort(kept[second]), spurious[first]).sum()) / pairs
    if header.left_out:
        missing.append(f"{header.left_out} rows that the log's bounds left out")
    quadrants = [_quadrant(name, c) for name, c in by_part.items()]
    return found | {"source": {k: float(f"{v:.6g}") for k, v in numbers.items()}, "quadrants": quadrants}


def _tokens(log: token_log.TokenLog) -> np.ndarray:
    """Logged tokens, a record array (N,) of float64: the log's columns; lower, factor and upper in units of w^2."""
    c = {
        k: log.tokens[k].to_numpy().astype("float64") for k in ("logprob", "entropy", "advantage", "collision", "tau_h")
    }
    logprob_N = np.minimum(c["logprob"], 0.0)
    gap_N, entropy_N = torch.from_numpy(-np.expm1(logprob_N)), torch.from_numpy(c["entropy"])
    c |= {
        "batch": log.tokens["step"].to_numpy().astype("int64") << 16 | log.tokens["mini_batch"].to_numpy(),
        "lower": lower_factor(gap_N, entropy_N).numpy(),
        "factor": norm_factor(logprob_N, c["collision"]),
        "upper": upper_factor(gap_N, entropy_N, log.header.vocabulary).numpy(),
    }
    return np.rec.fromarrays(list(c.values()), dtype=[(name, values.dtype) for name, values in c.items()])


def _quadrant(name: str, c: np.ndarray) -> TheoryQuadrant:
    if not len(c):
        return TheoryQuadrant(quadrant=name, tokens=0)
    resolved_N = c["factor"] >= RESOLUTION
    values = {
        "probability_median": _median(np.exp(c["logprob"])),
        "entropy_median": _median(c["entropy"]),
        "broken_bounds": ((c["lower"] > c["factor"] + ROUNDING) | (c["upper"] < c["factor"] - ROUNDING)).sum(),
        "unresolved": (~resolved_N).sum(),
    }
    if resolved_N.any():
        lower_R, upper_R = (c[bound][resolved_N] / c["factor"][resolved_N] for bound in ("lower", "upper"))
        values |= {
            "lower_median": _median(lower_R),
            "lower_q05": np.quantile(lower_R, 0.05),
            "upper_median": _median(upper_R),
            "upper_q95": np.quantile(upper_R, 0.95),
            "lower_says_nothing_share": (lower_R <= 0).mean(),
        }
    return TheoryQuadrant(quadrant=name, tokens=len(c), values={k: float(f"{v:.6g}") for k, v in values.items()})


def _median(values_N: np.ndarray) -> float:
    return float(np.quantile(values_N, 0.5, method="lower"))
