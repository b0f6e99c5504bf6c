"""veRL's vLLM rollout on a CPU: servers, weight transfer, replicas, tensor parallel, a kill, bf16, a failed transfer.

`tox -e rollout-vllm` has the packages; elsewhere all of it is skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from training_runs import complete, start, survivors, train, wait_for

from stapo_results import store, token_log
from stapo_results.schema import Run, StepMetrics
from stapo_training.start.configuration import compose

try:
    LACKS = "" if version("vllm").endswith("+cpu") else "vllm is no build for a CPU"
except PackageNotFoundError:
    LACKS = "vllm is not installed"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_run_left"),
    pytest.mark.skipif(bool(LACKS), reason=f"{LACKS}: tox -e rollout-vllm has it"),
]

MEAN, LARGEST = 1e-6, 5e-5
"""Difference of a token's probability between rollout and trainer that both compute in fp32: at most these."""
SIZES = ("hardware=cpu-vllm", "run.steps=3", "trainer.test_freq=3", "trainer.save_freq=1")
TWO = ("cpu.ranks=2", "cpu.train_threads=1", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
       "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4")  # fmt: skip
LAYOUTS = {
    "one rank": (),
    "two replicas": TWO,
    "tensor parallel": (*TWO, "actor_rollout_ref.rollout.tensor_model_parallel_size=2"),
}


