"""The CPU rollout against the sampling function, with what it stores; without Ray."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from verl.utils import tensordict_utils as tu

from stapo_results.errors import RunFailed

N, BATCH, STEP = 4, 6, 7  # two batches of three prompts' samples
ANSWERS = ("4", "7", "9")


@pytest.fixture(scope="module")
def config(tiny_base: Path) -> Any:
    from stapo_training.start.configuration import compose

    rollout = "actor_rollout_ref.rollout"
    sizes = [f"{rollout}.n={N}", f"{rollout}.max_num_seqs={BATCH}", f"{rollout}.val_kwargs.n=1"]
    return compose(["size=mini", "hardware=cpu", f"run.base={tiny_base}", "run.out=out", *sizes])


@pytest.fixture
def rollout(config: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """With weights of step 6; `puts` is what it has stored."""
    from stapo_training.verl_ext import rollout

    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.manual_seed(3)
    made: Any = rollout.LocalRollout.create_empty(config=config)
    made.load_weights(made.model.state_dict(), STEP - 1)
    made.puts = []
    monkeypatch.setattr(rollout.tq, "kv_batch_put", lambda **put: made.puts.append(put))
    yield made
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fills
    torch.set_num_threads(threads)


def _prompts(**more: Any) -> Any:
    batch = tu.get_tensordict(
        {
            "raw_prompt": [[{"role": "user", "content": f"{a}+0"}] for a in ANSWERS],
            "uid": [f"00000007-00000{i}" for i in range(3)],
            "data_source": ["mini"] * 3,
            "reward_model": [{"ground_truth": a} for a in ANSWERS],
            "extra_info": [{"problem_id": f"p{i}"} for i in range(3)],
            "index": torch.arange(3),
        }
    )
    for key, value in {"global_steps": STEP, **more}.items():
        tu.assign_non_tensor_data(batch, key, value)
    return batch


def _expected(rollout: Any, n: int, split: str, temperature: float, top_p: float) -> list[Any]:
    from stapo_results.generation import Drawing, generate
    from stapo_results.seeds import derive_seed

    prompts = [rollout.builder.build_initial_tokens([{"role": "user", "content": f"{a}+0"}]) for a in ANSWERS]
    rows = [(prompts[i], derive_seed(0, STEP, f"p{i}", split, k)) for i in range(3) for k in range(n)]
    tokens, seeds = zip(*rows, strict=True)
    how, limits = Drawing(temperature, top_p), {"max_new_tokens": 48, "stop_token_ids": rollout.stops}
    return generate(rollout.model, tokens, seeds, how, **limits)


def test_a_step_is_sampled_and_stored_before_its_prompts_are_finished(rollout: Any) -> None:
    worth = lambda text: float(zlib.crc32(text.encode()) % 997)  # noqa: E731
    rollout.rewards.compute_score = lambda **sample: worth(sample["solution_str"])
    rollout.generate_sequences(_prompts())
    samples, prompts = rollout.puts
    assert samples["keys"] == [f"00000007-00000{i}_{k}_0" for i in range(3) for k in range(N)]
    assert {samples["partition_id"], prompts["partition_id"]} == {"train"}
    tag = {"is_prompt": True, "status": "finished", "global_steps": STEP}
    assert (prompts["keys"], prompts["tags"]) == ([f"00000007-00000{i}" for i in range(3)], [tag] * 3)
    fields, expected = samples["fields"], _expected(rollout, N, "train", 1.0, 1.0)
    for i, response in enumerate(expected):
        row = {k: fields[k][i] for k in fields.keys() if isinstance(fields[k], torch.Tensor)}  # noqa: SIM118
        count, length = len(response.token_ids), len(row["prompts"])
        assert row["responses"].tolist() == response.token_ids
        assert row["rollout_log_probs"].tolist() == pytest.approx(response.logprobs)
        assert row["input_ids"].tolist() == row["prompts"].tolist() + response.token_ids
        assert row["position_ids"].tolist() == list(range(length + count))
        assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [1] * count
        said = rollout.rewards.tokenizer.decode(response.token_ids, skip_special_tokens=True)
        assert row["rm_scores"].tolist() == [0.0] * (count - 1) + [worth(said)]
        sizes = {"prompt_len": length, "response_len": count, "seq_len": length + count}
        steps = {"global_steps": STEP, "min_global_steps": STEP - 1, "max_global_steps": STEP - 1}
        assert samples["tags"][i] == {"status": "success"} | sizes | steps


@pytest.mark.parametrize(("setting", "temperature", "top_p"), [("", 1.0, 1.0), ("t0.7", 0.7, 0.9)])
def test_a_validation_pass_has_its_own_seeds_and_decoding(
    rollout: Any, setting: str, temperature: float, top_p: float
) -> None:
    rollout.setting = setting
    rollout.generate_sequences(_prompts(validate=True))
    samples, _ = rollout.puts
    split = f"val-{setting}" if setting else "val"
    expected = [response.token_ids for response in _expected(rollout, 1, split, temperature, top_p)]
    assert samples["partition_id"] == "val"
    assert [ids.tolist() for ids in samples["fields"]["responses"].unbind()] == expected


def test_the_reward_gets_the_seed_of_a_trainings_sample_and_none_in_validation(rollout: Any) -> None:
    from stapo_training.verl_ext.rollout import sample_seed

    given: list[dict[str, Any]] = []
    rollout.rewards.compute_score = lambda **sample: given.append(dict(sample["extra_info"])) or 1.0
    prompts = _prompts()
    rollout.generate_sequences(prompts)
    rows = [{"extra_info": {"problem_id": f"p{p}"}, "uid": "", "session_id": i, "global_steps": STEP}
            for p in range(3) for i in range(N)]  # fmt: skip
    assert sorted(x["sample_seed"] for x in given) == sorted(sample_seed(rollout.config, r, False, "") for r in rows)
    given.clear()
    validated = _prompts(validate=True)
    for info in validated["extra_info"]:
        info["sample_seed"] = 1  # of the data: it must not reach the reward
    rollout.generate_sequences(validated)
    assert given
    assert all("sample_seed" not in x for x in given)


def test_a_response_without_a_reward_is_left_out_and_its_prompt_has_failed(rollout: Any) -> None:
    asked = []

    def score(**sample: Any) -> float:
        truth = sample["ground_truth"]
        asked.append(truth)
        if truth == ANSWERS[0] or (truth == ANSWERS[2] and asked.count(truth) == 1):
            raise ZeroDivisionError
        return 1.0

    rollout.rewards.compute_score = score
    rollout.generate_sequences(_prompts())
    samples, prompts = rollout.puts
    assert [key.split("_")[0][-1] for key in samples["keys"]] == ["1"] * N + ["2"] * (N - 1)
    assert [tag["status"] for tag in prompts["tags"]] == ["failure", "finished", "failure"]
    assert len(asked) == 3 * N


def test_a_reward_function_that_hangs_ends_the_run(rollout: Any) -> None:
    """In a thread that the end of the process does not wait for."""
    ended, daemons = threading.Event(), []

    def score(**sample: Any) -> float:
        if sample["ground_truth"] == ANSWERS[1]:
            daemons.append(threading.current_thread().daemon)
            ended.wait(60)
        return 1.0

    rollout.rewards.compute_score = score
    rollout.config.run.rollout_limit_s = 0.5
    try:
        with pytest.raises(RunFailed) as e:
            rollout.generate_sequences(_prompts())
    finally:
        ended.set()
    assert (e.value.found, daemons) == (f"waiting for {N} of {3 * N} rewards; problems p1", [True] * N)


def test_where_no_response_has_a_reward_only_the_prompts_are_stored(rollout: Any) -> None:
    rollout.rewards.compute_score = lambda **_: 1 / 0
    rollout.generate_sequences(_prompts())
    (prompts,) = rollout.puts
    assert [tag["status"] for tag in prompts["tags"]] == ["failure"] * 3


def test_the_weights_of_another_model_are_refused(rollout: Any) -> None:
    with pytest.raises(RunFailed):
        rollout.load_weights({"model.norm.weight": rollout.model.model.norm.weight}, STEP)


def test_the_rollout_samples_in_the_dtype_of_the_run(rollout: Any, config: Any) -> None:
    """From the trainer's float32 weights; each response's log-probabilities are numbers."""
    config = config.copy()
    config.actor_rollout_ref.rollout.dtype = "bfloat16"
    made = type(rollout)(config)
    made.load_weights(rollout.model.state_dict(), STEP - 1)
    assert {p.dtype for p in made.model.parameters()} == {torch.bfloat16}
    made.generate_sequences(_prompts())
    assert all(torch.isfinite(row).all() for row in rollout.puts[0]["fields"]["rollout_log_probs"])


def test_dynamic_sampling_gives_a_problem_that_a_step_meets_twice_other_seeds(config: Any) -> None:
    from omegaconf import OmegaConf

    from stapo_training.verl_ext.rollout import sample_seed

    rows = [{"extra_info": {"problem_id": "p"}, "uid": u, "global_steps": STEP, "session_id": 0} for u in ("a", "b")]
    dynamic = OmegaConf.merge(config, {"algorithm": {"filter_groups": {"enable": True}}})
    for used, validate, different in ((config, False, 1), (dynamic, False, 2), (dynamic, True, 1)):
        assert len({sample_seed(used, row, validate, "") for row in rows}) == different
