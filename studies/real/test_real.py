"""The claims name methods of the registry, fields that a training records, and ranges; a page by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic_records as synthetic
import token_logs as logs

from stapo_repro.read import TrainingRun, load_cells, load_training_runs
from stapo_repro.tokens.log import load
from stapo_results import token_log
from stapo_results.schema import Cell, ProblemResult, StepMetrics
from stapo_results.statistics import Number
from stapo_results.store import read
from stapo_training.methods import methods
from studies.command import RECORDS
from studies.real import accuracies, claims, engines, judge, page
from studies.real.claims import TrainingClaim


def test_claims_name_methods_fields_and_ranges() -> None:
    logged = {
        key for step in read(RECORDS / "miniature/train/stapo-s0/metrics.jsonl", StepMetrics) for key in step.values
    }
    for claim in claims.load().claims:
        assert set(claim.methods) <= set(methods()), claim.id
        assert set(claim.measure) <= logged | {"accuracy math500 t1.0", "accuracy math500 t0.7"}, claim.id
        assert claim.low < claim.high, claim.id
        assert (claim.of == "paired") == claim.measure[0].startswith("accuracy"), claim.id
        assert not claim.compared or len(claim.methods) == 2, claim.id


def test_the_listed_prompts_are_those_of_the_trainings() -> None:
    """A log has rare tokens alone: together they name most of the 68."""
    listed = Path(page.__file__).with_name("prompts.txt").read_text().split()
    trained = set[str]()
    for folder in (RECORDS / "real/train").iterdir():
        log = token_log.read(folder)
        assert log is not None
        trained |= {*log.tokens["prompt_id"].to_pylist()}
    assert (len({*listed}), len(trained) > 60, trained - {*listed}) == (68, True, set())


def claim(
    of: str = "all", measure: tuple[str, ...] = ("a",), low: float = 1.0, high: float = 2.0, **more
) -> TrainingClaim:
    given = {"id": "x", "methods": ("stapo", "justrl"), "place": "", "claim": "", "contradicted_by": "", "margin": 0.5}
    return TrainingClaim.model_validate({**given, "of": of, "measure": measure, "low": low, "high": high, **more})


def run(method: str, steps: int = 30, status: str = "done", **values: Callable[[int], float]) -> TrainingRun:
    """A training whose fields are functions of the step."""
    logged = [StepMetrics(step=i, values={k: f(i) for k, f in values.items()}) for i in range(1, steps + 1)]
    return TrainingRun(method, claims.SIZE, 0, "", status, logged)


def test_quantities_of_trainings_by_hand() -> None:
    runs = {"stapo": run("stapo", a=float, b=lambda i: 2.0), "justrl": run("justrl", a=lambda i: 5.0)}

    def found(c: TrainingClaim) -> list[float]:
        return [n.mean for n in claims.values(c, runs, []).values()]

    assert found(claim()) == [15.5, 5.0]
    assert found(claim("last")) == [28.0, 5.0]  # of steps 26 to 30
    assert found(claim("last - first")) == [25.0, 0.0]  # the first are steps 1 to 5: 3
    assert found(claim("last / first")) == [pytest.approx(28 / 3), 1.0]
    assert found(claim(measure=("a", "b")))[0] == 7.75
    assert found(claim(compared="-")) == [10.5]
    assert found(claim(compared="/")) == [3.1]
    for broken in (run("stapo", steps=29, a=float), run("stapo", status="interrupted", a=float)):
        runs["stapo"] = broken
        assert math.isnan(found(claim())[0])
        assert math.isnan(found(claim(compared="-"))[0])


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (Number(mean=1.0), "holds"),
        (Number(mean=2.4), "near"),
        (Number(mean=0.5), "fails"),
        (Number(), "not run"),
        (Number(mean=1.5, low=1.1, high=1.9), "holds"),
        (Number(mean=1.5, low=0.9, high=1.9), "undecided"),
        (Number(mean=2.5, low=2.1, high=2.9), "fails"),
    ],
)
def test_verdicts(number: Number, found: str) -> None:
    assert claims.verdict(claim(), number) == found


def evaluated(root: Path, method: str, *where_and_verdicts: Any, **more: Any) -> None:
    """A record of a size's base, or of a training's last step."""
    step = {} if method == "base" else {"step": claims.STEPS}
    synthetic.cell(root, method, *where_and_verdicts, **{"size": claims.SIZE, **step, **more})


def test_accuracies_are_paired_by_problem_with_the_base_or_the_other_method(tmp_path: Path) -> None:
    for method, verdicts in (("base", ["00"] * 10), ("stapo", ["11"] * 8 + ["00"] * 2), ("justrl", ["11"] * 10)):
        evaluated(tmp_path / method, method, "math500", "t1.0", verdicts)
    cells = load_cells([tmp_path])
    paired = {"of": "paired", "measure": ("accuracy math500 t1.0",)}
    assert [n.mean for n in claims.values(claim(**paired), {}, cells).values()] == [80.0, 100.0]
    assert [n.mean for n in claims.values(claim(**paired, compared="-"), {}, cells).values()] == [-20.0]


@pytest.mark.parametrize("changed", [{"step": 15}, {"max_tokens": 64}, {"grader": "ours rules 1"}])
def test_what_was_evaluated_otherwise_judges_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    evaluated(tmp_path / "base", "base", "math500", "t1.0", ["00"] * 10)
    evaluated(tmp_path / "stapo", "stapo", "math500", "t1.0", ["11"] * 8 + ["00"] * 2, **changed)
    one = claim(of="paired", measure=("accuracy math500 t1.0",), methods=("stapo",))
    assert not claims.values(one, {}, load_cells([tmp_path]))["stapo"].known


def test_the_page_has_a_claims_margin() -> None:
    (share,) = (line for line in claims.section([], []) if "silenced_share, all |" in line)
    assert "| 0.0003 to 0.003 | 0.0001 | stapo | 0 | not run |" in share


def test_accuracies_stand_beside_the_base_of_their_engine(tmp_path: Path) -> None:
    for place, method, engine, verdicts in (
        ("a", "base", "vllm", ["00"] * 10),
        ("b", "base", "hf", ["11"] * 5 + ["00"] * 5),
        ("c", "grpo", "hf", ["11"] * 8 + ["00"] * 2),
        ("d", "stapo", "other", ["11"] * 9 + ["00"]),
    ):
        ends = {"finish_reasons": {"stop": 15, "length": 5}} if place == "d" else {}
        evaluated(tmp_path / place, method, "amc23", "t0.7", verdicts, engine=engine, **ends)
    lines = accuracies.section([c for place in "abcd" for c in load_cells([tmp_path / place])])
    assert [line for line in lines if line.startswith("| ")][2:] == [
        "| Base model |  | hf | not run | not run | not run | 50.0 (12.3 to 87.7); cut 0.0 |",
        "| GRPO | 0 | hf | not run | not run | not run | 80.0, +30.0 (-4.6 to 64.6); cut 0.0 |",
        "| STAPO | 0 | other | not run | not run | not run | 90.0, no base; cut 25.0 |",
        "| Base model |  | vllm | not run | not run | not run | 0.0 (0.0 to 30.8); cut 0.0 |",
    ]


def test_accuracy_is_paired_with_the_base_of_the_same_engine(tmp_path: Path) -> None:
    for place, method, engine, verdicts in (
        ("a", "base", "vllm 0.24.0 compiled", ["00"] * 10),
        ("b", "base", "hf", ["11"] * 5 + ["00"] * 5),
        ("c", "grpo", "hf", ["11"] * 8 + ["00"] * 2),
        ("d", "stapo", "vllm 0.24.0 compiled", ["11"] * 8 + ["00"] * 2),
    ):
        evaluated(tmp_path / place, method, "math500", "t1.0", verdicts, engine=engine)
    cells = [c for place in "abcd" for c in load_cells([tmp_path / place])]
    paired = claim(of="paired", measure=("accuracy math500 t1.0",), methods=("grpo", "stapo", "justrl"))
    assert [n.mean for n in claims.values(paired, {}, cells).values()] == [
        30.0,
        80.0,
        pytest.approx(math.nan, nan_ok=True),
    ]


def test_replies_of_a_judge_are_counted(tmp_path: Path) -> None:
    problems = [
        ProblemResult(problem_id="a", verdicts="110", rule="010", judged="c.x"),
        ProblemResult(problem_id="b", verdicts="000", rule="000", judged="xxi"),
    ]
    synthetic.cell(
        tmp_path, "base", "math500", "t0.7", ["110", "000"], problems=problems, no_answer=2, scored_by="rule+judge"
    )
    assert judge.section(load_cells([tmp_path]))[-2] == "| MATH500, t0.7 | 2 | 5 | 1 | 1 | 3 | 2 | 1 | 2 |"


def test_engines_agree_where_the_interval_holds_zero(tmp_path: Path) -> None:
    right = {"vllm": (["11"] * 10, ["10"] * 10), "hf": (["11"] * 10, ["10"] * 9 + ["00"])}
    for engine, (math500, amc23) in right.items():
        for benchmark, verdicts in (("math500", ["00"] * 10 if engine == "hf" else math500), ("amc23", amc23)):
            synthetic.cell(tmp_path / engine, "base", benchmark, "t1.0", verdicts, size=claims.SIZE, engine=engine)
    found = engines.compared(load_cells([tmp_path / "vllm"]), load_cells([tmp_path / "hf"]))
    assert [(p.difference.benchmark, p.which, p.agree) for p in found] == [
        ("amc23", "seed 0", True), ("math500", "seed 0", False)]  # fmt: skip
    assert found[1].difference.number.mean == 100
    assert engines.compared(load_cells([tmp_path / "vllm"]), []) == []
    again = Cell(
        method="base", size=claims.SIZE, train_seed=0, eval_seed=1, step="base", benchmark="amc23", setting="t1.0"
    )
    synthetic.cell(
        tmp_path / "hf" / "again", "base", "amc23", "t1.0", ["00"] * 10, size=claims.SIZE, engine="hf", cell=again
    )
    found = engines.compared(load_cells([tmp_path / "vllm"]), load_cells([tmp_path / "hf"]))
    assert [p.which for p in found] == ["seed 0", "seed 1", "together", "seed 0"]
    assert [p.difference.number.mean for p in found[:3]] == [5.0, 50.0, 27.5]  # of two draws each problem's mean
    assert engines.third_engine(found) == ""


@pytest.mark.parametrize(
    ("ours", "third", "said"),
    [
        (["11", "10"] * 6, ["00"] * 12, "vLLM and hf differ"),
        (["11", "10"] * 6, ["11", "10"] * 6, "the H200's draw stands alone"),
        (["00"] * 12, ["00"] * 12, "AMC23 stays open"),
        (["00"] * 12, ["11", "10"] * 6, "AMC23 stays open"),
    ],
)
def test_a_third_engine_decides_by_the_rule(tmp_path: Path, ours: list[str], third: list[str], said: str) -> None:
    """Of 12 problems the H200's draw has none right. A third engine above both was not foreseen: it decides nothing."""
    draws = {"vllm 0.24": [["00"] * 12], "hf": [ours, ours], "vllm 0.32.0": [third]}
    seed = 0
    for engine, of in draws.items():
        for verdicts in of:
            cell = Cell(
                method="base", size=claims.SIZE, train_seed=0, eval_seed=seed, step="base", benchmark="amc23",
                setting="t1.0",
            )  # fmt: skip
            synthetic.cell(
                tmp_path / f"{min(seed, 1)}" / f"{seed}", "base", "amc23", "t1.0", verdicts, size=claims.SIZE,
                engine=engine, cell=cell,
            )  # fmt: skip
            seed += 1
    found = engines.compared(load_cells([tmp_path / "0"]), load_cells([tmp_path / "1"]))
    assert [p.engines for p in found] == [
        ("vllm 0.24", "vllm 0.32.0"), *[("vllm 0.24", "hf")] * 3, *[("vllm 0.32.0", "hf")] * 3]  # fmt: skip
    assert said in engines.third_engine(found)


