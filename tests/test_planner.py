"""The planner: hours, disk and cost worked out by hand, what is missing, and the paper's own budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_records as synthetic
import yaml

from stapo_repro import labels
from stapo_repro.planner import budget, estimates, plan, render
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Run
from stapo_results.shapes import KNOWN
from stapo_results.store import read_json, write_json
from stapo_results.throughput import CARDS, Sampling, Update

ROOT = Path(__file__).resolve().parents[1]
BUDGET = budget.load()
P = {"qwen3-1.7b": 1_720_574_976, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200}
EIGHT = budget.MACHINES["8gpu"]


def whole(root: Path, method: str, size: str, *, leave_out: int = 0, **changed) -> None:
    """Records of every benchmark and setting of a model, but for the first so many."""
    for benchmark, setting in budget.places("qwen3-8b")[leave_out:]:
        spec = registry()[benchmark]
        verdicts = ["1" * spec.samples] * spec.rows
        synthetic.cell(root, method, benchmark, setting, verdicts, size=size, **changed)


# what it starts from


def test_parameters_are_those_of_the_models() -> None:
    assert {size: model.shape.parameters for size, model in BUDGET.models.items()} == P


def test_models_are_those_that_are_trained() -> None:
    for size, model in BUDGET.models.items():
        text = (ROOT / "training" / "stapo_training" / "configs" / "size" / f"{size}.yaml").read_text()
        overlay = yaml.safe_load(text)
        assert overlay["run"]["model_revision"] == model.revision
        assert overlay["actor_rollout_ref"]["model"]["path"] == model.id
    assert {m.id for m in BUDGET.models.values()} == set(KNOWN)


@pytest.mark.slow
def test_settings_and_machines_are_those_of_the_trainings() -> None:
    from stapo_training.run.configuration import compose

    s = BUDGET.settings
    for name, machine in budget.MACHINES.items():
        for size in labels.PAPER_SIZES:
            for method in labels.METHODS:
                c = compose([f"method={method}", f"size={size}", f"hardware={name}", "run.data=D", "run.out=O"])
                rollout, actor = c.actor_rollout_ref.rollout, c.actor_rollout_ref.actor
                assert (c.run.steps, c.trainer.save_freq) == (s.steps.value, s.checkpoint_every.value)
                assert (c.data.train_batch_size, rollout.n) == (s.prompts.value, s.responses.value)
                assert c.data.max_response_length == s.response_limit.value
                assert c.trainer.nnodes * c.trainer.n_gpus_per_node == machine.gpus
                assert rollout.tensor_model_parallel_size == machine.tensor_parallel(size)
                assert bool(actor.use_kl_loss) == (method in estimates.WITH_REFERENCE)
                assert c.actor_rollout_ref.model.enable_gradient_checkpointing
                assert rollout.max_num_seqs == Sampling(1, 1, 1, 1, 1).places


def test_a_whole_evaluation_is_the_papers() -> None:
    assert budget.samples(budget.places("qwen3-8b")) == 2 * 8984
    assert 12 * budget.samples(budget.places("qwen3-8b")) == 215_616


# the formula, by hand


def test_an_update_by_hand() -> None:
    """1e9 parameters, 100 sequences of 850 + 150 tokens: 1e5 tokens at 10 P = 1e15; 2 cards at 40 % of 500 TFLOP/s."""
    card = CARDS["H100"].__class__(500, 1, 80, "")
    assert Update(10**9, 100, 850).seconds(card, 2) == pytest.approx(1e15 / (2 * 500e12 * 0.4))
    assert Update(10**9, 100, 850, reference=True).passes == 12
    assert Update(10**9, 100, 850, checkpointing=False, own_pass=True).passes == 10


def test_sampling_by_hand() -> None:
    """4 cards, replicas of 2: 2 replicas of 500 sequences, 100 at once. Weights are read 5,000 + 4 x 1,000 times."""
    s = Sampling(10**9, 1000, sequences=1000, mean=1000, limit=5000, tensor_parallel=2, places=100)
    assert s.weight_reads(4) == 5000 + (500 / 100 - 1) * 1000
    weights, cache = 9000 * 2 * 1e9 / 2, 500 * 1000 * (150 + 500) * 1000 / 2
    card = CARDS["H100"].__class__(1, 2.0, 80, "")
    assert s.seconds(card, 4) == pytest.approx((weights + cache) / 1e12)
    # where all find a place at once the longest response alone decides
    assert Sampling(10**9, 1000, 100, 1000, 5000, places=100).weight_reads(1) == 5000


def test_a_training_by_hand() -> None:
    """8B on 8 H100: 2,048 sequences, 10 P x 2,048 x 2,070 tokens; 256 sequences a card, all side by side."""
    found = estimates.training(BUDGET, "stapo", "qwen3-8b", EIGHT, "H100", 3000, ())
    update = 10 * P["qwen3-8b"] * 2048 * 2070 / (8 * 989e12 * 0.4)
    weights = 15360 * 2 * P["qwen3-8b"]
    cache = 256 * 1920 * (150 + 960) * 36 * 2 * 8 * 128 * 2
    assert found.hours == pytest.approx(3000 * (update + (weights + cache) / (3.35e12 * 0.5)) / 3600)
    assert found.gpu_hours == pytest.approx(8 * (found.hours or 0))
    assert found.basis == "formula"
    # 30 checkpoints of 12 bytes a parameter, 3 GiB of logs, weights and export of 2 bytes each
    assert found.disk == pytest.approx((30 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)
    assert found.least == pytest.approx((2 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)
    # of those that are kept, one more is there while the next is written
    kept = estimates.training(BUDGET, "stapo", "qwen3-8b", EIGHT, "H100", 3000, (), keep=4)
    assert kept.disk == pytest.approx((5 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)


def test_an_evaluation_by_hand() -> None:
    """AIME24 at one setting, 1.7B on 8 H100: 960 samples, 120 a card, all side by side; the judge asked of each."""
    found = estimates.evaluation(BUDGET, "qwen3-1.7b", [("aime24", "t1.0")], EIGHT, "H100", ())
    weights = 20480 * 2 * P["qwen3-1.7b"]
    cache = 120 * 2560 * (150 + 1280) * 28 * 2 * 8 * 128 * 2
    judge = 2 * 3_085_938_688 * 960 * 4096 / (989e12 * 0.4)
    assert found.hours == pytest.approx(((weights + cache) / (3.35e12 * 0.5) + judge) / 3600)
    assert found.disk == pytest.approx(960 * 2560 * 5 / 2**30)


def test_the_papers_budget_is_within_what_it_states() -> None:
    """64 H20, 5 to 7 days for a training on average: 49.6, 221.6 and 284.3 s a step in the mean of the sizes."""
    check, machine = plan.paper_check(BUDGET), budget.MACHINES["64gpu"]
    assert check.machine == f"{machine.gpus} {machine.card}"
    assert (check.low, check.high) == (5, 7)
    assert {k: round(v, 1) for k, v in check.days.items()} == {"qwen3-1.7b": 1.7, "qwen3-8b": 7.7, "qwen3-14b": 9.9}
    assert check.within
    assert round(check.mean, 1) == 6.4


# measured before reckoned


def _training_record(root: Path, size: str, wall: float, **changed) -> None:
    base = read_json(ROOT / "results" / "records" / "miniature" / "train" / "stapo-s0" / "run.json", Run)
    config = base.config | {"run": base.config["run"] | {"size": size, "method": "stapo", "steps": 100}}
    config["trainer"] = base.config["trainer"] | {"nnodes": 1, "n_gpus_per_node": 8}
    values = {"config": config, "wall_seconds": wall, "hardware": {"gpus": ["NVIDIA H100 80GB HBM3, 81559 MiB"] * 8}}
    write_json(root / f"{size}-{wall}" / "run.json", base.model_copy(update=values | changed))


def test_a_recorded_training_replaces_the_formula(tmp_path: Path) -> None:
    for wall in (20_000.0, 30_000.0, 25_000.0):
        _training_record(tmp_path, "qwen3-8b", wall)
    known = estimates.recorded([tmp_path])
    found = estimates.training(BUDGET, "stapo", "qwen3-8b", EIGHT, "H100", 3000, known)
    assert found.hours == pytest.approx(3000 * 250 / 3600)  # the median: 250 s a step
    assert found.basis == "measured"
    for other in (
        estimates.training(BUDGET, "stapo", "qwen3-8b", EIGHT, "H200", 3000, known),
        estimates.training(BUDGET, "stapo", "qwen3-14b", EIGHT, "H100", 3000, known),
        estimates.training(BUDGET, "stapo", "qwen3-8b", budget.MACHINES["64gpu"], "H100", 3000, known),
    ):
        assert other.basis == "formula"


def test_a_try_of_two_steps_measures_nothing(tmp_path: Path) -> None:
    base = read_json(ROOT / "results" / "records" / "miniature" / "train" / "stapo-s0" / "run.json", Run)
    short = base.config | {"run": base.config["run"] | {"size": "qwen3-8b", "method": "stapo", "steps": 2},
                           "trainer": base.config["trainer"] | {"nnodes": 1, "n_gpus_per_node": 8}}  # fmt: skip
    _training_record(tmp_path, "qwen3-8b", 900.0, config=short)
    assert (
        estimates.training(BUDGET, "stapo", "qwen3-8b", EIGHT, "H100", 3000, estimates.recorded([tmp_path])).basis
        == "formula"
    )


def test_a_recorded_evaluation_replaces_the_formula(tmp_path: Path) -> None:
    """960 samples of 1,000 tokens in 600 s on 4 of 8 cards: 400 tokens/s a card."""
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["1" * 32] * 30, size="qwen3-8b", mean_response_tokens=1000.0,
                   folder="e")  # fmt: skip
    base = read_json(ROOT / "results" / "records" / "miniature" / "eval" / "stapo-s0" / "run.json", Run)
    config = base.config | {"size": "qwen3-8b", "replicas": 2, "tensor_parallel": 2}
    values = {"config": config, "wall_seconds": 600.0, "hardware": {"gpus": ["NVIDIA H100 80GB HBM3, 81559 MiB"] * 8}}
    write_json(tmp_path / "e" / "run.json", base.model_copy(update=values))
    found = estimates.evaluation(
        BUDGET, "qwen3-8b", [("aime25", "t0.7")], EIGHT, "H100", estimates.recorded([tmp_path])
    )
    assert found.hours == pytest.approx(960 * 1000 / (400 * 8) / 3600)
    assert found.basis == "measured"
    # the length is known for any card, the speed is not
    other = estimates.evaluation(
        BUDGET, "qwen3-8b", [("aime25", "t0.7")], EIGHT, "A100", estimates.recorded([tmp_path])
    )
    assert other.basis == "formula"
    assert "960 samples x 1000 tokens (measured: mean of 1 records)" in other.words[0]


# what is missing


def lacks(root: Path, *asked: tuple[str, str], seeds: tuple[int, ...] = (0,)) -> list[plan.Lacking]:
    return plan.lacking(load_cells([root]), load_training_runs([root]), asked, seeds)


def test_without_records_everything_is_missing(tmp_path: Path) -> None:
    stapo, base = lacks(tmp_path, ("stapo", "qwen3-8b"), ("base", "qwen3-8b"))
    assert (stapo.training, len(stapo.evaluations)) == (True, 12)
    assert (base.training, len(base.evaluations)) == (False, 12)
    assert stapo.words() == "training + evaluation"


def test_a_whole_model_lacks_nothing_and_a_part_is_named(tmp_path: Path) -> None:
    whole(tmp_path, "stapo", "qwen3-8b")
    whole(tmp_path, "grpo", "qwen3-8b", leave_out=2)
    stapo, grpo, second = lacks(tmp_path, ("stapo", "qwen3-8b"), ("grpo", "qwen3-8b")) + lacks(
        tmp_path, ("stapo", "qwen3-8b"), seeds=(1,)
    )
    assert stapo.nothing
    assert (grpo.training, grpo.evaluations) == (False, (("aime24", "t1.0"), ("aime24", "t0.7")))
    assert grpo.words() == "2/12 evaluations"
    assert second.training  # another seed is another training


@pytest.mark.parametrize("verdicts", [["1" * 32] * 29, ["1" * 31 + "-"] * 30, ["1" * 31] * 30])
def test_a_part_of_a_benchmark_is_not_the_benchmark(tmp_path: Path, verdicts: list[str]) -> None:
    whole(tmp_path, "stapo", "qwen3-8b", leave_out=1)
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", verdicts, size="qwen3-8b", rows=30)
    (found,) = lacks(tmp_path, ("stapo", "qwen3-8b"))
    assert found.evaluations == (("aime24", "t1.0"),)


def test_a_finished_training_need_not_be_repeated(tmp_path: Path) -> None:
    synthetic.training_run(tmp_path, "stapo", size="qwen3-8b")
    synthetic.training_run(tmp_path, "justrl", size="qwen3-8b", status="interrupted")
    stapo, justrl = lacks(tmp_path, ("stapo", "qwen3-8b"), ("justrl", "qwen3-8b"))
    assert (stapo.training, justrl.training) == (False, True)


# the whole plan and what is printed


def test_the_plan_of_the_committed_records() -> None:
    found = plan.build(plan.all_cells(), [ROOT / "results" / "records"], skip=("ablation",), price=2.0)
    text = render.to_text(found)
    assert max(map(len, text.splitlines())) <= render.WIDTH
    assert len(found.rows) + len(found.whole) == 15
    for row in found.rows:
        assert row.gpu_hours == pytest.approx(sum(p.gpu_hours or 0 for p in row.parts))
        assert all(p.words for p in row.parts)
        assert row.lacks.name in text
    assert "Qwen3-1.7B 1.7, Qwen3-8B 7.7, Qwen3-14B 9.9 days, 6.4 in the mean" in " ".join(text.split())


def test_cost_of_training_and_evaluation_apart() -> None:
    """A wall hour of eight cards at 2.5 is 20."""
    found = plan.build([("base", "qwen3-8b"), ("stapo", "qwen3-8b")], [], price=2.5)
    _, stapo = found.rows
    assert stapo.training
    assert stapo.evaluation
    train, test = 20 * (stapo.training.hours or 0), 20 * (stapo.evaluation.hours or 0)
    lines = [line.split() for line in render.to_text(found).splitlines()]
    at = lines.index(["cost", "training", "evaluation", "both"])
    costs = {line[0]: [int(x.replace(",", "")) for x in line[-3:] if x != "-"] for line in lines[at + 1 : at + 4]}
    assert costs["stapo/qwen3-8b"] == [round(train), round(test), round(train + test)]
    assert costs["base/qwen3-8b"][0] == costs["base/qwen3-8b"][1]  # it has no training
    assert costs["all,"] == [round(train), round(2 * test), round(train + 2 * test)]
    assert "--price" in render.to_text(plan.build([("stapo", "qwen3-8b")], []))


def test_formulas_are_shown_where_they_are_asked_for() -> None:
    found = plan.build([("stapo", "qwen3-8b")], [])
    assert "40% of 989 TFLOP/s x 8 H100" in " ".join(render.to_text(found).split())
    assert "989 TFLOP/s x 8" not in render.to_text(found, formulas=False)


def test_the_miniature_is_planned_from_its_records(tmp_path: Path) -> None:
    found = plan.build([("stapo", "mini")], [tmp_path])
    assert "not known" in render.to_text(found)  # and no number is made up
    records = ROOT / "results" / "records"
    assert plan.build([("stapo", "mini")], [records], skip=("ablation",)).whole == ("stapo/mini",)
    known = estimates.recorded([records], ("ablation",))
    train = estimates.miniature("train", "stapo", known)
    assert train.hours == pytest.approx(
        (read_json(records / "miniature/train/stapo-s0/run.json", Run).wall_seconds or 0) / 3600
    )
    assert train.gpu_hours == 0


def test_a_price_below_0_is_refused() -> None:
    with pytest.raises(BadInput):
        plan.build([("stapo", "qwen3-8b")], [], price=-1)


def test_a_budget_that_is_not_one(tmp_path: Path) -> None:
    good = json.loads((ROOT / "results" / "paper" / "budget.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(good | {"days": 3}))
    with pytest.raises(RecordError, match=r"a\.json"):
        budget.load(tmp_path / "a.json")
    with pytest.raises(BadInput):
        budget.load(tmp_path / "b.json")


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stapo_repro.cli", "plan", "grpo/qwen3-14b", "--hardware", "64gpu", "--price", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cell = next(line.split() for line in done.stdout.splitlines() if line.startswith("grpo/qwen3-14b"))
    # 12 P x 2,048 x 2,070 tokens on 64 H20 and what sampling takes (119.0 s), 3,000 times
    update = 12 * P["qwen3-14b"] * 2048 * 2070 / (64 * 148e12 * 0.4)
    assert float(cell[4].replace(",", "")) == pytest.approx(3000 * (update + 119.01) / 3600, abs=0.06)


def test_it_needs_no_torch() -> None:
    code = ("import sys; from stapo_repro.commands.plan import Plan; Plan().run(); "
            "assert not {'torch', 'verl', 'ray'} & set(sys.modules)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).returncode == 0
