"""The formulas against numbers by hand and autograd; `python -m studies.theory`: verdicts, record, tokens of a run."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stapo_results import provenance, store, token_log
from stapo_results.schema import Run
from stapo_training.selection.objectives import clipped_surrogate
from stapo_training.token_log.rows import norm_factor as norm_factor_as_printed
from studies.theory import __main__ as command
from studies.theory import checks, formulas
from studies.theory.checks import STATEMENTS, check
from studies.theory.formulas import (
    Distributions,
    c_v,
    lemma_terms,
    lower_factor,
    natural_step,
    norm_factor,
    softmax,
    upper_factor,
    weight,
)
from studies.theory.run import Theory, report, run

LN2 = math.log(2)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of(*probabilities: float) -> Distributions:
    """One distribution with these probabilities."""
    return softmax(tensor(*probabilities).log()[None])


def close(found: torch.Tensor | float, expected: torch.Tensor | float, rtol: float = 1e-12) -> None:
    found, expected = (torch.as_tensor(x, dtype=torch.float64) for x in (found, expected))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-300)


# three quarters and one quarter: H = 2 ln 2 - 0.75 ln 3, sum of squares 10/16
H_QUARTER = 2 * LN2 - 0.75 * math.log(3)


def test_statistics_by_hand() -> None:
    d = of(0.75, 0.25)
    close(d.entropy_N, tensor(H_QUARTER), 1e-14)
    close(d.collision_N, tensor(0.625))
    close(d.complement_NV, tensor(0.25, 0.75)[None])
    masked = softmax(tensor(0.0, 0.0, -math.inf)[None])
    close(masked.entropy_N, tensor(LN2))
    close(masked.probability_NV, tensor(0.5, 0.5, 0.0)[None])


def test_what_is_left_next_to_a_certain_token_keeps_its_digits() -> None:
    d = softmax(tensor(0.0, -50.0, -60.0)[None])
    rest = math.exp(-50) + math.exp(-60)
    close(d.complement_NV[0, 0], rest)
    close(d.entropy_N, tensor(rest + 50 * math.exp(-50) + 60 * math.exp(-60)))
    close(norm_factor(d)[:, 0], tensor(rest**2 + math.exp(-100) + math.exp(-120)))
    printed = norm_factor_as_printed(d.logprob_NV[0, :1].numpy(), d.collision_N.numpy())
    assert float(printed[0]) == 0.0  # the printed form has none left


@pytest.mark.parametrize(
    ("probabilities", "target", "factor"),
    [
        ((0.75, 0.25), 0, 0.125),  # 0.25^2 + 0.25^2
        ((0.75, 0.25), 1, 1.125),
        ((0.5, 0.3, 0.2), 2, 0.98),  # 0.8^2 + 0.5^2 + 0.3^2
        ((0.5, 0.3, 0.2), 0, 0.38),
    ],
)
def test_decomposition_by_hand(probabilities: tuple[float, ...], target: int, factor: float) -> None:
    d = of(*probabilities)
    close(norm_factor(d)[:, target], tensor(factor))
    printed = norm_factor_as_printed(d.logprob_NV[0, target : target + 1].numpy(), d.collision_N.numpy())
    close(torch.from_numpy(printed), tensor(factor))


def test_weights_by_hand() -> None:
    # (rho, A, w) with clip 0.2 and 0.28: inside, above and below it, for both signs
    cases = [(1.0, 2.0, 2.0), (1.3, 2.0, 0.0), (1.27, 2.0, 2.54), (0.5, 2.0, 1.0)]
    cases += [(0.79, -1.0, 0.0), (0.81, -1.0, -0.81), (3.0, -1.0, -3.0), (1.0, 0.0, 0.0)]
    ratio, advantage, expected = (tensor(*x) for x in zip(*cases, strict=True))
    close(weight(ratio.log(), torch.zeros_like(ratio), advantage, 0.2, 0.28), expected)


def test_bounds_by_hand() -> None:
    close(c_v(2), 1 / (2 * LN2**2))
    close(c_v(4), 3 / (4 * (2 * LN2) ** 2))
    gap, h = tensor(0.75), tensor(H_QUARTER)  # the token with probability 0.25
    close(lower_factor(gap, h), 0.5 + tensor(0.75**0.75 * 0.25**0.25))
    close(upper_factor(gap, h, 2), 1.5 - tensor(H_QUARTER**2 / (2 * LN2**2)))


@pytest.mark.parametrize("vocabulary", [2, 151_936])
def test_a_uniform_distribution_attains_both_bounds(vocabulary: int) -> None:
    d = softmax(torch.zeros(1, vocabulary))
    value, gap = norm_factor(d)[:, 0], d.complement_NV[:, 0]
    close(value, tensor(1 - 1 / vocabulary))
    close(lower_factor(gap, d.entropy_N), value, 1e-14)
    close(upper_factor(gap, d.entropy_N, vocabulary), value, 1e-14)


def logits(vocabulary: int, spread: float, seed: int, ties: bool) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    drawn = spread * torch.randn(1, vocabulary, generator=g, dtype=torch.float64)
    return drawn.round() if ties else drawn


def drawn(*spreads: float) -> st.SearchStrategy[torch.Tensor]:
    sizes = st.integers(2, 400) | st.just(5_000)
    return st.builds(logits, sizes, st.sampled_from(spreads), st.integers(0, 10**6), st.booleans())


@settings(max_examples=100)
@given(drawn(0.0, 1e-6, 0.1, 1.0, 5.0, 40.0, 1e4), st.integers(0, 10**6))
def test_the_bounds_hold_everywhere(logits_1V: torch.Tensor, at: int) -> None:
    d = softmax(logits_1V)
    target = at % logits_1V.shape[-1]
    value, gap = norm_factor(d)[:, target], d.complement_NV[:, target]
    assert float(lower_factor(gap, d.entropy_N) - value) <= 1e-12 * float(value)
    assert float(value - upper_factor(gap, d.entropy_N, logits_1V.shape[-1])) <= 1e-12 * float(value)


@settings(max_examples=60)
@given(
    drawn(0.1, 1.0, 5.0),
    st.integers(0, 10**6),
    st.sampled_from([0.3, 0.79, 0.81, 1.0, 1.27, 1.29, 4.0]),
    st.sampled_from([-2.47, -0.35, 0.0, 0.94, 2.47]),
)
def test_the_decomposition_equals_autograd_through_log_softmax(
    logits_1V: torch.Tensor, at: int, ratio: float, advantage: float
) -> None:
    a = logits_1V.clone().requires_grad_()
    target = at % a.shape[-1]
    logprob = a.log_softmax(-1)[:, target]
    old = logprob.detach() - math.log(ratio)
    (gradient,) = torch.autograd.grad(-clipped_surrogate(logprob, old, tensor(advantage), 0.2, 0.28).sum(), a)
    w = weight(logprob.detach(), old, tensor(advantage), 0.2, 0.28)
    close(w.square() * norm_factor(softmax(logits_1V))[:, target], gradient.square().sum(-1), 1e-8)


# dH/da of two tokens with p, q: -+ p q ln(p / q); here 0.75 x 0.25 x ln 3
SLOPE = 0.1875 * math.log(3)


def test_entropy_changes_by_hand() -> None:
    d = of(0.75, 0.25)
    advantage = tensor(1.0, -1.0)[None]  # mean 0.5
    close(natural_step(d, advantage), tensor(0.5, -1.5)[None])
    close(lemma_terms(d, advantage), tensor(-0.5 * SLOPE, -1.5 * SLOPE)[None])


def test_the_step_is_the_natural_gradient() -> None:
    """The Fisher matrix's pseudo-inverse gives the same step up to a constant, which moves no probability."""
    g = torch.Generator().manual_seed(1)
    d = softmax(torch.randn(1, 6, generator=g, dtype=torch.float64))
    advantage = torch.randn(1, 6, generator=g, dtype=torch.float64)
    p = d.probability_NV[0]
    gradient = p * (advantage[0] - p @ advantage[0])
    minimal = torch.linalg.pinv(torch.diag(p) - torch.outer(p, p)) @ gradient
    step = natural_step(d, advantage)[0]
    torch.testing.assert_close(minimal, step - step.mean(), rtol=0, atol=1e-12)
    total = lemma_terms(d, advantage).sum()
    covariance = p @ (d.logprob_NV[0] * advantage[0]) - (p @ d.logprob_NV[0]) * (p @ advantage[0])
    close(total, -covariance, 1e-10)


