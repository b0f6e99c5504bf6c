"""The trainer's own parts on made-up batches: ids, the buffer's order, validation, stop tokens, dropout."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from stapo_results.errors import RunFailed


def _trainer() -> Any:
    from stapo_training.verl_ext.trainer import StapoTrainer

    made: Any = object.__new__(StapoTrainer)
    made.global_steps, made._fetched = 7, (0, 0)
    made.config = OmegaConf.create({"algorithm": {"filter_groups": None}})
    return made


def test_prompts_fetched_one_by_one_within_a_step_have_different_ids() -> None:
    from verl.utils import tensordict_utils as tu

    trainer = _trainer()
    prompt = np.array([[{"role": "user", "content": "1+1"}]], dtype=object)
    trainer.train_dataloader_it = iter([{"raw_prompt": prompt} for _ in range(4)])
    ids = [tu.get(trainer._fetch_one_gen_batch(), "uid") for _ in range(3)]
    trainer.global_steps = 8
    ids.append(tu.get(trainer._fetch_one_gen_batch(), "uid"))
    found = [str(x[0]) for x in ids]
    assert found == ["00000007-000000", "00000007-000001", "00000007-000002", "00000008-000000"]


def test_dynamic_sampling_ends_when_no_prompt_has_both_right_and_wrong_responses() -> None:
    trainer = _trainer()
    trainer.config = OmegaConf.create(
        {"algorithm": {"filter_groups": {"enable": True}}, "data": {"train_batch_size": 2}, "run": {"out": "OUT"}}
    )
    trainer.train_dataset = range(3)
    prompt = np.array([[{"role": "user", "content": "1+1"}]], dtype=object)
    trainer.train_dataloader_it = iter([{"raw_prompt": prompt} for _ in range(9)])
    for _ in range(5):
        trainer._fetch_one_gen_batch()
    with pytest.raises(RunFailed) as caught:
        trainer._fetch_one_gen_batch()
    assert "6 prompts" in str(caught.value.found)
    # another value of the key needs another folder; this one's checkpoint can be exported
    assert "stapo-train export --checkpoint OUT" in str(caught.value.next_step)


def test_a_validation_sample_that_failed_counts_as_wrong_and_is_counted() -> None:
    """6 right of 8 that were asked for, of which 2 failed; and a data source of which nothing came back."""
    trainer = _trainer()
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"val_kwargs": {"n": 4}}}})
    expected = {("one", "a"): 4, ("one", "b"): 4, ("other", "c"): 4}
    found = trainer._val_metrics_update(["one"] * 6, ["a"] * 6, {"acc": [True] * 6}, [], expected_acc_counts=expected)
    assert found == {"val-core/one/acc/mean@4": 0.75, "val-core/other/acc/mean@4": 0.0, "failed_validation": 6.0}


def test_both_settings_are_validated_under_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from stapo_training.folder import alarms
    from stapo_training.folder.training_folder import TrainingFolder

    trainer = _trainer()
    trainer.global_steps, trainer.folder = 0, TrainingFolder(tmp_path)
    trainer._watch, trainer._limits, trainer._resumed_at = alarms.Watch(), alarms.AlarmConfig(), 0
    trainer._silenced_reference = None
    trainer.config = OmegaConf.create({"run": {"validation_settings": ["t1.0", "t0.7"]}})
    trainer.agent_loop_manager = SimpleNamespace(setting="")
    found = {"": (0.25, 0.0), "t0.7": (0.5, 3.0)}  # accuracy and failed samples of a pass of veRL's
    names = ("val-core/aime24/acc/mean@32", "failed_validation")
    one_pass = lambda self: dict(zip(names, found[self.agent_loop_manager.setting], strict=True))  # noqa: E731
    monkeypatch.setattr(PPOTrainerSync, "_validate", one_pass)
    failed = {"failed_validation": 3.0}
    assert trainer._validate() == {names[0]: 0.25, "val-t0.7/aime24/acc/mean@32": 0.5} | failed
    assert trainer.folder.steps[0].values == {"accuracy": 0.25, "accuracy_t0.7": 0.5} | failed
    assert [(a.step, a.kind) for a in trainer.folder.alarms] == [(0, "failed_validation")]
    assert trainer.agent_loop_manager.setting == ""


def test_the_trainer_judges_the_difference_that_it_logs_among_the_times(tmp_path: Path) -> None:
    from stapo_training.folder import alarms, step_metrics
    from stapo_training.folder.training_folder import TrainingFolder

    trainer = _trainer()
    trainer.folder, trainer._silenced_reference = TrainingFolder(tmp_path), None
    trainer._watch, trainer._limits, trainer._resumed_at = alarms.Watch(), alarms.AlarmConfig(), 0
    numbers = step_metrics.split({"training/rollout_probs_diff_mean": 0.03})
    trainer._raise_alarms(1, numbers)
    trainer.folder.log_step(1, numbers.values, numbers.times)
    trainer._resumed_at = 1
    trainer._watch = alarms.Watch()
    trainer._remember()  # the alarm is on, and does not begin again
    trainer._raise_alarms(2, numbers)
    assert [(a.step, a.kind) for a in trainer.folder.alarms] == [(1, "rollout_mismatch")]


def test_a_run_that_is_stopped_says_where_it_goes_on() -> None:
    from stapo_training.folder.alarms import Alarm
    from stapo_training.verl_ext.trainer import stopped_by

    broken, collapse = (Alarm(step=2, kind=kind, line="") for kind in ("rollout_broken", "entropy_collapse"))
    for fatal, checkpoint, place, another in (
        ([broken], None, "from the start", True),
        ([collapse, broken], Path("global_step_1"), "from global_step_1", True),
        ([collapse], Path("global_step_2"), "from this step", False),
    ):
        advice = str(stopped_by(fatal, checkpoint).next_step)
        assert (place in advice, "another run.out" in advice) == (True, another)


@pytest.mark.parametrize("killed", [True, False])
def test_a_worker_that_ended_by_its_own_error_is_not_said_to_lack_memory(monkeypatch: Any, killed: bool) -> None:
    from ray.exceptions import ActorDiedError, RayTaskError

    from stapo_training.verl_ext import waiting

    monkeypatch.setattr(waiting, "_alive", lambda: {"node": "127.0.0.1"})
    raised = ValueError("Please don't set ROCR_VISIBLE_DEVICES")
    error = ActorDiedError(None if killed else RayTaskError("__init__", "ValueError: ROCR_VISIBLE_DEVICES", raised))
    with pytest.raises(RunFailed) as caught, waiting.watched("COMMAND"):
        raise error
    advice = str(caught.value.next_step)
    assert ("memory" in advice, "COMMAND" in advice) == (killed, True)
    assert ("ROCR_VISIBLE_DEVICES" in str(caught.value.found)) == (not killed)


@pytest.mark.parametrize("within_an_actor", [False, True])
def test_a_process_that_ray_ends_for_memory_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, within_an_actor: bool
) -> None:
    from ray.exceptions import OutOfMemoryError, RayTaskError

    from stapo_training.verl_ext import waiting

    monkeypatch.setattr(waiting, "_alive", lambda: {"node": "127.0.0.1"})
    error = OutOfMemoryError("2 worker(s) were killed due to the node running low on memory\nOOM kill reason")
    carried = RayTaskError("generate", "ray::Worker.generate()\nOutOfMemoryError", error).as_instanceof_cause()
    with pytest.raises(RunFailed) as caught, waiting.watched("COMMAND"):
        raise carried if within_an_actor else error
    assert caught.value.found == "2 worker(s) were killed due to the node running low on memory"
    assert "COMMAND" in str(caught.value.next_step)


def test_a_checkpoint_that_lacks_a_ranks_file_names_the_shared_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the disk, which has room."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from stapo_training.folder.training_folder import TrainingFolder

    trainer = _trainer()
    trainer.folder, trainer._save_due, trainer.stop = TrainingFolder(tmp_path), True, ""
    trainer.config = OmegaConf.create({"run": {"save_minutes": None}, "trainer": {"save_freq": 100}})
    actor = tmp_path / "checkpoints" / "global_step_7" / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_2_rank_0.pt").write_bytes(b"x")
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: None)  # the other rank wrote elsewhere
    with pytest.raises(RunFailed) as caught:
        trainer._save(7, [])
    assert "docs/cluster.md" in str(caught.value.next_step)


@pytest.fixture
def saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer of veRL's that writes empty checkpoints; the last one was made at 100 s."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from stapo_training.folder.training_folder import TrainingFolder

    made = _trainer()
    made.config = OmegaConf.create({"run": {"save_minutes": 60, "keep_best": True}, "trainer": {"save_freq": 100}})
    made.folder, made._save_due, made.stop, made._keep = TrainingFolder(tmp_path), False, "", None
    made._saved_at = 100.0
    folder = lambda trainer: tmp_path / "checkpoints" / f"global_step_{trainer.global_steps}"  # noqa: E731
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: folder(self).mkdir(parents=True))
    return made


def test_a_checkpoint_is_due_when_the_last_one_is_an_hour_old(saving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stapo_training.verl_ext.trainer import time

    for saving.global_steps, now in ((1, 3699.0), (2, 3700.0), (3, 7299.0)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        saving._save(saving.global_steps, [])
    assert [c.step for c in saving.folder.whole_checkpoints()] == [2]


def test_a_step_that_may_be_broken_is_not_saved_and_any_other_that_ends_the_run_is(saving: Any) -> None:
    from stapo_training.folder.alarms import UNSAVED, Alarm
    from stapo_training.verl_ext.trainer import time

    for saving.global_steps, kind in enumerate((*sorted(UNSAVED), "entropy_collapse"), start=1):
        saving._save_due, saving._saved_at = kind in UNSAVED, time.monotonic()  # the alarm alone saves the last one
        saving._save(saving.global_steps, [Alarm(step=saving.global_steps, kind=kind, line="")])
        assert bool(saving.folder.whole_checkpoints()) == (kind == "entropy_collapse")


def test_a_steps_metrics_are_on_disk_before_its_checkpoint_and_count_the_responses_that_failed(
    saving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight responses that were asked for five came, and one row is filled up."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from stapo_training.folder import alarms
    from stapo_training.verl_ext import trainer as module

    saving.config = OmegaConf.create({
        "data": {"train_batch_size": 4, "max_response_length": 9},
        "actor_rollout_ref": {"rollout": {"n": 2}, "token_log": {"watch": [], "useful": []}},
    })  # fmt: skip
    saving._watch, saving._limits, saving._resumed_at = alarms.Watch(), alarms.AlarmConfig(), 0
    saving._silenced_reference = None
    saving._stops, saving._old_policy, saving._step_began, saving._step_seconds = [], True, 0.0, []
    saving.total_training_steps = 9
    monkeypatch.setattr(module, "token_numbers", lambda *_: {})
    monkeypatch.setattr(PPOTrainerSync, "_compute_metrics", lambda *_, **__: None)
    saving._write_status = lambda: None
    before = []
    saving._save = lambda step, _: before.append((step, saving.folder.steps[-1].values["failed_rollouts"]))
    batch = SimpleNamespace(tags=[{}] * 5 + [{"is_padding": True}])
    saving._compute_metrics(batch, {}, {}, global_steps=7, epoch=0)
    assert before == [(7, 3.0)]
    assert [(a.step, a.kind) for a in saving.folder.alarms] == [(7, "failed_rollouts")]


def test_statistics_of_the_old_policy_are_the_current_ones_in_a_steps_first_mini_batch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stapo_training.verl_ext import engine
    from stapo_training.verl_ext.mini_batch import TrainedStep

    asked = []

    def select(_: object, *, old_is_current: bool) -> tuple[None, SimpleNamespace, dict]:
        asked.append(old_is_current)
        return None, SimpleNamespace(keep_N=None), {}

    monkeypatch.setattr(engine, "RankTokens", lambda *_: SimpleNamespace(response_N=None, offsets=None))
    monkeypatch.setattr(engine, "MiniBatchSelection", lambda *_: SimpleNamespace(select=select))
    monkeypatch.setattr(engine, "set_values", lambda *_: None)
    monkeypatch.setattr(engine, "get_device_id", lambda: "cpu")
    monkeypatch.setattr(engine._VeRLEngine, "forward_backward_batch", lambda *_: None)
    ours = object.__new__(engine.SelectingEngine)
    ours.selector, ours.get_data_parallel_group = SimpleNamespace(selects=True), lambda: None
    for old_is_current in (True, False):
        ours.now = TrainedStep(number=7, old_is_current=old_is_current)
        for _ in range(3):
            ours.forward_backward_batch({"response_mask": None}, None)
    assert asked == [True, False, False] + [False] * 3


@pytest.fixture
def buffer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The buffer over a queue that answers what the test puts into `buffer.queue`."""
    from verl.trainer.ppo.v1 import replay_buffer

    from stapo_training.verl_ext.waiting import OrderedReplayBuffer

    made: Any = OrderedReplayBuffer(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        train_batch_size=2,
        gen_batch_size=1,
    )
    made.queue, made.problems = {}, {}
    monkeypatch.setattr(replay_buffer.tq, "kv_list", lambda *_: dict.fromkeys(("train", "val"), made.queue))
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda **_: None)
    return made


