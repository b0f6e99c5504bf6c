"""The testbed's quantities and verdicts, worked out by hand; missing seeds, what is refused, power."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro.read import load_cells, load_training_runs
from stapo_repro.testbed import build, claims, evidence, long_runs, render
from stapo_repro.testbed.claims import Claim, Judged
from stapo_repro.testbed.evidence import Evidence, collapse_step, quantity, run_values
from stapo_repro.testbed.plan import ARMS, arms_of
from stapo_results.errors import RecordError
from stapo_results.schema import Cell, StepMetrics

NOTHING = Evidence({}, {}, {})


def gathered(root: Path) -> Evidence:
    return evidence.gather(load_cells([root]), load_training_runs([root]))


def judged(root: Path) -> dict[str, Judged]:
    value = build.build(build.read(root), claims.load())
    return {j.claim.number: j for j in value.claims}


def trained(values: dict[str, list[float]], measure: str = "reward_late") -> Evidence:
    """Arm -> the value of each seed, in `paper`."""
    return Evidence({}, {("paper", a): {s: {measure: v} for s, v in enumerate(vs)} for a, vs in values.items()}, {})


def claim(**changed) -> Claim:
    given = {"number": "1", "id": "a", "kind": "difference", "place": "p", "claim": "c", "world": "paper",
             "part": "main", "measure": "reward_late", "first": "stapo", "second": "justrl", "direction": "above",
             "reference": 0.0, "smallest": 0.1, "contradicted_by": "x"}  # fmt: skip
    return Claim.model_validate(given | changed)


def verdict(values: dict[str, list[float]], **changed) -> str:
    c = claim(**changed)
    e = trained(values, c.measure)
    terms = [(1.0, c.first), (-1.0, c.second)]
    return claims.verdict_of(c, quantity(e, "paper", c.measure, terms, c.reference))[0]


def test_numbers_of_a_training_by_hand():
    rows = [
        {"useful_rate": u, "spurious_rate": 4 * u, "entropy": 0.2} for u in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.4, 0.6)
    ]
    steps = [StepMetrics(step=k, values=v) for k, v in enumerate(rows, 1)]
    # 8 steps: the second quarter is 3 and 4, the last 7 and 8; the reward was not logged, and there was no validation
    assert run_values(steps) == {
        "useful_early": 0.2, "useful_late": 0.5, "spurious_late": 2.0, "entropy_late": 0.2, "entropy_growth": 0.0,
        "spurious_growth": 1.6,
    }  # fmt: skip
    # of 20 steps the early ones are 1 to 16, the late ones 16 to 20
    steps = [StepMetrics(step=k, values={"reward": float(k > 16), "useful_rate": 0.0}) for k in range(21)]
    assert run_values(steps) == {"reward_early": 0.0, "useful_early": 0.0, "reward_late": 0.8, "useful_late": 0.0}


@pytest.mark.parametrize(("accuracies", "step"), [
    ((0.5, 0.9, 0.8, 0.7, 0.7), 50),  # under 0.85 from step 50 on, three times
    ((0.5, 0.9, 0.86, 0.9, 0.8, 0.7), None),  # twice
    ((0.5, 0.9, 0.8, 0.9, 0.9), None),  # it comes back
    ((0.5, 0.9, 0.86, 0.84, 0.84, 0.84), 75),
    ((0.5, 0.6, 0.7, 0.8), None),
    ((0.28,) * 13, None),  # never learnt: nothing to lose
    ((0.3, 0.2, 0.2, 0.2), 25),
])  # fmt: skip
def test_the_step_of_a_collapse(accuracies, step):
    assert collapse_step([(25 * k, a) for k, a in enumerate(accuracies)]) == step


def test_a_paired_difference_over_seeds_by_hand():
    # differences .1 .2 .3: mean .2, standard deviation .1, SE .057735; t(.975, 2) = 4.302653: half width .248414
    q = quantity(trained({"stapo": [0.4, 0.6, 0.8], "justrl": [0.3, 0.4, 0.5]}), "paper", "reward_late",
                 [(1.0, "stapo"), (-1.0, "justrl")])  # fmt: skip
    assert (q.status, q.mean, q.sd, q.df) == ("run", pytest.approx(0.2), pytest.approx(0.1), 2)
    assert (q.low, q.high) == (pytest.approx(-0.048414, abs=1e-6), pytest.approx(0.448414, abs=1e-6))
    # t = 3.4641; two-sided p with 2 degrees of freedom: 1 - 3.4641 / sqrt(2 + 12) = .07418
    assert q.p == pytest.approx(0.07418, abs=1e-5)
    assert q.seeds == {"0": pytest.approx(0.1), "1": pytest.approx(0.2), "2": pytest.approx(0.3)}


def test_verdicts_of_a_difference():
    up, flat = [0.5, 0.6, 0.7], [0.1, 0.1, 0.1]
    # differences .4 .5 .6: .5 +- .2484
    assert verdict({"stapo": up, "justrl": flat}) == "holds"
    assert verdict({"stapo": up, "justrl": flat}, direction="below") == "opposite"
    assert verdict({"stapo": flat, "justrl": up}, direction="below") == "holds"
    # against a reference: .2 is below the interval, .3 in it, .8 above it
    at = [verdict({"stapo": up, "justrl": flat}, reference=r) for r in (0.2, 0.3, 0.8)]
    assert at == ["holds", "not distinguishable", "opposite"]
    assert verdict({"stapo": [0.5], "justrl": [0.1]}) == "not run"  # one seed has no interval


def test_differences_without_any_spread_are_judged_by_their_signs():
    """2^(1 - seeds) is .0625 for 5 seeds and .03125 for 6."""
    # 0.3 - 0.1 is not 0.2: seeds that differ by rounding do not differ
    two = {"stapo": [0.3, 0.4], "justrl": [0.1, 0.2]}
    assert verdict(two) == "not distinguishable"
    five, six = ({"stapo": [0.5] * n, "justrl": [0.25] * n} for n in (5, 6))
    assert [verdict(v) for v in (five, six)] == ["not distinguishable", "holds"]
    same = {"kind": "equivalence", "direction": "within", "margin": 0.5}
    # an equivalence has one side: 2^-4 = .0625, 2^-5 = .03125
    four = {"stapo": [0.5] * 4, "justrl": [0.25] * 4}
    assert verdict({"stapo": [0.9] * 2, "justrl": [0.1] * 2}, **same | {"margin": 0.1}) == "not distinguishable"
    assert [verdict(v, **same) for v in (four, five)] == ["not distinguishable", "equivalent"]
    assert verdict({"stapo": [0.5] * 9, "justrl": [0.5] * 9}) == "not distinguishable"


def test_verdicts_of_an_equivalence():
    # differences -.1 0 .1: SE .057735, t(.95, 2) = 2.919986: the 90 % interval is 0 +- .168585
    near, flat = [0.0, 0.1, 0.2], [0.1, 0.1, 0.1]
    same = {"kind": "equivalence", "direction": "within"}
    margins = [verdict({"stapo": near, "justrl": flat}, margin=m, **same) for m in (0.17, 0.16)]
    assert margins == ["equivalent", "not distinguishable"]
    # .5 +- .2484 lies beyond .25, not beyond .26
    far = {"stapo": [0.5, 0.6, 0.7], "justrl": flat}
    assert [verdict(far, margin=m, **same) for m in (0.25, 0.26)] == ["opposite", "not distinguishable"]


QS = {"inside": ["stapo-q0.5", "stapo"], "ends": ["justrl", "justrl-fullmask"], "kind": "optimum"}


def test_the_optimum_looks_at_both_ends():
    noise = [0.0, 0.01, -0.01]
    level = {"justrl": 0.5, "justrl-fullmask": 0.2, "stapo-q0.5": 0.8, "stapo": 0.4}
    arms = {a: [v + n * i for n in noise] for i, (a, v) in enumerate(level.items(), 1)}
    q, found, p = claims.optimum(claim(**QS), trained(arms))
    assert (found, q.mean) == ("holds", pytest.approx(0.3))  # the best inside less the better end
    # two q inside: .3 with differences' deviation .02, .3 / (.02 / sqrt 3) = 25.98: p .001478; twice that
    assert p == pytest.approx(2 * 0.001478, abs=1e-5)
    # one end above every q inside
    _, found, _ = claims.optimum(claim(**QS), trained(arms | {"justrl": [0.9, 0.91, 0.89]}))
    assert found == "opposite"
    # above one end alone
    _, found, _ = claims.optimum(claim(**QS), trained(arms | {"stapo-q0.5": arms["stapo"]}))
    assert found == "not distinguishable"
    del arms["stapo-q0.5"]
    assert claims.optimum(claim(**QS), trained(arms))[1:] == ("not run", None)


def test_precision_is_that_of_the_first_two_steps_of_justrl(tmp_path):
    synthetic.of_testbed(tmp_path)
    e = gathered(tmp_path)
    # S2T silences 7, 8, 9 spurious of 7.5, 8.5, 9.5; random 5.6 of 7.5
    q = quantity(e, "paper", "precision", [(1.0, "stapo")])
    assert list(q.seeds.values()) == [pytest.approx(100 * x) for x in (7 / 7.5, 8 / 8.5, 9 / 9.5)]
    q = quantity(e, "paper", "precision", [(1.0, "stapo"), (-1.0, "stapo-random")])
    assert q.seeds["0"] == pytest.approx(100 * (7 - 5.6) / 7.5)


def test_a_second_evaluation_seed_is_pooled_with_the_first(tmp_path):
    for seed, verdicts in enumerate((["11111111"], ["00000000"])):
        where = Cell(method="stapo", size="mini", train_seed=0, step=8, benchmark="mini-add", setting="t1.0",
                     eval_seed=seed)  # fmt: skip
        synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", verdicts, cell=where, folder=f"e{seed}")
    scores = gathered(tmp_path).scores["paper", "stapo"]
    assert scores["accuracy_t1.0"] == {0: {"q0": 0.5}}
    # of 16 samples 8 are right: 1 - C(8, 8) / C(16, 8) = 1 - 1 / 12,870
    assert scores["pass8_t1.0"] == {0: {"q0": pytest.approx(1 - 1 / 12870)}}


def test_checks_of_the_instrument_are_those_that_the_claims_name(tmp_path):
    synthetic.of_testbed(tmp_path, worlds=("paper",))
    t = build.build(build.read(tmp_path), claims.load())
    one = next(j for j in t.claims if j.claim.number == "2a")
    others = [replace(j, claim=j.claim.model_copy(update={"check": j is one})) for j in t.claims]
    named = [re.findall(r"instrument \(([^)]*)\)", render.headline(x)) for x in (t, replace(t, claims=others))]
    assert named == [["1a, 1b, 5a, 6a"], ["2a"]]


def test_every_claim_from_synthetic_records(tmp_path):
    synthetic.of_testbed(tmp_path)
    found = judged(tmp_path)
    assert {n: j.verdict for n, j in found.items()} == {
        "1a": "holds", "1b": "holds",  # 18.7 to 20.1 points; 66.7 less 74.7
        "2a": "holds", "2b": "holds", "2c": "holds", "3": "holds", "4a": "holds", "4b": "holds",
        "4c": "not distinguishable",  # both have 6 of 8
        # the same numbers in all worlds: S2T gains where it must not
        "5a": "opposite", "5b": "opposite", "5c": "opposite", "6a": "opposite", "6b": "opposite", "6c": "opposite",
        "7a": "not run", "7b": "not run", "7c": "not run", "7d": "not run", "7e": "not run",
        "7f": "not run", "8": "not run",
    }  # fmt: skip
    one = found["2a"]  # useful words .9 + .03 s less .2 + .01 s: 70, 72, 74
    assert (one.quantity.mean, one.quantity.sd) == (pytest.approx(72), pytest.approx(2))
    assert found["7a"].p_holm is None
    # Holm over 22 claims, those not run among them: the smallest p counts as often
    smallest = min((j for j in found.values() if j.p is not None), key=lambda j: j.p or 0.0)
    assert smallest.p_holm == pytest.approx(22 * (smallest.p or 0.0))


def test_a_missing_seed_of_an_arm_leaves_its_claims_not_run_and_is_named(tmp_path):
    synthetic.of_testbed(tmp_path, worlds=("paper",))
    shutil.rmtree(tmp_path / "eval" / "stapo-high-entropy-paper-s2")
    found = judged(tmp_path)
    assert (found["4b"].verdict, found["4b"].quantity.missing) == ("not run", ["High-entropy mask seed 2"])
    assert found["4b"].quantity.mean is not None  # of the two seeds that are there
    assert found["4a"].verdict == "holds"
    assert found["2b"].verdict == "holds"  # its training is there
    assert found["5b"].verdict == "not run"


def test_seeds_of_a_pilot_judge_nothing_and_say_how_many_are_needed(tmp_path):
    synthetic.of_testbed(tmp_path / "pilot", seeds=(100, 101, 102), worlds=("paper",))
    value = build.build(build.read(tmp_path), claims.load())
    assert {j.verdict for j in value.claims} == {"not run"}
    power = {p.claim.number: p for p in value.power}
    # S2T minus random: 18.67, 8/8.5 - 5.6/7.5, ...: seeds 100 to 102 add 100 to 102 spurious tokens
    assert (power["1a"].pilot_seeds, power["1a"].run) == (3, 0)
    assert power["1a"].needed == 2
    assert power["4a"].sd is not None
    assert (power["7a"].sd, power["7a"].needed) == (None, None)
    assert power["5a"].sd is None  # the pilot has no run in that world


def long_run(root: Path, arm: str, seed: int, accuracy: Sequence[float], entropy: Sequence[float]) -> None:
    """Metrics of steps 0 to 4: the second quarter is step 2, the last is step 4."""
    folder = synthetic.training_run(root / "long", arm, seed, steps=2)
    rows = ({"accuracy": a, "reward": a, "entropy": e, "spurious_rate": 10 * e}
            for a, e in zip(accuracy, entropy, strict=True))  # fmt: skip
    lines = [StepMetrics(step=k, values=values) for k, values in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("".join(m.model_dump_json() + "\n" for m in lines))


def test_long_runs_judge_collapse_and_growth_alone(tmp_path):
    for seed in range(20, 26):
        long_run(tmp_path, "justrl", seed, (0.5, 0.9, 0.5, 0.5, 0.5), (0.4, 0.4, 0.3, 0.4, 0.5 + 0.01 * seed))
        long_run(tmp_path, "stapo", seed, (0.5, 0.9, 0.9, 0.9, 0.9), (0.4, 0.4, 0.2, 0.2, 0.1))
        # the other way round at the larger rate
        long_run(tmp_path, "stapo-lr2.5x", seed, (0.5, 0.9, 0.6, 0.6, 0.6), (0.4, 0.4, 0.3, 0.4, 0.6 + 0.01 * seed))
        long_run(tmp_path, "justrl-lr2.5x", seed, (0.5, 0.9, 0.9, 0.9, 0.9), (0.4, 0.4, 0.2, 0.2, 0.1))
        long_run(tmp_path, "justrl-lr5x", seed, (0.5, 0.5, 0.5, 0.5, 0.5), (0.4, 0.4, 0.2, 0.2, 0.1))  # no claim
    # seen before the claims were written: judges nothing
    long_run(tmp_path, "justrl", 10, (0.5, 0.9, 0.9, 0.9, 0.9), (0.4, 0.4, 0.9, 0.4, 0.1))
    found = judged(tmp_path)
    # JustRL at step 2, STAPO never: 4 + 25
    assert (found["7a"].verdict, found["7a"].quantity.mean) == ("holds", 27.0)
    assert sorted(found["7a"].quantity.seeds) == [str(s) for s in range(20, 26)]
    # (.1 - .2) less (.7 to .75 - .3): -.525; ten words a nat in a response
    assert (found["7b"].verdict, found["7b"].quantity.mean) == ("holds", -0.525)
    assert (found["7c"].verdict, found["7c"].quantity.mean) == ("holds", -525.0)
    # step 2 less 29; .8 to .85 less .3, and .1; rewards in the last quarter .6 less .9
    of_larger = {n: (found[n].verdict, found[n].quantity.mean) for n in ("7d", "7e", "7f")}
    assert of_larger == {"7d": ("opposite", -27.0), "7e": ("opposite", 625.0), "7f": ("opposite", -0.3)}
    assert {j.verdict for n, j in found.items() if not n.startswith("7")} == {"not run"}
    # and each run as a line: 24 that judge
    table = long_runs.block(build.build(build.read(tmp_path), claims.load())).splitlines()
    assert len([line for line in table if "| yes |" in line]) == 24
    assert "| 2e-4 | JustRL | 10 | no | 0.90 | 0.10 | 900 | 100 | 90.0 | 90.0 | 0.90 | 1 | none |" in table
    assert "| 1e-3 | JustRL | 20 | no | 0.20 | 0.10 | 200 | 100 | 50.0 | 50.0 | 0.50 | never | none |" in table
    assert "| 5e-4 | STAPO | 25 | yes | 0.30 | 0.85 | 300 | 850 | 90.0 | 60.0 | 0.60 | 1 | 2 |" in table


def test_a_single_arms_interval_ends_at_0_unless_it_may_be_negative(tmp_path):
    for seed, late in ((0, 0.01), (1, 0.01), (2, 0.10)):
        rates = {"useful_rate": late, "reward": -late}
        synthetic.training_run(tmp_path / "train", "stapo", seed, 8, more=rates)
    of = evidence.gather([], load_training_runs([tmp_path]))
    # .04 +- 4.302653 x .03
    useful = evidence.quantity(of, "paper", "useful_late", [(1.0, "stapo")])
    assert (useful.low, useful.high) == (0.0, pytest.approx(16.90796))
    reward = evidence.quantity(of, "paper", "reward_late", [(1.0, "stapo")])
    assert (reward.low, reward.high) == (pytest.approx(-0.1690796), pytest.approx(0.0890796))
    minus = evidence.quantity(of, "paper", "useful_late", [(-1.0, "stapo")])
    assert minus.low == pytest.approx(-16.90796)


@pytest.mark.parametrize("spoil", [{"size": "qwen3-8b"}, {"verdicts": ["1" * 8] * 15}, {"step": 9}])
def test_records_that_do_not_belong_together_are_refused(tmp_path, spoil):
    synthetic.of_testbed(tmp_path, worlds=("paper",), seeds=(0,))
    given = {"method": "dapo", "benchmark": "mini-add", "setting": "t1.0", "verdicts": ["1" * 8] * 16, "step": 8}
    synthetic.cell(tmp_path / "eval", **given | spoil)
    with pytest.raises(RecordError):
        gathered(tmp_path)


def test_a_training_that_is_not_finished_is_not_counted_and_named(tmp_path):
    synthetic.of_testbed(tmp_path, worlds=("paper",), seeds=(0, 1))
    shutil.rmtree(tmp_path / "train" / "paper" / "stapo-s1")
    synthetic.training_run(tmp_path / "train" / "paper", "stapo", 1, 4, status="interrupted")
    value = build.build(build.read(tmp_path), claims.load())
    assert any("STAPO seed 1 on mini (interrupted)" in note for note in value.footnotes)
    row = next(r for r in value.rows if (r.world, r.arm) == ("paper", "stapo"))
    assert row.values["useful_late"].missing == ["STAPO seed 1"]


def test_the_claims_name_arms_that_are_trained_and_units_that_are_printed():
    from stapo_repro.testbed.render import MEASURES, expected, quantity_words

    file = claims.load()
    numbers = [c.number for c in file.claims]
    assert len(set(numbers)) == len(numbers) == 22
    for c in file.claims:
        trained = {a.name for a in arms_of(c.world, c.part)}
        assert {c.first, c.second, *c.inside, *c.ends} <= trained, c.id
        assert c.measure in MEASURES
        assert (c.margin is None) == (c.kind != "equivalence")
        assert quantity_words(c)
        assert expected(c)
    assert set(ARMS) >= {"stapo-q0.25", "stapo-tau0.0002"}