# ---- the check

ROOT = Path(__file__).resolve().parents[2]
HOLD = {
    *("decomposition", "lower_bound", "upper_bound", "upper_bound_two_levels"),
    *("entropy_total", "entropy_token", "entropy_steps"),
}


def test_a_larger_constant_breaks_the_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check would see it: C_V 0.1 % larger fails at the uniform distribution and says so."""
    true = formulas.c_v
    monkeypatch.setattr(formulas, "c_v", lambda vocabulary: 1.001 * true(vocabulary))
    row = next(r for r in check(0, 1, (32,)) if r.statement == "upper_bound")
    assert row.verdict == "fails"
    assert row.where.startswith("uniform, V = 32")
    # 0.1 % of C_V H^2 = 31/32, of a squared norm of 31/32
    assert row.largest == pytest.approx(1e-3, rel=1e-3)


def test_a_tally_keeps_the_worst_case_and_refuses_what_is_no_number() -> None:
    tally = STATEMENTS["lower_bound"].model_copy()
    assert tally.closed().verdict == "not run"
    tally.add(torch.tensor([-1.0, 1e-12]), lambda i: f"first {i}")
    assert (tally.closed().verdict, tally.closed().where) == ("holds", "first 1")
    tally.add(torch.tensor([0.25, 0.5, 0.125]), lambda i: f"second {i}", {"x": torch.tensor([1.0, 2.0, 3.0])})
    row = tally.closed()
    assert (row.verdict, row.cases, row.failures, row.largest) == ("fails", 5, 3, 0.5)
    assert (row.where, row.numbers) == ("second 1", {"x": 2.0})
    with pytest.raises(ValueError, match="third 1"):
        tally.add(torch.tensor([0.0, math.nan]), lambda i: f"third {i}")


def test_the_record_is_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(0, 1, (3, 50), out=tmp_path / name)
    assert (tmp_path / "a/theory.json").read_bytes() == (tmp_path / "b/theory.json").read_bytes()
    record = store.read_json(tmp_path / "a/run.json", Run)
    assert (record.kind, record.status, record.seeds) == ("theory", "done", {"run": 0})


def test_the_committed_record_and_the_page_have_the_statements_that_are_checked() -> None:
    result = store.read_json(ROOT / "results/records/theory/theory.json", Theory)
    rows = {r.statement: r for r in result.rows}
    assert [(r.place, r.reading, r.claim, r.needs) for r in map(rows.__getitem__, STATEMENTS)] == [
        (s.place, s.reading, s.claim, s.needs) for s in STATEMENTS.values()
    ]
    assert {k for k in STATEMENTS if rows[k].verdict == "holds"} == HOLD
    assert tuple(result.vocabularies) == checks.VOCABULARIES
    page = (ROOT / "results/tables/theory.md").read_text()
    for r in (rows[s] for s in STATEMENTS):
        assert f"| {r.cases:,} | {r.failures:,} | {r.largest:.1e} | {r.verdict} |" in page
        assert f"`{r.statement}`" in page


def test_the_committed_record_is_made_again() -> None:
    """Verdicts and counts; the size of a rounding error may differ from machine to machine."""
    committed = store.read_json(ROOT / "results/records/theory/theory.json", Theory)
    old = {r.statement: r for r in committed.rows}
    rows = {r.statement: r for r in check(committed.seed, committed.draws)}
    assert list(rows) == list(STATEMENTS)
    for name, new in rows.items():
        assert (new.cases, new.verdict) == (old[name].cases, old[name].verdict)
        if new.verdict == "fails":
            assert new.largest == pytest.approx(old[name].largest, rel=0.02)
    assert rows["lower_bound"].largest < 1e-12
    # the entropy turns at p = e^-H: below tau_p = 0.002 only where H > 6.21
    assert rows["taxonomy_rare"].numbers["H"] > -math.log(0.002)
    worst = rows["taxonomy_common"].numbers
    assert 0.002 <= worst["p"] < math.exp(-worst["H"])


# ---- a run's tokens

LN4 = 2 * math.log(2)
H_SPIKE = -0.7 * math.log(0.7) - 0.3 * math.log(0.1)  # 0.9404
H_FLAT = -0.4 * math.log(0.4) - 0.6 * math.log(0.2)  # 1.3322
# four tokens of a vocabulary of 4, tau_p = 0.3: (p, H, A, sum of pi^2)
TOKENS = [
    (0.1, H_SPIKE, 1.0, 0.52),
    (0.25, LN4, 2.0, 0.25),
    (0.7, H_SPIKE, 1.0, 0.52),
    (0.4, H_FLAT, 1.0, 0.28),
    (0.1, H_SPIKE, -1.0, 0.52),
]


def training_run(folder: Path, tokens: list[tuple[float, ...]] | None, **header_more: object) -> Path:
    """A run's record, and a token log of two steps with one threshold."""
    store.write_json(folder / "run.json", provenance.new_run("train", {}, seeds={"run": 0}, deterministic=True))
    own = {"mode": "full", "selector": "silence_spurious", "tau_p": 0.3, "q": 0.5, "vocabulary": 4}
    header = token_log.LogHeader.model_validate(own | header_more)
    rare = [h for p, h, a, _ in tokens or () if p < 0.3 and a > 0]
    tau_h = float(np.quantile(rare, 0.5)) if rare else None
    for step, part in enumerate((tokens[:2], tokens[2:]) if tokens else (), 1):
        p, h, a, c = zip(*part, strict=True) if part else ([], [], [], [])
        known = {"logprob": [math.log(x) for x in p], "entropy": h, "advantage": a, "collision": c}
        known |= {"step": [step] * len(p), "ratio": [1.0] * len(p), "tau_h": [tau_h] * len(p)}
        empty = {"prompt_id": "", "clipped": False, "rare": False, "silenced": False, "mismatched": False}
        empty |= {name: [] for name in ("top_tokens", "top_logprobs", "before", "after")}
        rows = {name: known.get(name, [empty.get(name, 0)] * len(p)) for name in token_log.TOKENS}
        token_log.write(folder / "token_log", step, rows, {name: [] for name in token_log.HISTOGRAM}, header)
    return folder


