"""The trainer's own parts on made-up batches: ids, the buffer's order, validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf


def _trainer() -> Any:
    from stapo_training.verl_ext.trainer import StapoTrainer

    made = object.__new__(StapoTrainer)
    made.global_steps, made._fetched = 7, (0, 0)
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


def test_a_validation_sample_that_failed_counts_as_wrong() -> None:
    """6 right of 8 that were asked for, of which 2 failed; and a data source of which nothing came back."""
    trainer = _trainer()
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"val_kwargs": {"n": 4}}}})
    expected = {("one", "a"): 4, ("one", "b"): 4, ("other", "c"): 4}
    found = trainer._val_metrics_update(["one"] * 6, ["a"] * 6, {"acc": [True] * 6}, [], expected_acc_counts=expected)
    assert found == {"val-core/one/acc/mean@4": 0.75, "val-core/other/acc/mean@4": 0.0}


@pytest.fixture
def buffer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The buffer over a queue that answers what the test puts into `buffer.queue`."""
    from verl.trainer.ppo.v1 import replay_buffer

    from stapo_training.verl_ext.trainer import OrderedReplayBuffer

    made: Any = OrderedReplayBuffer(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        train_batch_size=2,
        gen_batch_size=1,
    )
    made.queue = {}
    monkeypatch.setattr(replay_buffer.tq, "kv_list", lambda *_: {"train": made.queue})
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


@pytest.mark.parametrize("whole_rounds", [True, False])
def test_a_deterministic_run_judges_no_group_before_all_have_ended(buffer: Any, whole_rounds: bool) -> None:
    buffer.whole_rounds = whole_rounds
    _group(buffer, "00000007-000000", "finished")
    _group(buffer, "00000007-000001", "running")
    buffer._sync_metadata_from_transfer_queue()
    assert buffer.finished_keys["train"] == (set() if whole_rounds else {"00000007-000000"})
    buffer.queue["00000007-000001"]["status"] = "failure"
    buffer._sync_metadata_from_transfer_queue()
    assert (buffer.finished_keys["train"], buffer.failure_keys["train"]) == ({"00000007-000000"}, {"00000007-000001"})
