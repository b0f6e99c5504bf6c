"""The testbed's quantities and verdicts, worked out by hand; missing seeds, what is refused, its tables,
and the counts that a training's record keeps of its tokens."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import synthetic_records as synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_testbed import of_testbed
from token_logs import Others, Token, with_thresholds, write_tokens

from stapo_repro.read import load_cells, load_training_runs
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Cell, StepMetrics
from stapo_results.store import write_json
from studies.masks import FULL, HIGH, RANDOM, S2T
from studies.testbed import claims, counts, evidence, tables
from studies.testbed.claims import Claim
from studies.testbed.evidence import Evidence, collapse_step, quantity, run_values
from studies.testbed.plan import Part, arms_of


def gathered(root: Path) -> Evidence:
    return evidence.gather(load_cells([root]), load_training_runs([root]))


def made(root: Path) -> tables.Testbed:
    return tables.Testbed(tables.read(root), claims.load())


def trained(values: dict[str, list[float]], measure: str = "reward_late") -> Evidence:
    """Arm -> the value of each seed, in `paper`."""
    return Evidence({("paper", arm, measure): dict(enumerate(by_seed)) for arm, by_seed in values.items()})


def claim(**changed) -> Claim:
    given = {"number": "1", "id": "a", "kind": "difference", "place": "p", "claim": "c", "world": "paper",
             "part": "main", "measure": "reward_late", "first": "stapo", "second": "justrl", "direction": "above",
             "reference": 0.0, "smallest": 0.1, "contradicted_by": "x"}  # fmt: skip
    return Claim.model_validate(given | changed)


def test_numbers_of_a_training_by_hand():
    rows = [{"useful_rate": u, "spurious_rate": 4 * u} for u in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.4, 0.6)]
    steps = [StepMetrics(step=k, values=v) for k, v in enumerate(rows, 1)]
    # 8 steps: the second quarter is 3 and 4, the last 7 and 8; no reward, no entropy, no validation
    assert run_values(steps) == pytest.approx({
        "useful_early": 0.2, "useful_second": 0.1, "useful_late": 0.5, "useful_growth": 0.4,
        "spurious_early": 0.8, "spurious_second": 0.4, "spurious_late": 2.0, "spurious_growth": 1.6,
    })  # fmt: skip
    # of 20 steps the early ones are 1 to 16, the late ones 16 to 20
    steps = [StepMetrics(step=k, values={"reward": float(k > 16)}) for k in range(21)]
    assert (run_values(steps)["reward_early"], run_values(steps)["reward_late"]) == (0.0, 0.8)


def test_validations_of_both_benchmarks_have_measures_of_their_own():
    names = ("val-core/mini-add/acc/mean@8", "val-core/mini-add-hard/acc/mean@8")
    steps = [StepMetrics(step=k, values=dict(zip(names, (k / 40, k / 80), strict=True))) for k in (0, 20, 40)]
    found = run_values(steps)
    assert (found["easy_step20"], found["hard_step20"]) == (0.5, 0.25)
    assert (found["easy_step40"], found["hard_step40"]) == (1.0, 0.5)


@pytest.mark.parametrize(("accuracies", "step"), [
    ((0.5, 0.9, 0.8, 0.7, 0.7), 50),  # under 0.85 from step 50 on, three times
    ((0.5, 0.9, 0.86, 0.9, 0.8, 0.7), None),  # twice
    ((0.5, 0.9, 0.8, 0.9, 0.9), None),  # it comes back
    ((0.5, 0.9, 0.86, 0.84, 0.84, 0.84), 75),
    ((0.28,) * 13, None),  # never learnt: nothing to lose
    ((0.3, 0.2, 0.2, 0.2), 25),
])  # fmt: skip
def test_the_step_of_a_collapse(accuracies, step):
    assert collapse_step([(25 * k, a) for k, a in enumerate(accuracies)]) == step


def test_a_paired_difference_over_seeds_by_hand():
    # differences .1 .2 .3: mean .2, standard deviation .1, SE .057735; t(.975, 2) = 4.302653: half width .248414
    q = quantity(trained({"stapo": [0.4, 0.6, 0.8], "justrl": [0.3, 0.4, 0.5]}), "paper", "reward_late",
                 [(1.0, "stapo"), (-1.0, "justrl")])  # fmt: skip
    assert (q.status, q.number.mean, q.sd, q.number.df) == ("run", pytest.approx(0.2), pytest.approx(0.1), 2)
    ends = pytest.approx(-0.048414, abs=1e-6), pytest.approx(0.448414, abs=1e-6)
    assert (q.number.low, q.number.high) == ends
    # t = 3.4641; two-sided p with 2 degrees of freedom: 1 - 3.4641 / sqrt(2 + 12) = .07418
    assert q.p == pytest.approx(0.07418, abs=1e-5)
    assert q.seeds == {0: pytest.approx(0.1), 1: pytest.approx(0.2), 2: pytest.approx(0.3)}


UP, FLAT, NEAR = [0.5, 0.6, 0.7], [0.1, 0.1, 0.1], [0.0, 0.1, 0.2]
SAME = {"kind": "equivalence", "direction": "within"}


@pytest.mark.parametrize(("stapo", "justrl", "changed", "verdict"), [
    # differences .4 .5 .6: .5 +- .2484
    (UP, FLAT, {}, "holds"),
    (UP, FLAT, {"direction": "below"}, "opposite"),
    (FLAT, UP, {"direction": "below"}, "holds"),
    (UP, FLAT, {"reference": 0.2}, "holds"),
    (UP, FLAT, {"reference": 0.3}, "not distinguishable"),
    (UP, FLAT, {"reference": 0.8}, "opposite"),
    ([0.5], [0.1], {}, "not run"),  # one seed has no interval
    # without any spread the signs judge: 2^(1 - seeds) is .0625 for 5 seeds, .03125 for 6
    ([0.5] * 5, [0.25] * 5, {}, "not distinguishable"),
    ([0.5] * 6, [0.25] * 6, {}, "holds"),
    ([0.5] * 9, [0.5] * 9, {}, "not distinguishable"),
    ([0.3, 0.4], [0.1, 0.2], {}, "not distinguishable"),  # 0.3 - 0.1 is not 0.2: rounding is no spread
    # an equivalence has one side: 2^-4 = .0625, 2^-5 = .03125
    ([0.5] * 4, [0.25] * 4, SAME | {"margin": 0.5}, "not distinguishable"),
    ([0.5] * 5, [0.25] * 5, SAME | {"margin": 0.5}, "equivalent"),
    ([0.9] * 2, [0.1] * 2, SAME | {"margin": 0.1}, "not distinguishable"),
    # differences -.1 0 .1: SE .057735, t(.95, 2) = 2.919986: the 90 % interval is 0 +- .168585
    (NEAR, FLAT, SAME | {"margin": 0.17}, "equivalent"),
    (NEAR, FLAT, SAME | {"margin": 0.16}, "not distinguishable"),
    # .5 +- .2484 lies beyond .25, not beyond .26
    (UP, FLAT, SAME | {"margin": 0.25}, "opposite"),
    (UP, FLAT, SAME | {"margin": 0.26}, "not distinguishable"),
])  # fmt: skip
def test_verdicts_of_differences_and_equivalences(stapo, justrl, changed, verdict):
    assert claims.verdict_of(claim(**changed), trained({"stapo": stapo, "justrl": justrl}))[1] == verdict


def test_a_correction_over_all_claims_counts_those_that_are_not_run():
    # .01 x 3 and .03 x 2: the second had its verdict in a family of its own
    judged: list[Any] = [
        SimpleNamespace(claim=SimpleNamespace(number=number), p=p, p_holm=p)
        for number, p in (("1a", 0.03), ("1b", 0.01), ("2", None))
    ]
    assert claims.lost_over_all(judged) == [("1a", pytest.approx(0.06))]


def test_the_optimum_looks_at_both_ends():
    c = claim(inside=["stapo-q0.5", "stapo"], ends=["justrl", "justrl-fullmask"], kind="optimum")
    level = {"justrl": 0.5, "justrl-fullmask": 0.2, "stapo-q0.5": 0.8, "stapo": 0.4}
    arms = {a: [v + noise * i for noise in (0.0, 0.01, -0.01)] for i, (a, v) in enumerate(level.items(), 1)}
    q, found, p = claims.verdict_of(c, trained(arms))
    assert (found, q.number.mean) == ("holds", pytest.approx(0.3))  # the best inside less the better end
    # two q inside: .3 with differences' deviation .02, .3 / (.02 / sqrt 3) = 25.98: p .001478; twice that
    assert p == pytest.approx(2 * 0.001478, abs=1e-5)
    # one end above every q inside; above one end alone
    assert claims.verdict_of(c, trained(arms | {"justrl": [0.9, 0.91, 0.89]}))[1] == "opposite"
    assert claims.verdict_of(c, trained(arms | {"stapo-q0.5": arms["stapo"]}))[1] == "not distinguishable"
    del arms["stapo-q0.5"]
    assert claims.verdict_of(c, trained(arms))[1:] == ("not run", None)


def test_a_single_arms_interval_ends_at_0_unless_it_may_be_negative():
    # .04 +- 4.302653 x .03
    useful, reward = (trained({"stapo": [0.01, 0.01, 0.10]}, m) for m in ("useful_late", "reward_late"))
    n = quantity(useful, "paper", "useful_late", [(1.0, "stapo")]).number
    assert (n.low, n.high) == (0.0, pytest.approx(16.90796))
    assert quantity(reward, "paper", "reward_late", [(1.0, "stapo")]).number.low == pytest.approx(-0.0890796)
    assert quantity(useful, "paper", "useful_late", [(-1.0, "stapo")]).number.low == pytest.approx(-16.90796)


def test_masks_are_measured_in_the_first_two_steps_of_justrl(tmp_path):
    of_testbed(tmp_path, worlds=("paper",))
    e = gathered(tmp_path)
    # S2T silences 7, 8, 9 spurious of 7.5, 8.5, 9.5; random 5.6 of 7.5
    q = quantity(e, "paper", "precision", [(1.0, "stapo")])
    assert list(q.seeds.values()) == [pytest.approx(100 * x) for x in (7 / 7.5, 8 / 8.5, 9 / 9.5)]
    q = quantity(e, "paper", "precision", [(1.0, "stapo"), (-1.0, "stapo-random")])
    assert q.seeds[0] == pytest.approx(100 * (7 - 5.6) / 7.5)
    # of 8, 9, 10 rare spurious tokens; of 2 rare useful ones the random mask 1.5; 2 steps a run
    assert quantity(e, "paper", "recall", [(1.0, "stapo")]).seeds[2] == pytest.approx(90)
    assert quantity(e, "paper", "useful_silenced", [(1.0, "stapo-random")]).number.mean == pytest.approx(75)
    assert sum(quantity(e, "paper", "tokens", [(1.0, "stapo")]).seeds.values()) == pytest.approx(51)


def test_a_second_evaluation_seed_is_pooled_with_the_first(tmp_path):
    for seed, verdicts in enumerate((["11111111"], ["00000000"])):
        where = Cell(method="stapo", size="mini", train_seed=0, step=8, benchmark="mini-add", setting="t1.0",
                     eval_seed=seed)  # fmt: skip
        synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", verdicts, cell=where, folder=f"e{seed}")
    values = gathered(tmp_path).values
    assert values["paper", "stapo", "accuracy_t1.0"] == {0: {"q0": 0.5}}
    # of 16 samples 8 are right: 1 - C(8, 8) / C(16, 8) = 1 - 1 / 12,870
    assert values["paper", "stapo", "pass8_t1.0"] == {0: {"q0": pytest.approx(1 - 1 / 12870)}}


def test_every_claim_from_synthetic_records(tmp_path):
    of_testbed(tmp_path)
    t = made(tmp_path)
    found = {j.claim.number: j for j in t.claims}
    by = {v: " ".join(n for n, j in found.items() if j.verdict == v) for v in {j.verdict for j in t.claims}}
    assert by == {
        "holds": "1a 1b 2a 2b 2c 3 4a 4b",  # 1a: 18.7 to 20.1 points; 1b: 66.7 less 74.7
        "not distinguishable": "4c",  # both have 6 of 8
        "opposite": "5a 5b 5c 6a 6b 6c",  # the same numbers in all worlds: S2T gains where it must not
        "not run": "7a 7b 7c 7d 7e 7f 8 9a 9b 9c 9d 10a 10b 10c 10d 10e 10f 10g 10h 10i 10j 10k 11a 11b 12 "
        "13a 13b 13c 13d 13e 14a 14b",
    }
    one = found["2a"]  # useful words .9 + .03 s less .2 + .01 s: 70, 72, 74
    assert (one.quantity.number.mean, one.quantity.sd) == (pytest.approx(72), pytest.approx(2))
    # Holm over the 22 claims of its family, those not run among them: the smallest p counts as often
    smallest = min((j for j in found.values() if j.p is not None), key=lambda j: j.p or 0.0)
    assert smallest.p_holm == pytest.approx(22 * (smallest.p or 0.0))
    checks = ", ".join(c.number for c in claims.load().claims if c.check)
    assert f"instrument ({checks})" in tables.headline(t)
    # in the written forms: .9 + .03 a seed, of three seeds: 93.0 +- 4.302653 x 3 / sqrt 3 = 7.45
    text, written = tables.to_markdown(t), json.loads(tables.to_json(t))
    assert "93.0<br><sub>85.5 to 100.5</sub> | 23.0" in text
    assert "SYNTHETIC RECORDS" in text
    assert [c["verdict"] for c in written["claims"]] == [j.verdict for j in t.claims]


def test_a_missing_seed_or_sample_of_an_arm_leaves_its_claims_not_run_and_is_named(tmp_path):
    of_testbed(tmp_path, worlds=("paper",))
    shutil.rmtree(tmp_path / "eval" / "stapo-high-entropy-paper-s2")
    shutil.rmtree(tmp_path / "train" / "paper" / "justrl-fullmask-s1")
    synthetic.training_run(tmp_path / "train" / "paper", "justrl-fullmask", 1, 4, status="interrupted")
    t = made(tmp_path)
    found = {j.claim.number: j for j in t.claims}
    assert (found["4b"].verdict, found["4b"].quantity.missing) == ("not run", ["High-entropy mask seed 2"])
    assert found["4b"].quantity.number.known  # of the two seeds that are there
    assert (found["4a"].verdict, found["2b"].verdict) == ("holds", "holds")  # its evaluation, its training is there
    assert (found["2a"].verdict, found["2a"].quantity.missing) == ("not run", ["JustRL-FullMask seed 1"])
    assert any("JustRL-FullMask seed 1 on mini (interrupted)" in note for note in t.footnotes)
    assert {found[n].verdict for n in ("5b", "6b")} == {"not run"}
    assert {j.verdict for j in made(tmp_path / "none").claims} == {"not run"}


def test_seeds_of_a_pilot_judge_nothing_and_say_how_many_are_needed(tmp_path):
    of_testbed(tmp_path / "pilot", seeds=(100, 101, 102), worlds=("paper",))
    found = {j.claim.number: j for j in made(tmp_path).claims}
    assert {j.verdict for j in found.values()} == {"not run"}
    # S2T minus random: 18.67, 8/8.5 - 5.6/7.5, ...: seeds 100 to 102 add 100 to 102 spurious tokens
    assert (len(found["1a"].pilot.seeds), found["1a"].needed) == (3, 2)
    assert not found["5a"].pilot.number.known  # the pilot has no run in that world
    assert found["7a"].needed is None  # nor a long one


def test_long_runs_judge_collapse_and_growth_alone(tmp_path):
    def run(arm: str, seed: int, accuracy: list[float], entropy: list[float]) -> None:
        """Metrics of steps 0 to 4: the second quarter is step 2, the last is step 4."""
        folder = synthetic.training_run(tmp_path / "long", arm, seed, steps=2)
        rows = [{"accuracy": a, "reward": a, "entropy": e, "spurious_rate": 10 * e}
                for a, e in zip(accuracy, entropy, strict=True)]  # fmt: skip
        lines = [StepMetrics(step=k, values=values) for k, values in enumerate(rows)]
        (folder / "metrics.jsonl").write_text("".join(m.model_dump_json() + "\n" for m in lines))

    falls, stays = [0.5, 0.9, 0.5, 0.5, 0.5], [0.5, 0.9, 0.9, 0.9, 0.9]
    for seed in range(20, 26):
        run("justrl", seed, falls, [0.4, 0.4, 0.3, 0.4, 0.5 + 0.01 * seed])
        run("stapo", seed, stays, [0.4, 0.4, 0.2, 0.2, 0.1])
        run("justrl-lr5x", seed, [0.5] * 5, [0.4, 0.4, 0.2, 0.2, 0.1])  # no claim
    run("justrl", 10, stays, [0.4, 0.4, 0.9, 0.4, 0.1])  # seen before the claims were written: judges nothing
    t = made(tmp_path)
    found = {j.claim.number: (j.verdict, j.quantity.number.mean) for j in t.claims if j.verdict != "not run"}
    # JustRL at step 2, STAPO never: 4 + 25; (.1 - .2) less (.7 to .75 - .3): -.525; ten words a nat in a response
    assert found == {
        "7a": ("holds", pytest.approx(27.0)),
        "7b": ("holds", pytest.approx(-0.525)),
        "7c": ("holds", pytest.approx(-525.0)),
    }
    table = tables.to_markdown(t)
    assert table.count("| yes |") == 12
    for line in (
        "| 2e-4 | JustRL | 10 | no: exploratory | 0.90 | 0.10 | 900 | 100 | 90.0 | 90.0 | 0.90 | 1 | none |",
        "| 1e-3 | JustRL | 20 | no: exploratory | 0.20 | 0.10 | 200 | 100 | 50.0 | 50.0 | 0.50 | none | none |",
        "| 2e-4 | JustRL | 25 | yes | 0.30 | 0.75 | 300 | 750 | 90.0 | 50.0 | 0.50 | 1 | 2 |",
    ):
        assert line in table


@pytest.mark.parametrize("spoil", [{"size": "qwen3-8b"}, {"verdicts": ["1" * 8] * 15}, {"step": 9}])
def test_records_that_do_not_belong_together_are_refused(tmp_path, spoil):
    of_testbed(tmp_path, worlds=("paper",), seeds=(0,))
    given = {"method": "dapo", "benchmark": "mini-add", "setting": "t1.0", "verdicts": ["1" * 8] * 16, "step": 8}
    synthetic.cell(tmp_path / "eval", **given | spoil)
    with pytest.raises(RecordError):
        gathered(tmp_path)


def test_the_claims_name_arms_that_are_trained():
    overlays = {f.stem for f in Path(claims.__file__).parent.glob("*.yaml")}  # trained by --method
    numbers = [c.number for c in claims.load().claims]
    assert len(set(numbers)) == len(numbers)
    for c in claims.load().claims:
        assert {c.first, c.second, *c.inside, *c.ends} <= overlays | {a.name for a in arms_of(c.world, c.part)}, c.id
        assert (c.margin is None) == (c.kind != "equivalence")


def test_a_users_method_is_paired_with_the_committed_arms_over_the_seeds_that_both_have(tmp_path):
    of_testbed(tmp_path / "committed", worlds=("paper",), seeds=(0, 1, 2))
    for seed in (0, 1):
        rates = {"useful_rate": 0.95 + 0.01 * seed, "spurious_rate": 0.1}
        synthetic.training_run(tmp_path / "own" / "train", "mine", seed, 8, more=rates)
    own, committed = gathered(tmp_path / "own"), gathered(tmp_path / "committed")
    ((world, rows),) = tables.standing(own, committed, "mine").items()
    assert (world, [r[0] for r in rows]) == ("paper", [
        "mine", "JustRL", "JustRL-FullMask", "High-entropy mask", "Random mask", "STAPO", "mine minus JustRL",
        "mine minus STAPO"])  # fmt: skip
    assert rows[0][1] == "not run"
    # .95 + .01 s less .9 + .03 s in both seeds that it has: 5 and 3 points, SE 1, t(.975, 1) = 12.706
    assert rows[-1][4] == "+4.0, n=2\n-8.7 to 16.7"
    # nothing is subtracted from records of other problems or steps, or without records
    given = {"method": "mine", "benchmark": "mini-add", "setting": "t1.0", "step": 8, "size": "mini"}
    synthetic.cell(tmp_path / "own" / "eval", verdicts=["1" * 8] * 8, **given)
    synthetic.training_run(tmp_path / "other", "mine", 0, 4, more={"useful_rate": 0.5, "spurious_rate": 0.1})
    for root in ("own", "other"):
        assert len(tables.standing(gathered(tmp_path / root), committed, "mine")["paper"]) == 6
    alone = tables.standing(own, Evidence({}), "mine")["paper"]
    assert {cell for row in alone[1:] for cell in row[1:]} == {"not run"}


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_byte_of_a_training_is_refused_or_changes_no_value_silently(tmp_path, data):
    def read() -> tuple[str, list]:
        runs = load_training_runs([tmp_path])
        parts: dict = {part: ([], runs if part == "main" else []) for part in get_args(Part)}
        return tables.Testbed(parts, claims.load()).inputs_sha256, [r.steps for r in runs]

    shutil.rmtree(tmp_path)  # of the example before this one
    path = synthetic.training_run(tmp_path, "stapo", steps=2) / "metrics.jsonl"
    whole, (stamp, before) = path.read_bytes(), read()
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    refusal, new_stamp, after = str(path), stamp, before
    try:
        new_stamp, after = read()
    except BadInput as e:
        refusal = str(e)
    assert str(path) in refusal
    assert after == before or new_stamp != stamp


# Step 1: rare tokens with entropies 0.1 (spurious) 0.2 0.3 (useful) 0.4 (spurious); a frequent spurious one.
# Step 2: one rare token, useful.
TOKENS = with_thresholds(
    [
        Token("a", junk=True, entropy=0.1),
        Token("b", entropy=0.2),
        Token("b", useful=True, entropy=0.3),
        Token("a", junk=True, entropy=0.4),
        Token("a", junk=True, rare=False, entropy=0.05),
        Token("b", useful=True, entropy=0.9, step=2),
    ],
    0.75,
)
NONE = (0.0, 0.0, 0.0)


def counted(folder, tokens, others=(), **more) -> counts.PlantedCounts:
    write_tokens(folder, tokens, others, **more)
    found = counts.of_run(folder, "abc")
    assert found is not None
    return found


def test_classes_of_rare_and_silenced_tokens_by_hand(tmp_path):
    found = counted(tmp_path, TOKENS, [Others(correct=14)])
    assert (found.run_id, found.selector, found.steps) == ("abc", S2T, [1, 2])
    assert [c.tokens for c in found.rare] == [[(2.0, 1.0, 1.0), (0.0, 1.0, 0.0)]]
    # quantiles of 0.1 0.2 0.3 0.4: 0.325 at 0.75, 0.175 at 0.25; a token alone is kept; floor(0.75 x 4) = 3 of 4
    assert {(m.mask, m.tau_p, m.q): m.tokens for m in found.masks} == {
        (S2T, 0.002, 0.75): [(1.0, 1.0, 1.0), NONE],
        (HIGH, 0.002, 0.75): [(1.0, 1.0, 1.0), NONE],
        (FULL, 0.002, 1.0): found.rare[0].tokens,
        (RANDOM, 0.002, 0.75): [(1.5, 0.75, 0.75), NONE],
    }
    # of all: 3 silenced, 1 of them spurious, as are 2 rare ones; 1 of 2 rare useful ones
    assert found.of_mask(S2T) == {"tokens": 3.0, "precision": 1 / 3, "recall": 1 / 2, "useful_silenced": 1 / 2}


def test_a_record_is_read_for_the_log_and_refused_where_it_contradicts_itself(tmp_path):
    found = counted(tmp_path / "log", TOKENS)
    write_json(tmp_path / "record" / counts.FILE, found)
    assert counts.of_run(tmp_path / "record") == found
    assert counts.of_run(tmp_path) is None
    with pytest.raises(RecordError):  # of another run
        counts.of_run(tmp_path / "record", "xyz")
    write_tokens(tmp_path / "left", TOKENS, left_out=3)
    with pytest.raises(RecordError):
        counts.of_run(tmp_path / "left")
    masks = found.model_dump()["masks"]
    more = {**masks[0], "tokens": [(2.0, 1.5, 0.0), NONE]}  # of 2 spurious and 1 useful
    twice = [masks[0], masks[0]]
    for wrong in ([more], [masks[0] | {"tau_p": 0.1}], [masks[0] | {"tokens": [NONE]}], twice):
        with pytest.raises(ValueError, match=r"silenced|entries"):
            counts.PlantedCounts.model_validate(found.model_dump() | {"masks": wrong})


def test_a_log_of_another_tau_p_has_no_counts(tmp_path):
    write_tokens(tmp_path, [replace(t, rare=t.rare and t.entropy < 0.3) for t in TOKENS], tau_p=0.0002)
    found = counts.of_run(tmp_path)
    assert found is not None
    assert (found.rare, found.masks, found.of_mask(S2T)) == ([], [], {})