def test_quadrants_by_hand(tmp_path: Path) -> None:
    result = run(0, 1, (2,), source=training_run(tmp_path, TOKENS))
    assert result.missing == []
    assert result.source["tokens"] == 5
    assert result.source["tokens with A > 0"] == 4
    assert result.source["tau_h, median"] == pytest.approx((H_SPIKE + LN4) / 2, rel=1e-5)
    spurious, kept, sure, _ = result.quadrants
    assert [q.tokens for q in result.quadrants] == [1, 1, 1, 1]
    # 1 - 0.2 + 0.52 = 1.32, between 0.8 + e^-H and 1.8 - 3 H^2 / (4 ln^2 4)
    assert spurious.values["lower_median"] == pytest.approx((0.8 + math.exp(-H_SPIKE)) / 1.32, rel=1e-5)
    assert spurious.values["upper_median"] == pytest.approx((1.8 - 0.75 * (H_SPIKE / LN4) ** 2) / 1.32, rel=1e-5)
    # uniform: both bounds are attained
    assert kept.values["lower_median"] == pytest.approx(1.0, abs=1e-5)
    assert kept.values["upper_median"] == pytest.approx(1.0, abs=1e-5)
    # 1 - 1.4 + e^-H < 0: the lower bound says nothing
    assert sure.values["lower_says_nothing_share"] == 1.0
    assert all(q.values["broken_bounds"] == 0 and q.values["unresolved"] == 0 for q in result.quadrants)
    # 1.32 > 0.75, and already 0.8 + e^-H = 1.19 > 0.75
    assert result.source["pairs_by_norm"] == result.source["pairs_by_bounds"] == 1.0
    assert "p < tau_p, H < tau_h" in report(result)