def test_statements_by_hand(tmp_path: Path) -> None:
    plus, seven = logs.ids("+")[0], logs.ids("7")[0]
    silenced = [{"token": plus if i == 2 else seven, "collision": 0.9} for i in range(4)]
    kept = [{"token": plus, "collision": 0.2 if i else 0.1, "entropy": 1.0, "silenced": False} for i in range(4)]
    rare = [logs.row(prompt_id=f"p{i % 4}", **of) for i, of in enumerate([*silenced, *kept])]
    common = {"rare": False, "silenced": False}
    others = [logs.row(**common, logprob=math.log(0.5), entropy=1.0, collision=0.3)] * 2
    others += [logs.row(**common, logprob=math.log(0.9), entropy=0.2, collision=0.82)] * 6
    said = page.statements(load(logs.write(tmp_path, rare, others, mode="on")))
    # norms: sqrt(1 - 2 p + sum of squares), with p = exp(-7) of rare tokens
    assert said[0][2:] == ["4 of 16 tokens, 25.0000 %", "base: no verdict"]
    assert said[1][2].startswith("1.378 against 1.083; of frequent tokens 0.548 and 0.141; ")
    assert [line[3] for line in said[1:4]] == ["holds", "does not hold", "holds for most"]
    assert said[3][2] == "by the lemma's sign it rises at 0.0 %, 0.0 %, 100.0 %, 100.0 % of the four"
    assert said[4][2].startswith("75.0 % (")
    assert [line[3] for line in said[4:]] == ["undecided"] * 2  # of four kept tokens none: at most 60 %