@pytest.fixture(scope="session")
def untied_base(skilled_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same base with an output matrix of its own, which is then a weight of its own in every transfer."""
    import torch
    from transformers import AutoModelForCausalLM

    out = tmp_path_factory.mktemp("untied") / "base"
    shutil.copytree(skilled_base, out)
    model = AutoModelForCausalLM.from_pretrained(out / "model", dtype=torch.float32)
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.save_pretrained(out / "model")
    return out


def steps(out: Path, file: str = "metrics.jsonl") -> dict[int, dict[str, float]]:
    return {m.step: m.values for m in store.read(out / file, StepMetrics)}


def differences(out: Path, what: str = "mean") -> list[float]:
    """The mean or largest (`max`) difference of a token's probability between rollout and trainer, a step each."""
    return [v[f"training/rollout_probs_diff_{what}"] for s, v in sorted(steps(out, "timings.jsonl").items()) if s]


def exact(out: Path) -> bool:
    """Whether the rollout had the trainer's weights in each of the three steps.

    The first step has a learning rate of 0 (warm-up), so the third is the first that can tell: there, a rollout whose
    weights were never renewed differed by 8.8e-4 in the mean.
    """
    print(f"probability differences: mean {max(differences(out)):.1e}, largest {max(differences(out, 'max')):.1e}")
    return len(differences(out)) == 3 and max(differences(out)) < MEAN and max(differences(out, "max")) < LARGEST


@pytest.fixture(scope="module")
def runs(untied_base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One training in each layout."""
    made = {name: tmp_path_factory.mktemp("run") / "run" for name in LAYOUTS}
    for name, out in made.items():
        train(untied_base, out, *SIZES, *LAYOUTS[name])
    return made


@pytest.mark.parametrize("layout", ["one rank", "two replicas", "tensor parallel"])
def test_the_rollout_has_the_trainers_weights_after_every_transfer(runs: dict[str, Path], layout: str) -> None:
    out = runs[layout]
    metrics = steps(out)
    assert sorted(metrics) == [0, 1, 2, 3]
    assert all(metrics[s]["grad_norm"] > 0 for s in (1, 2, 3))  # without an update any transfer would do
    assert exact(out)
    assert survivors(out, patience=30) == []


def test_every_layout_samples_the_same_first_step(runs: dict[str, Path]) -> None:
    """Same weights, same seeds: what differs is who computes what."""
    names = ("reward", "response_tokens", "truncated_share", "actor/selector/silenced_tokens")
    first = {layout: [steps(out)[1][n] for n in names] for layout, out in runs.items()}
    assert first["two replicas"] == first["one rank"]
    assert first["tensor parallel"] == first["one rank"]


def test_a_killed_run_goes_on(skilled_base: Path, tmp_path: Path) -> None:
    """With tied embeddings, one of which is all that a transfer sends."""
    out = tmp_path / "run"
    process = start(skilled_base, out, *SIZES)
    wait_for(complete(out, 1), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert survivors(out, patience=60) == []
    train(skilled_base, out, *SIZES)
    run = store.read_json(out / "run.json", Run)
    assert (run.status, run.deterministic) == ("done", False)
    assert [r.start for r in run.resumptions] == ["global_step_1"]
    assert sorted(steps(out)) == [0, 1, 2, 3]
    assert exact(out)


def test_two_trainings_on_one_machine_keep_their_weights(untied_base: Path, tmp_path: Path) -> None:
    """Ray's job id, by which veRL names the socket of the transfer, is the same in both clusters."""
    faster = ("actor_rollout_ref.actor.optim.lr=0.001", "actor_rollout_ref.actor.optim.lr_warmup_steps=0")
    outs = tmp_path / "slow", tmp_path / "fast"
    both = [start(untied_base, out, *SIZES, *more) for out, more in zip(outs, ((), faster), strict=True)]
    assert [process.wait() for process in both] == [0, 0]
    assert all(map(exact, outs))


def test_the_engine_is_asked_for_token_ids_once_a_response() -> None:
    from vllm import SamplingParams  # type: ignore[import-not-found]
    from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

    from stapo_training.verl_ext.agent_loop import engine_parameters

    params = SamplingParams(max_tokens=1, **engine_parameters("vllm"))
    assert (params.detokenize, params.output_kind) == (False, RequestOutputKind.FINAL_ONLY)


def test_a_gpu_runs_numbers_of_workers_train_alike(runs: dict[str, Path], untied_base: Path, tmp_path: Path) -> None:
    """As many agent loops, reward actors and storage units as hardware=8gpu has; the responses are one rank's."""
    keys = ("actor_rollout_ref.rollout.agent.num_workers", "reward.num_workers",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units")  # fmt: skip
    gpu = compose(["hardware=8gpu", "size=mini", f"run.base={untied_base}", f"run.out={tmp_path}"])
    numbers = {key: OmegaConf.select(gpu, key) for key in keys}
    assert min(numbers[key] for key in keys[:2]) > 1
    out = tmp_path / "run"
    train(untied_base, out, *SIZES, *(f"{key}={number}" for key, number in numbers.items()))
    assert sorted(steps(out)) == [0, 1, 2, 3]
    names = ("reward", "response_tokens", "truncated_share", "failed_rollouts")
    assert [steps(out)[1][n] for n in names] == [steps(runs["one rank"])[1][n] for n in names]
    assert exact(out)
    assert survivors(out, patience=30) == []


def test_a_rollout_in_bf16_shows_its_mismatch(skilled_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    bf16 = ("actor_rollout_ref.rollout.dtype=bfloat16", "actor_rollout_ref.token_log.mode=full")
    train(skilled_base, out, *SIZES, *bf16)
    assert min(differences(out)) > 100 * MEAN
    assert all(abs(v["rollout_kl"]) > 1e-7 for s, v in steps(out).items() if s)
    log = token_log.read(out)
    assert log is not None
    old, sampler = (log.tokens[name].to_numpy() for name in ("old_logprob", "sampler_logprob"))
    assert abs(old - sampler).max() > 100 * LARGEST


def test_a_transfer_that_the_rollout_cannot_load_ends_the_run(skilled_base: Path, tmp_path: Path) -> None:
    """With oneDNN vLLM gives its weights away, and the second transfer has nowhere to go (verl_ext/vllm_plugin.py)."""
    out = tmp_path / "run"
    environment = "ray_kwargs.ray_init.runtime_env.env_vars"
    train(skilled_base, out, *SIZES, f"{environment}.STAPO_RELOADABLE_WEIGHTS=''", "run.weight_transfer_limit_s=20",
          "trainer.val_before_train=false", expected=1)  # fmt: skip
    text = (out / "log.txt").read_text()
    assert "the weights did not reach the rollout" in text
    assert "rank 0 of 1 not done after 20 s" in text
    assert survivors(out, patience=60) == []