def test_a_broken_bound_and_an_unresolved_norm_are_counted(tmp_path: Path) -> None:
    wrong = (0.7, H_SPIKE, 1.0, 0.35)  # a sum of squares below e^-H = 0.39
    certain = (0.9999, 0.001, 1.0, 0.9998)
    result = run(0, 1, (2,), source=training_run(tmp_path, [*TOKENS, wrong, certain]))
    sure = result.quadrants[2]
    assert sure.tokens == 3
    assert sure.values["broken_bounds"] == 1
    assert sure.values["unresolved"] == 2  # 1 - 1.4 + 0.35 < 0 is no squared norm, and (1e-4)^2 is below float32


def test_what_a_log_cannot_tell_is_named(tmp_path: Path) -> None:
    def missing(name: str, tokens: list | None, quadrants: int, **header: object) -> list[str]:
        found = run(0, 1, (2,), source=training_run(tmp_path / name, tokens, **header))
        assert len(found.quadrants) == quadrants
        return [m.split(":")[0] for m in found.missing]

    assert missing("no log", None, 0)[0].startswith("token_log/")
    assert missing("no rare token", TOKENS[2:4], 0) == ["an entropy threshold"]
    assert missing("old", TOKENS, 0, policy="old") == ["the current policy's entropies"]
    assert missing("one empty", TOKENS[:3], 4) == []
    found = missing("on", TOKENS, 2, mode="on", left_out=3)
    assert found == ["tokens with p >= tau_p", "6 rows that the log's bounds left out"]


def test_the_command_refuses_with_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    training_run(tmp_path / "run", TOKENS)
    (tmp_path / "run/token_log/00000001.parquet").write_bytes(b"no parquet")
    for words in (["--draws", "0"], ["--run", str(tmp_path / "none")], ["--run", str(tmp_path / "run")]):
        monkeypatch.setattr(sys, "argv", ["studies.theory", *words])
        assert command.main() == 2
    assert "00000001.parquet" in capsys.readouterr().err