def _group(buffer: Any, uid: str, status: str) -> None:
    buffer.queue[uid] = {"is_prompt": True, "status": status, "global_steps": 7}
    for sample in (1, 0):
        buffer.queue[f"{uid}_{sample}_0"] = {"status": "success", "global_steps": 7}


def test_of_more_prompts_than_needed_the_first_that_were_asked_for_are_trained_in_their_order(buffer: Any) -> None:
    for row in (5, 3, 9, 1):
        _group(buffer, f"00000007-{row:06d}", "finished")
    batch, _ = buffer.sample(global_steps=7, partition_id="train", batch_size=2)
    assert batch.keys == [f"00000007-{row:06d}_{sample}_0" for row in (1, 3) for sample in (0, 1)]


@pytest.mark.parametrize("partition", ["train", "val"])
def test_a_response_that_never_comes_ends_the_run(buffer: Any, partition: str) -> None:
    _group(buffer, "00000007-000001", "finished")
    _group(buffer, "00000007-000002", "running")
    buffer.limit_s, buffer.poll_interval, buffer.problems = 0.05, 0.01, {"00000007-000002": "sum-of-primes"}
    with pytest.raises(RunFailed, match=r"run\.rollout_limit_s=N") as caught:
        buffer.sample(global_steps=7, partition_id=partition, batch_size=2)
    counts, waiting = str(caught.value.found).split("; ")
    assert counts == "pending 0, running 1, finished 1, failed 0, responses 4"
    assert waiting == "waiting for sum-of-primes"


