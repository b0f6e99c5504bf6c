"""Hours and disk of a stage, worked out by hand, and the paper's own budget."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stapo_repro import labels, paper
from stapo_repro.run import cost
from stapo_repro.run.cost import MACHINES
from stapo_results.schema import Resumption, Run
from stapo_results.shapes import KNOWN
from stapo_results.store import read_json, write_json
from stapo_results.throughput import CARDS, VALIDATION, Step, lengths_of

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "results" / "records"
P = {"qwen3-1.7b": 1_720_574_976, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200}
EIGHT = MACHINES["8gpu"]


# what it starts from


def test_models_are_those_that_are_trained() -> None:
    models = paper.budget()["models"]
    assert {size: cost.shape_of(size).parameters for size in models} == P
    for size, model in models.items():
        text = (ROOT / "training" / "stapo_training" / "configs" / "size" / f"{size}.yaml").read_text()
        overlay = yaml.safe_load(text)
        assert overlay["run"]["model_revision"] == model["revision"]
        assert overlay["actor_rollout_ref"]["model"]["path"] == model["id"]
    assert {m["id"] for m in models.values()} == set(KNOWN)


@pytest.mark.slow
def test_settings_and_machines_are_those_of_the_trainings() -> None:
    from stapo_training.methods import selector_from
    from stapo_training.start.configuration import compose

    for name, machine in MACHINES.items():
        for size in labels.PAPER_SIZES:
            for method in (*labels.METHODS, "stapo-per-response"):
                c = compose([f"method={method}", f"size={size}", f"hardware={name}", "run.data=D", "run.out=O"])
                rollout, actor = c.actor_rollout_ref.rollout, c.actor_rollout_ref.actor
                assert (c.run.steps, c.trainer.save_freq) == (paper.setting("steps"), paper.setting("checkpoint_every"))
                assert (c.data.train_batch_size, rollout.n) == (paper.setting("prompts"), paper.setting("responses"))
                assert c.data.max_response_length == paper.setting("response_limit")
                assert c.trainer.nnodes * c.trainer.n_gpus_per_node == machine.gpus
                assert rollout.tensor_model_parallel_size == machine.tensor_parallel(size)
                assert c.actor_rollout_ref.model.enable_gradient_checkpointing
                assert rollout.max_num_seqs == 256  # Sampling.places
                selector = selector_from(c.actor_rollout_ref.selector)
                assert (selector.own_pass, actor.use_kl_loss) == cost.passes(method)
                assert actor.ppo_mini_batch_size * 4 == c.data.train_batch_size  # whose first needs no pass
                validation = len(c.run.validation_settings), c.trainer.test_freq, 30 * rollout.val_kwargs.n
                assert validation == (Step.settings, Step.every, VALIDATION)
                assert c.trainer.max_actor_ckpt_to_keep == cost.KEPT


# the formula, by hand


def step_of(size: str, *, parallel: int = 1, own_pass: float = 0.0, reference: bool = False) -> Step:
    """2,048 responses of 1,920 tokens, validated at both settings at every fifth step."""
    further = {"own_pass": own_pass, "reference": reference, "tensor_parallel": parallel}
    return Step(cost.shape_of(size), 2048, lengths_of(15_360), **further)


def test_a_training_by_hand() -> None:
    """8B on 8 H100."""
    found = cost.training("stapo", "qwen3-8b", EIGHT, 3000)
    assert found.hours == pytest.approx(3000 * step_of("qwen3-8b", own_pass=0.75).seconds(CARDS["H100"], 8) / 3600)
    assert found.gpus == 8
    # 12 bytes a parameter of 3 checkpoints, the best, the newest timed one, one being written; 3 GiB of logs; 2 bytes
    # of weights, of export
    assert found.disk == pytest.approx((6 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)
    kept = cost.training("stapo", "qwen3-8b", EIGHT, 3000, keep=4)
    assert kept.disk == pytest.approx((7 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)
    # of a hundred steps or fewer the last one's beside the newest timed one
    short = cost.training("stapo", "qwen3-8b", EIGHT, 60)
    assert short.disk == pytest.approx((2 * 12 + 4) * P["qwen3-8b"] / 2**30 + 3)
    assert [cost.real_training(keep).disk for keep in (0, 1, 20)] == [19.5, 19.5, 124]


@pytest.mark.parametrize(
    ("method", "own_pass", "reference"),
    [
        ("stapo", 0.75, False),
        ("justrl", 0, False),
        ("entropy20", 0.75, False),
        ("grpo", 0, True),
        ("stapo-random-q0.5", 0.75, False),
        ("stapo-wrong", 0.75, False),
    ],
)
def test_the_passes_of_a_method_on_64_cards(method: str, own_pass: float, reference: bool) -> None:
    found = cost.training(method, "qwen3-14b", MACHINES["64gpu"], 3000)
    step = step_of("qwen3-14b", parallel=2, own_pass=own_pass, reference=reference)
    assert found.hours == pytest.approx(3000 * step.seconds(CARDS["H20"], 64) / 3600)


def test_an_evaluation_by_hand() -> None:
    """1.7B on 8 H100 at one setting. Samples: 30 x 32 of AIME24, AIME25 and AMC23's 40 x 32; 500, 272 and 674 x 4."""
    found, alone = (cost.evaluation("stapo", "qwen3-1.7b", EIGHT, 1, judged=judged) for judged in (True, False))
    count = 32 * 100 + 4 * 1446
    sampling = Step(cost.shape_of("qwen3-1.7b"), count, lengths_of(20_480)).sampling(CARDS["H100"], 8)
    judge = 2 * 3_085_938_688 * count * 4096 / (989e12 * 0.5)
    assert (found.hours, alone.hours) == pytest.approx(((sampling + judge) / 3600, sampling / 3600))
    assert found.disk == pytest.approx(count * 2560 * 5 / 2**30)


