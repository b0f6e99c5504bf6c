"""`stapo-train theory`: verdicts, what the tally does with violations, the page, a run's tokens by quadrant."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from stapo_results import provenance, store, token_log
from stapo_results.schema import Run
from stapo_training import cli
from stapo_training.theory import cases, formulas, report
from stapo_training.theory.checks import Tally
from stapo_training.theory.report import STATEMENTS, Theory
from stapo_training.theory.run import TheoryPlan, check, run

ROOT = Path(__file__).resolve().parents[1]
SMALL = TheoryPlan(draws=2, vocabularies=(2, 3, 1_000))
HOLD = {
    *("decomposition", "lower_bound", "upper_bound", "upper_bound_two_levels"),
    *("entropy_total", "entropy_token", "entropy_steps"),
}


def test_verdicts_on_small_vocabularies() -> None:
    rows = {r.statement: r for r in check(SMALL)}
    assert list(rows) == list(STATEMENTS)
    assert {k for k, r in rows.items() if r.verdict == "holds"} == HOLD
    assert all(r.cases > 50 and r.where for r in rows.values() if r.verdict == "fails")
    assert rows["lower_bound"].largest < 1e-12
    # the entropy turns at p = e^-H: below tau_p = 0.002 only where H > 6.21
    assert rows["taxonomy_rare"].numbers["H"] > -math.log(0.002)
    worst = rows["taxonomy_common"].numbers
    assert 0.002 <= worst["p"] < math.exp(-worst["H"])


def test_a_larger_constant_breaks_the_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check would see it: C_V 0.1 % larger fails at the uniform distribution and says so."""
    true = formulas.c_v
    monkeypatch.setattr(formulas, "c_v", lambda vocabulary: 1.001 * true(vocabulary))
    row = next(r for r in check(TheoryPlan(draws=1, vocabularies=(32,))) if r.statement == "upper_bound")
    assert row.verdict == "fails"
    assert row.where.startswith("uniform, V = 32")
    # 0.1 % of C_V H^2 = 31/32, of a squared norm of 31/32
    assert row.largest == pytest.approx(1e-3, rel=1e-3)


def test_a_tally_keeps_the_worst_case_and_refuses_what_is_no_number() -> None:
    tally = Tally(STATEMENTS["lower_bound"])
    assert tally.row().verdict == "not run"
    tally.add(torch.tensor([-1.0, 1e-12]), lambda i: f"first {i}")
    assert (tally.row().verdict, tally.row().where) == ("holds", "first 1")
    tally.add(torch.tensor([0.25, 0.5, 0.125]), lambda i: f"second {i}", {"x": torch.tensor([1.0, 2.0, 3.0])})
    row = tally.row()
    assert (row.verdict, row.cases, row.failures, row.largest) == ("fails", 5, 3, 0.5)
    assert (row.where, row.numbers) == ("second 1", {"x": 2.0})
    with pytest.raises(ValueError, match="third 1"):
        tally.add(torch.tensor([0.0, math.nan]), lambda i: f"third {i}")


def test_the_record_is_the_same_bytes_again(tmp_path: Path) -> None:
    plan = TheoryPlan(draws=1, vocabularies=(3, 50))
    for name in ("a", "b"):
        run(plan, out=tmp_path / name)
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
    assert tuple(result.vocabularies) == cases.VOCABULARIES
    page = (ROOT / "docs/theory.md").read_text()
    for r in (rows[s] for s in STATEMENTS):
        assert f"| {r.cases:,} | {r.failures:,} | {r.largest:.1e} | {r.verdict} |" in page
        assert f"`{r.statement}`" in page


@pytest.mark.slow
def test_the_committed_record_is_made_again() -> None:
    """Verdicts and counts; the size of a rounding error may differ from machine to machine."""
    committed = store.read_json(ROOT / "results/records/theory/theory.json", Theory)
    old = {r.statement: r for r in committed.rows}
    for new in check(TheoryPlan(committed.seed, committed.draws)):
        assert (new.cases, new.verdict) == (old[new.statement].cases, old[new.statement].verdict)
        if new.verdict == "fails":
            assert new.largest == pytest.approx(old[new.statement].largest, rel=0.02)


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


def training_run(
    folder: Path, tokens: list[tuple[float, ...]] | None, vocabulary: int = 4, **header_more: object
) -> Path:
    """A run's record, and a token log of two steps with one threshold."""
    store.write_json(folder / "run.json", provenance.new_run("train", {}, seeds={"run": 0}, deterministic=True))
    own = {"mode": "full", "selector": "silence_spurious", "tau_p": 0.3, "q": 0.5, "vocabulary": vocabulary}
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


def measured(folder: Path) -> Theory:
    return run(TheoryPlan(draws=1, vocabularies=(2,)), source=folder)