def test_the_page_shows_every_token_that_the_training_counted() -> None:
    run = RECORDS / "real/train/stapo-s0"
    of_two_updates = [
        s.values["actor/selector/silenced_tokens"] for s in read(run / "metrics.jsonl", StepMetrics) if s.step
    ]
    (training,) = load_training_runs([run])
    assert page.silenced(load(run), training)[0].startswith(
        f"## What STAPO silenced with seed 0: all {2 * sum(of_two_updates):.0f} of "
    )


def test_rare_tokens_of_a_committed_log() -> None:
    (run,) = load_training_runs([RECORDS / "miniature/train/stapo-s0"])
    (counts,) = [line for line in page.rare_tokens([run]) if line.startswith("| STAPO")]
    # results/tables/planted.md: 284 silenced, 342 rare planted tokens, which are 81.24 % of the rare
    name, steps, tokens, positive, rare, silenced, several = (c.strip() for c in counts.strip("| ").split(" | "))
    assert (name, steps, silenced) == ("STAPO, seed 0", "30", "284")
    assert int(rare) == round(342 / 0.8124) == 421
    assert round(100 * 344 / int(positive.replace(",", "")), 2) == 1.26  # the base rate of planted tokens
    assert int(tokens.replace(",", "")) > int(positive.replace(",", ""))
    assert several == "53 of 120"  # four mini-batches a step