def test_a_step_may_take_any_time_while_responses_come(buffer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import replay_buffer

    _group(buffer, "00000007-000001", "running")
    polls = []

    def kv_list() -> dict:
        polls.append(0)
        buffer.queue[f"00000007-000001_{len(polls)}_0"] = {"status": "success", "global_steps": 7}
        if len(polls) == 6:
            _group(buffer, "00000007-000001", "finished")
        return {"train": buffer.queue}

    monkeypatch.setattr(replay_buffer.tq, "kv_list", kv_list)
    buffer.limit_s, buffer.poll_interval = 0.02, 0.01
    buffer.sample(global_steps=7, partition_id="train", batch_size=1)
    assert len(polls) == 6


def test_the_manager_knows_the_problem_of_each_prompt_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
    from verl.utils import tensordict_utils as tu

    from stapo_training.verl_ext.agent_loop import SeededAgentLoopManager

    monkeypatch.setattr(AgentLoopManagerTQ, "generate_sequences", lambda *_: None)  # asks Ray's workers
    manager: Any = object.__new__(SeededAgentLoopManager)
    manager.setting, manager.problems = "", {}
    rows = {"uid": ["7-0", "7-1"], "extra_info": [{"problem_id": "a"}, {"problem_id": "b"}]}
    manager.generate_sequences(tu.get_tensordict({k: np.array(v, dtype=object) for k, v in rows.items()}))
    assert manager.problems == {"7-0": "a", "7-1": "b"}


def test_training_and_validation_stop_at_all_tokens_that_end_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """As evaluation does; the model's own list names one of them."""
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    from stapo_training.verl_ext import agent_loop, step_tokens

    vocabulary = {"a": 0, "<|endoftext|>": 3, "<|im_end|>": 5}
    own = SimpleNamespace(eos_token_id=5)
    monkeypatch.setattr(step_tokens, "get_generation_config", lambda model: own)
    # tests/test_rollout_vllm.py asks vLLM itself, which is not installed here
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    loop: Any = object.__new__(agent_loop.SeededAgentLoop)
    loop.rollout_config = SimpleNamespace(name="vllm")
    loop.tokenizer = type("Tokenizer", (), {"eos_token_id": 5, "get_vocab": lambda self: vocabulary})()
    actor = {"model": {"path": "model"}, "rollout": {"seed": 1}}
    loop.config = OmegaConf.create({"algorithm": {"filter_groups": None}, "actor_rollout_ref": actor})
    asked = []

    async def run(self: Any, sampling_params: dict, **_: Any) -> None:
        asked.append(sampling_params)

    monkeypatch.setattr(SingleTurnAgentLoop, "run", run)
    for validate, setting in ((False, ""), (True, ""), (True, "t0.7")):
        where = {"stapo_validate": validate, "stapo_setting": setting, "global_steps": 1, "session_id": 0}
        asyncio.run(loop.run({"temperature": 1.0, "top_p": 1.0}, **where, extra_info={"problem_id": "p"}))
    assert [params["stop_token_ids"] for params in asked] == [[3, 5]] * 3
    assert len({params["seed"] for params in asked}) == 3
    assert [(params["temperature"], params["top_p"]) for params in asked] == [(1.0, 1.0), (1.0, 1.0), (0.7, 0.9)]
    # vLLM decodes no text, and answers once a request
    assert {(params["detokenize"], params["output_kind"]) for params in asked} == {(False, 2)}
    assert agent_loop.engine_parameters("stapo_cpu") == {}


def test_a_steps_planted_words_and_misjudged_boxes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from stapo_training.verl_ext import step_tokens

    responses = torch.nested.nested_tensor([torch.tensor([7, 9, 7]), torch.tensor([7])], layout=torch.jagged)
    scores = torch.nested.nested_tensor([torch.tensor([0.0, 0.0, -1.0]), torch.tensor([-1.0])], layout=torch.jagged)
    said = [
        {"box_right_scored_wrong": 1, "box_wrong_scored_right": 0},
        {"box_right_scored_wrong": 1, "box_wrong_scored_right": 1},
    ]
    extra = SimpleNamespace(tolist=lambda: [{"reward_extra_info": x} for x in said])
    data = {"responses": responses, "rm_scores": scores, "extra_fields": extra}
    keys = [f"7-0_{sample}_0" for sample in range(3)]
    monkeypatch.setattr(step_tokens.tq, "kv_batch_get", lambda keys, **_: data if len(keys) == 2 else None)
    tags = [{}, {}, {"is_padding": True}]
    batch = SimpleNamespace(keys=keys, tags=tags, partition_id="train")
    planted = {"spurious": [7, 8], "useful": [9], "none": []}
    found = step_tokens.token_numbers(batch, 3, [0], planted, old_policy=False)
    # three times 7 and once 9 in two responses; the first one is cut at three tokens
    rates = {"spurious_rate": 1.5, "useful_rate": 0.5, "truncated_share": 0.5, "zero_variance_share": 1.0}
    assert found == rates | {"box_right_scored_wrong": 2.0, "box_wrong_scored_right": 1.0}


def test_prompts_whose_responses_have_one_reward_give_no_gradient() -> None:
    """Of four prompts two: the third has both rewards, the last one response, whose reward is its advantage."""
    from stapo_training.verl_ext.step_tokens import zero_variance_share

    rewards = [("a", -1.0), ("b", 1.0), ("a", -1.0), ("b", 1.0), ("c", 1.0), ("c", -1.0), ("d", 1.0)]
    assert zero_variance_share(rewards) == 0.5


def test_a_collection_walks_nothing_that_was_loaded_before_the_first_step() -> None:
    from stapo_training.verl_ext.platform import settle

    try:
        settle()
        assert len(gc.get_objects()) < 1000 < gc.get_freeze_count()
    finally:
        gc.unfreeze()