def test_the_papers_budget_is_beside_what_it_states() -> None:
    """64 H20, 5 to 7 days for a training on average: the formula gives two fifths more than the 7."""
    whole = {size: cost.training("stapo", size, MACHINES["64gpu"], 3000) for size in P}
    days = {size: round((estimate.hours or 0) / 24, 1) for size, estimate in whole.items()}
    assert days == {"qwen3-1.7b": 5.3, "qwen3-8b": 11.1, "qwen3-14b": 13.4}


# measured


def _recorded(root: Path, wall: float, **changes: object) -> None:
    base = read_json(RECORDS / "miniature" / "train" / "stapo-s0" / "run.json", Run)
    config = base.config | {"run": base.config["run"] | {"size": "mini", "method": "stapo"} | changes}
    known = base.model_copy(update={"config": config, "wall_seconds": wall})
    write_json(root / f"{wall}" / "run.json", known)
    again = Resumption(at="", start="", code_commit="", code_dirty="")  # what did not run at once measures nothing
    for name, more in (("resumed", {"resumptions": [again]}), ("interrupted", {"status": "interrupted"})):
        write_json(root / f"{wall}-{name}" / "run.json", known.model_copy(update={"wall_seconds": 1.0, **more}))


def test_the_median_of_recorded_trainings_of_the_method_by_hand(tmp_path: Path) -> None:
    for wall in (200.0, 300.0, 260.0):
        _recorded(tmp_path, wall, steps=20)
    _recorded(tmp_path, 9.0, steps=2)  # a try measures nothing
    _recorded(tmp_path, 900.0, steps=20, method="grpo")
    _recorded(tmp_path, 901.0, steps=20, size="qwen3-8b")
    known = cost.recorded([tmp_path])
    assert cost.on_cpu(known, "train", "stapo", 30).hours == pytest.approx(30 * 13 / 3600)
    assert cost.on_cpu(known, "train", "justrl", 30).hours == pytest.approx(30 * 14 / 3600)  # of all four
    assert cost.on_cpu({}, "train", "stapo", 30).hours is None  # and no number is made up