def test_quadrants_by_hand(tmp_path: Path) -> None:
    result = measured(training_run(tmp_path, TOKENS))
    assert result.missing == []
    assert result.source["tokens"] == 5
    assert result.source["tokens with A > 0"] == 4
    assert result.source["tau_h, median"] == pytest.approx((H_SPIKE + LN4) / 2, rel=1e-5)
    spurious, kept, sure, open_ = result.quadrants
    assert [q.tokens for q in result.quadrants] == [1, 1, 1, 1]
    # 1 - 0.2 + 0.52 = 1.32, between 0.8 + e^-H and 1.8 - 3 H^2 / (4 ln^2 4)
    assert spurious.values["norm_mean"] == pytest.approx(math.sqrt(1.32), rel=1e-5)
    assert spurious.values["lower_median"] == pytest.approx((0.8 + math.exp(-H_SPIKE)) / 1.32, rel=1e-5)
    assert spurious.values["upper_median"] == pytest.approx((1.8 - 0.75 * (H_SPIKE / LN4) ** 2) / 1.32, rel=1e-5)
    assert spurious.values["entropy_rises_share"] == 1.0
    # uniform: both bounds are attained, twice the norm for A = 2
    assert kept.values["lower_median"] == pytest.approx(1.0, abs=1e-5)
    assert kept.values["upper_median"] == pytest.approx(1.0, abs=1e-5)
    assert kept.values["norm_mean"] == pytest.approx(2 * math.sqrt(0.75), rel=1e-5)
    # 1 - 1.4 + e^-H < 0: the lower bound says nothing
    assert sure.values["lower_says_nothing_share"] == 1.0
    assert sure.values["norm_mean"] == pytest.approx(math.sqrt(0.12), rel=1e-5)
    assert sure.values["entropy_rises_share"] == 0.0
    assert open_.values["norm_mean"] == pytest.approx(math.sqrt(0.48), rel=1e-5)
    assert all(q.values["broken_bounds"] == 0 and q.values["unresolved"] == 0 for q in result.quadrants)
    # 1.32 > 0.75, and already 0.8 + e^-H = 1.19 > 0.75
    assert result.source["pairs_by_norm"] == result.source["pairs_by_bounds"] == 1.0
    assert "p < tau_p, H < tau_h" in report.report(result)


def test_a_broken_bound_and_an_unresolved_norm_are_counted(tmp_path: Path) -> None:
    wrong = (0.7, H_SPIKE, 1.0, 0.35)  # a sum of squares below e^-H = 0.39
    certain = (0.9999, 0.001, 1.0, 0.9998)
    result = measured(training_run(tmp_path, [*TOKENS, wrong, certain]))
    sure = result.quadrants[2]
    assert sure.tokens == 3
    assert sure.values["broken_bounds"] == 1
    assert sure.values["unresolved"] == 2  # 1 - 1.4 + 0.35 < 0 is no squared norm, and (1e-4)^2 is below float32


def test_what_a_run_lacks_is_named(tmp_path: Path) -> None:
    result = measured(training_run(tmp_path / "a", None))
    assert result.quadrants == []
    assert "Not run, missing: token_log" in report.report(result)
    result = measured(training_run(tmp_path / "b", TOKENS[2:4]))
    assert result.missing == ["an entropy threshold: no mini-batch has a token with A > 0 and p < tau_p"]
    result = measured(training_run(tmp_path / "c", TOKENS[:3]))
    assert (result.quadrants[3].tokens, result.quadrants[3].values) == (0, {})
    assert "no token" in report.report(result)


def test_what_a_log_cannot_tell_is_said(tmp_path: Path) -> None:
    on = measured(training_run(tmp_path / "a", TOKENS, mode="on", left_out=3, loss="gspo"))
    assert [q.quadrant for q in on.quadrants] == ["p < tau_p, H < tau_h", "p < tau_p, H >= tau_h"]
    assert [m.split(":")[0] for m in on.missing] == [
        "tokens with p >= tau_p",
        "6 rows that the log's bounds left out",
        "the clip of the loss gspo",
    ]
    assert all(m in report.report(on) for m in on.missing)
    old = measured(training_run(tmp_path / "b", TOKENS, policy="old"))
    assert (old.quadrants, old.missing[0].split(":")[0]) == ([], "the current policy's entropies")


def test_the_command_refuses_with_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    training_run(tmp_path / "run", TOKENS)
    (tmp_path / "run/token_log/00000001.parquet").write_bytes(b"no parquet")
    for words in (["--draws", "0"], ["--run", str(tmp_path / "none")], ["--run", str(tmp_path / "run")]):
        monkeypatch.setattr(sys, "argv", ["stapo-train", "theory", *words])
        assert cli.main() == 2
    assert "00000001.parquet" in capsys.readouterr().err
