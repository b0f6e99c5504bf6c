"""`stapo-train check`: every method is exact, and a wrong number or a mask off by one token is caught."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stapo_training.methods import methods

SCRIPT = str(Path(sys.executable).with_name("stapo-train"))
pytestmark = pytest.mark.slow  # half a minute each


@pytest.mark.parametrize("method", list(methods()))
def test_every_method_is_exact(method: str) -> None:
    done = subprocess.run([SCRIPT, "check", method], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert ", exact; " in done.stdout.splitlines()[-1]


def test_the_quantile_of_all_right_responses_is_exact_and_another_one() -> None:
    command = [SCRIPT, "check", "stapo"]
    runs = [
        subprocess.run([*command, *more], capture_output=True, text=True, timeout=300)
        for more in ([], ["actor_rollout_ref.selector.among=right"])
    ]
    positive, right = (r.stdout.splitlines()[-1].partition("; ")[2] for r in runs)
    assert ([r.returncode for r in runs], positive != right) == ([0, 0], True), runs[1].stdout


def test_a_wrong_clip_is_caught() -> None:
    command = [SCRIPT, "check", "stapo", "actor_rollout_ref.actor.clip_ratio_high=0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "clip: (0.2, 0.3), in the registry (0.2, 0.28)" in done.stdout
    assert done.stdout.count("DIFFERS") == 6


def test_the_check_of_lp_reg_draws_tokens_to_the_proxy() -> None:
    command = [SCRIPT, "check", "lp-reg", "actor_rollout_ref.proxy.min_p=0.03"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stdout.count("DIFFERS") == 6


OFF_BY_ONE = """
import torch
from stapo_training.exact import check
from stapo_training.selection import selectors

exact = selectors.silence_spurious


def off_by_one(stats, *, tau_p, q, pool=selectors.alone):
    found = exact(stats, tau_p=tau_p, q=q, pool=pool)
    first = torch.nonzero(~found.keep_N & stats.response_N)[:1]
    keep_N = found.keep_N.clone()
    keep_N[first] = True
    return selectors.Selection(keep_N, found.candidate_N, found.threshold)


selectors.silence_spurious = off_by_one
raise SystemExit(check("stapo", []))
"""


def test_a_mask_off_by_one_token_is_caught() -> None:
    done = subprocess.run([sys.executable, "-c", OFF_BY_ONE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("1 ", "2 "))]
    assert [r[-2:] for r in rows] == [["+1", "DIFFERS"]] * 3 + [["+2", "DIFFERS"]] * 3  # a token a rank
