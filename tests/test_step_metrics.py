"""A step's numbers: literal values, and every name that a run writes explained in docs/training.md."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

from stapo_training.folder import step_metrics

ROOT = Path(__file__).parents[1]
VERL = {
    "critic/rewards/mean": 0.25,
    "actor/entropy": 0.5,
    "actor/grad_norm": 0.125,
    "actor/pg_clipfrac": 0.01,
    "response_length/mean": 54.0,
    "rollout_corr/k3_kl": 0.002,
    "actor/selector/tokens": 4000.0,
    "actor/selector/silenced_tokens": 6.0,
    "actor/selector/candidate_tokens": 8.0,
    "actor/selector/threshold": 0.75,
    "actor/selector/current_entropy": 0.375,
    "perf/throughput": 1500.0,
    "actor/perf/max_memory_allocated_gb": 12.0,
    "timing_s/step": 3.0,
    "training/rollout_probs_diff_max": 1e-7,
}


def test_short_names_and_shares() -> None:
    found = step_metrics.split(VERL)
    short = {k: v for k, v in found.values.items() if "/" not in k}
    assert short == {
        "reward": 0.25,
        "entropy": 0.5,
        "entropy_current": 0.375,
        "grad_norm": 0.125,
        "clip_fraction": 0.01,
        "response_tokens": 54.0,
        "rollout_kl": 0.002,
        "threshold": 0.75,
        "silenced_share": 0.0015,
        "candidate_share": 0.002,
    }
    assert found.times == {
        "perf/throughput": 1500.0,
        "actor/perf/max_memory_allocated_gb": 12.0,
        "timing_s/step": 3.0,
        "training/rollout_probs_diff_max": 1e-7,
        "tokens_per_second": 1500.0,
        "memory_gib": 12.0,
    }
    assert found.not_finite == ()


def test_what_is_not_finite_is_named_and_left_out_with_its_short_name() -> None:
    broken = VERL | {"actor/grad_norm": float("nan"), "actor/loss": float("inf")}
    found = step_metrics.split(broken | {"training/rollout_actor_probs_pearson_corr": float("nan")})
    assert found.not_finite == ("actor/grad_norm", "actor/loss")  # the correlation of constants is undefined, not wrong
    assert not {"actor/grad_norm", "grad_norm", "actor/loss", "training/rollout_actor_probs_pearson_corr"} & set(
        found.values
    )


def test_accuracy_is_the_mean_over_the_validation_sets() -> None:
    found = step_metrics.split({"val-core/a/acc/mean@32": 0.25, "val-core/b/acc/mean@32": 0.75})
    assert found.values["accuracy"] == 0.5
    assert "accuracy_t0.7" not in found.values
    both = step_metrics.split({"val-core/a/acc/mean@32": 0.25, "val-t0.7/a/acc/mean@32": 0.5}).values
    assert (both["accuracy"], both["accuracy_t0.7"]) == (0.25, 0.5)
    assert step_metrics.accuracies({"reward": 1.0}) == {}


def test_quantiles_of_token_entropies() -> None:
    found = step_metrics.entropy_distribution(np.arange(101, dtype=np.float32) / 100)
    quantiles = (5, 25, 50, 75, 80, 95, 99)
    expected = {"token_entropy_mean": 0.5} | {f"token_entropy_q{q:02d}": q / 100 for q in quantiles}
    assert found == pytest.approx(expected, abs=1e-6)
    assert step_metrics.entropy_distribution(np.array([0.0, 1.0], np.float32))["token_entropy_q25"] == 0.25
    with pytest.raises(ValueError, match="without a response token"):
        step_metrics.entropy_distribution(np.array([], np.float32))


def test_a_response_is_cut_when_it_is_at_the_limit_without_a_stop_token() -> None:
    lengths, last = np.array([8, 8, 7, 3]), np.array([5, 2, 5, 5])  # cut; ended in time by token 2; two shorter ones
    assert step_metrics.truncated_share(lengths, last, limit=8, stops=(1, 2)) == 0.25


def test_no_short_name_contains_what_verl_reduces_by_np_min_or_np_max() -> None:
    names = [*step_metrics._ALIASES, *step_metrics._TIME_ALIASES, *step_metrics._SHARES, "truncated_share"]
    assert [n for n in names if "min" in n or "max" in n] == []


def explained() -> list[str]:
    """The names of docs/training.md as patterns; `_q25` after `token_entropy_q05` continues that name."""
    text = (ROOT / "docs" / "training.md").read_text().split("## Metrics")[1].split("### Loggers")[0]
    found = re.findall(r"`([a-z_\-/*@0-9.]+)`", text)
    return [f"token_entropy{n}" if n.startswith("_q") else n for n in found]


def unexplained(lines: list[str]) -> set[str]:
    names = {name for line in lines for name in json.loads(line)["values"]}
    patterns = explained()
    return {n for n in names if not any(fnmatchcase(n, p) for p in patterns)}


def test_every_name_of_the_committed_runs_is_explained() -> None:
    files = sorted((ROOT / "results" / "records").rglob("metrics.jsonl"))
    assert files
    assert {f.parent.name: unexplained(f.read_text().splitlines()) for f in files} == {
        f.parent.name: set() for f in files
    }


def test_every_short_name_is_explained_and_an_unknown_one_is_not() -> None:
    names = [*step_metrics._ALIASES, *step_metrics._TIME_ALIASES, *step_metrics._SHARES, "truncated_share", "seconds"]
    names += list(step_metrics.entropy_distribution(np.ones(1, np.float32)))
    assert set(names) <= set(explained())
    assert unexplained(['{"values": {"actor/new_name": 1, "reward": 1}}']) == {"actor/new_name"}
