"""The planner: hours and disk worked out by hand, what is missing, and the paper's own budget."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_records as synthetic
import yaml

from stapo_repro import labels
from stapo_repro.planner import estimates, plan
from stapo_repro.planner.estimates import CPU, MACHINES, places
from stapo_repro.read import APART, load_cells, load_training_runs
from stapo_results.benchmarks import registry
from stapo_results.errors import RecordError
from stapo_results.schema import Run
from stapo_results.shapes import KNOWN
from stapo_results.store import read_json, write_json
from stapo_results.throughput import CARDS, VALIDATION, Sampling, Step, Update, lengths_of

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "results" / "records"
BUDGET = estimates.load()
P = {"qwen3-1.7b": 1_720_574_976, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200}
EIGHT = MACHINES["8gpu"]


def whole(root: Path, method: str, size: str, *, leave_out: int = 0, step: int = 3000, **changed) -> None:
    """Records of every benchmark and setting of a model at one step, but for the first so many."""
    for benchmark, setting in places("qwen3-8b")[leave_out:]:
        spec = registry()[benchmark]
        verdicts = ["1" * spec.samples] * spec.rows
        synthetic.cell(root, method, benchmark, setting, verdicts, size=size, step=step, **changed)


# what it starts from


def test_models_are_those_that_are_trained() -> None:
    assert {size: model.shape.parameters for size, model in BUDGET.models.items()} == P
    for size, model in BUDGET.models.items():
        text = (ROOT / "training" / "stapo_training" / "configs" / "size" / f"{size}.yaml").read_text()
        overlay = yaml.safe_load(text)
        assert overlay["run"]["model_revision"] == model.revision
        assert overlay["actor_rollout_ref"]["model"]["path"] == model.id
    assert {m.id for m in BUDGET.models.values()} == set(KNOWN) - {"HuggingFaceTB/SmolLM2-135M-Instruct"}


@pytest.mark.slow
def test_settings_and_machines_are_those_of_the_trainings() -> None:
    from stapo_training.methods import selector_from
    from stapo_training.run.configuration import compose

    s = BUDGET.settings
    for name, machine in MACHINES.items():
        for size in labels.PAPER_SIZES:
            for method in (*labels.METHODS, "stapo-per-response"):
                c = compose([f"method={method}", f"size={size}", f"hardware={name}", "run.data=D", "run.out=O"])
                rollout, actor = c.actor_rollout_ref.rollout, c.actor_rollout_ref.actor
                assert (c.run.steps, c.trainer.save_freq) == (s.steps.value, s.checkpoint_every.value)
                assert (c.data.train_batch_size, rollout.n) == (s.prompts.value, s.responses.value)
                assert c.data.max_response_length == s.response_limit.value
                assert c.trainer.nnodes * c.trainer.n_gpus_per_node == machine.gpus
                assert rollout.tensor_model_parallel_size == machine.tensor_parallel(size)
                assert bool(actor.use_kl_loss) == (method in estimates.WITH_REFERENCE)
                assert c.actor_rollout_ref.model.enable_gradient_checkpointing
                assert rollout.max_num_seqs == 256  # Sampling.places
                selector = selector_from(c.actor_rollout_ref.selector)
                assert (selector.selects and selector.plan == "two_pass") == machine.own_pass(method)
                validation = len(c.run.validation_settings), c.trainer.test_freq, 30 * rollout.val_kwargs.n
                assert validation == (Step.passes, Step.every, VALIDATION)
                assert c.trainer.max_actor_ckpt_to_keep == estimates.KEPT


# the formula, by hand


def step_of(size: str, *, parallel: int = 1, own_pass: bool = False, reference: bool = False) -> Step:
    """2,048 responses of 1,920 tokens, validated at both settings at every fifth step."""
    shape, lengths = BUDGET.models[size].shape, lengths_of(15_360)
    update = Update(shape, 2048, lengths, own_pass=own_pass, reference=reference)
    return Step(update, Sampling(shape, 2048, lengths, parallel))


def test_a_training_by_hand() -> None:
    """8B on 8 H100."""
    found = estimates.training("stapo", "qwen3-8b", EIGHT, "H100", 3000, ())
    assert found.hours == pytest.approx(3000 * step_of("qwen3-8b").seconds(CARDS["H100"], 8) / 3600)
    assert found.gpu_hours == pytest.approx(8 * (found.hours or 0))
    assert found.basis == "formula"
    # 3 checkpoints of 12 bytes a parameter and one being written, 3 GiB of logs, weights and export of 2 bytes each
    assert found.disk == pytest.approx((4 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)
    assert found.least == pytest.approx((2 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)
    kept = estimates.training("stapo", "qwen3-8b", EIGHT, "H100", 3000, (), keep=4)
    assert kept.disk == pytest.approx((5 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)


@pytest.mark.parametrize(
    ("method", "own_pass", "reference"),
    [("stapo", True, False), ("justrl", False, False), ("entropy20", True, False), ("grpo", False, True)],
)
def test_the_passes_of_a_method_on_64_cards(method: str, own_pass: bool, reference: bool) -> None:
    found = estimates.training(method, "qwen3-14b", MACHINES["64gpu"], "H20", 3000, ())
    step = step_of("qwen3-14b", parallel=2, own_pass=own_pass, reference=reference)
    assert found.hours == pytest.approx(3000 * step.seconds(CARDS["H20"], 64) / 3600)


def test_an_evaluation_by_hand() -> None:
    """AIME24 at one setting, 1.7B on 8 H100: 960 samples; the judge asked of each."""
    found = estimates.evaluation("stapo", "qwen3-1.7b", [("aime24", "t1.0")], EIGHT, "H100", ())
    sampling = Sampling(BUDGET.models["qwen3-1.7b"].shape, 960, lengths_of(20_480)).seconds(CARDS["H100"], 8)
    judge = 2 * 3_085_938_688 * 960 * 4096 / (989e12 * 0.5)
    assert found.hours == pytest.approx((sampling + judge) / 3600)
    assert found.disk == pytest.approx(960 * 2560 * 5 / 2**30)


def test_the_papers_budget_is_beside_what_it_states() -> None:
    """64 H20, 5 to 7 days for a training on average: the formula gives two fifths more than the 7."""
    days = {k: round(v, 1) for k, v in plan.paper_days().items()}
    assert days == {"qwen3-1.7b": 5.4, "qwen3-8b": 11.3, "qwen3-14b": 13.6}
    words = plan.paper_words()
    for part in ("5 to 7", "5.4", "11.3", "13.6", "10.1"):
        assert part in words


# measured before reckoned

H100 = {"gpus": ["NVIDIA H100 80GB HBM3, 81559 MiB"] * 8}


def _training_record(root: Path, size: str, wall: float, steps: int = 100) -> None:
    base = read_json(RECORDS / "miniature" / "train" / "stapo-s0" / "run.json", Run)
    config = base.config | {"run": base.config["run"] | {"size": size, "method": "stapo", "steps": steps}}
    config["trainer"] = base.config["trainer"] | {"nnodes": 1, "n_gpus_per_node": 8}
    values = {"config": config, "wall_seconds": wall, "hardware": H100}
    write_json(root / f"{size}-{wall}" / "run.json", base.model_copy(update=values))


def test_a_recorded_training_replaces_the_formula(tmp_path: Path) -> None:
    for wall in (20_000.0, 30_000.0, 25_000.0):
        _training_record(tmp_path, "qwen3-8b", wall)
    _training_record(tmp_path, "qwen3-8b", 900.0, steps=2)  # a try measures nothing
    known = estimates.recorded([tmp_path])
    found = estimates.training("stapo", "qwen3-8b", EIGHT, "H100", 3000, known)
    assert found.hours == pytest.approx(3000 * 250 / 3600)  # the median: 250 s a step
    assert found.basis == "measured"
    for size, machine, card in (
        ("qwen3-8b", EIGHT, "H200"), ("qwen3-14b", EIGHT, "H100"), ("qwen3-8b", MACHINES["64gpu"], "H100"),
    ):  # fmt: skip
        assert estimates.training("stapo", size, machine, card, 3000, known).basis == "formula"


def test_a_recorded_evaluation_replaces_the_formula(tmp_path: Path) -> None:
    """960 samples in 600 s on 8 cards: 0.625 s each."""
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["1" * 32] * 30, size="qwen3-8b", folder="e")
    base = read_json(RECORDS / "miniature" / "eval" / "stapo-s0" / "run.json", Run)
    config = base.config | {"size": "qwen3-8b", "replicas": 4, "tensor_parallel": 2}
    values = {"config": config, "wall_seconds": 600.0, "hardware": H100}
    write_json(tmp_path / "e" / "run.json", base.model_copy(update=values))
    known = estimates.recorded([tmp_path])
    found = estimates.evaluation("stapo", "qwen3-8b", [("math500", "t0.7")], EIGHT, "H100", known)
    assert found.hours == pytest.approx(2000 * 0.625 / 3600)
    assert found.basis == "measured"
    assert estimates.evaluation("stapo", "qwen3-8b", [("aime25", "t0.7")], EIGHT, "A100", known).basis == "formula"


def test_the_miniature_is_planned_from_its_records(tmp_path: Path) -> None:
    found = plan.build([("stapo", "mini")], [tmp_path])
    assert "not known" in plan.to_text(found)  # and no number is made up
    assert plan.build([("stapo", "mini")], [RECORDS], skip=APART).whole == ("stapo/mini",)
    known = estimates.recorded([RECORDS], APART)
    assert {r.method for r in known if r.kind == "train" and r.size == "mini"} == {*labels.METHODS}
    for kind, estimate in (
        ("train", estimates.training("stapo", "mini", CPU, "", estimates.STEPS["mini"], known)),
        ("eval", estimates.evaluation("stapo", "mini", places("mini"), CPU, "", known)),
    ):
        records = [read_json(RECORDS / "miniature" / kind / f"stapo-s{s}" / "run.json", Run) for s in range(5)]
        median = sorted(r.wall_seconds or 0 for r in records)[2]
        assert (estimate.hours, estimate.gpu_hours) == (pytest.approx(median / 3600), 0)


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("lacking", ["method", "size", "steps"])
def test_a_training_record_without_a_label_is_named(tmp_path: Path, lacking: str, empty: bool) -> None:
    _training_record(tmp_path, "qwen3-8b", 900.0)
    path = tmp_path / "qwen3-8b-900.0" / "run.json"
    run = read_json(path, Run)
    own = {k: v for k, v in run.config["run"].items() if k != lacking} | ({lacking: None} if empty else {})
    write_json(path, run.model_copy(update={"config": run.config | {"run": own}}))
    with pytest.raises(RecordError) as e:
        estimates.recorded([tmp_path])
    assert str(path) in e.value.what
    assert lacking in str(e.value.found)


def test_an_evaluation_record_without_a_label_is_named(tmp_path: Path) -> None:
    run = read_json(RECORDS / "miniature" / "eval" / "stapo-s0" / "run.json", Run)
    write_json(tmp_path / "a" / "run.json", run.model_copy(update={"config": {"size": "mini"}}))
    with pytest.raises(RecordError) as e:
        estimates.recorded([tmp_path])
    assert str(tmp_path / "a" / "run.json") in e.value.what


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
    stapo, grpo = lacks(tmp_path, ("stapo", "qwen3-8b"), ("grpo", "qwen3-8b"))
    assert stapo.nothing
    assert (grpo.training, grpo.evaluations) == (False, (("aime24", "t1.0"), ("aime24", "t0.7")))
    assert grpo.words() == "2/12 evaluations"
    assert lacks(tmp_path, ("stapo", "qwen3-8b"), seeds=(1,))[0].training  # another seed is another training


def test_a_training_whose_earlier_checkpoint_was_evaluated_is_not_done(tmp_path: Path) -> None:
    whole(tmp_path, "stapo", "qwen3-8b", step=100)
    assert lacks(tmp_path, ("stapo", "qwen3-8b"))[0].training


@pytest.mark.parametrize("verdicts", [["1" * 32] * 29, ["1" * 31 + "-"] * 30, ["1" * 31] * 30])
def test_a_part_of_a_benchmark_is_not_the_benchmark(tmp_path: Path, verdicts: list[str]) -> None:
    whole(tmp_path, "stapo", "qwen3-8b", leave_out=1)
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", verdicts, size="qwen3-8b", rows=30)
    (found,) = lacks(tmp_path, ("stapo", "qwen3-8b"))
    assert found.evaluations == (("aime24", "t1.0"),)


def test_benchmarks_of_an_earlier_checkpoint_are_missing_at_the_last(tmp_path: Path) -> None:
    """Twelve cells, six at each of two checkpoints: the table shows those of the last."""
    for i, (benchmark, setting) in enumerate(places("qwen3-8b")):
        spec, step = registry()[benchmark], 100 if i < 6 else 3000
        verdicts = ["1" * spec.samples] * spec.rows
        synthetic.cell(tmp_path, "stapo", benchmark, setting, verdicts, size="qwen3-8b", step=step)
    (found,) = lacks(tmp_path, ("stapo", "qwen3-8b"))
    assert (found.training, found.evaluations) == (False, places("qwen3-8b")[:6])


def test_a_finished_training_need_not_be_repeated(tmp_path: Path) -> None:
    synthetic.training_run(tmp_path, "stapo", size="qwen3-8b")
    synthetic.training_run(tmp_path, "justrl", size="qwen3-8b", status="interrupted")
    stapo, justrl = lacks(tmp_path, ("stapo", "qwen3-8b"), ("justrl", "qwen3-8b"))
    assert (stapo.training, justrl.training) == (False, True)


# the whole plan and what is printed


def test_the_plan_of_the_committed_records() -> None:
    found = plan.build(plan.all_cells(), [RECORDS], skip=APART)
    text = plan.to_text(found)
    assert max(map(len, text.splitlines())) <= plan.WIDTH
    assert len(found.rows) + len(found.whole) == 15
    for row in found.rows:
        assert row.gpu_hours == pytest.approx(sum(p.gpu_hours or 0 for p in row.parts))
        assert all(p.words for p in row.parts)
        line = next(x for x in text.splitlines() if x.startswith(f"{row.lacks.name} "))
        assert int(line.split()[-3].replace(",", "")) == pytest.approx(row.gpu_hours or 0, abs=0.51)


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    code = ("import sys; from stapo_repro.cli import _command\n"
            "_command(['plan', 'grpo/qwen3-14b', '--hardware', '64gpu'])\n"
            "assert not {'torch', 'verl', 'ray'} & set(sys.modules)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cell = next(line.split() for line in done.stdout.splitlines() if line.startswith("grpo/qwen3-14b"))
    step = step_of("qwen3-14b", parallel=2, reference=True)
    assert float(cell[4].replace(",", "")) == pytest.approx(3000 * step.seconds(CARDS["H20"], 64) / 3600, abs=0.06)
