"""What can be known of a configuration alone to fail: no machine, no data and no model is looked at."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from stapo_results.checks import Checks
from stapo_results.errors import BadInput
from stapo_training import reward
from stapo_training.folder.alarms import alarms_from
from stapo_training.methods import RANKING_LOSSES, advantage_from, proxy_from, selector_from
from stapo_training.token_log.writer import token_log_from

ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
OURS = "stapo_varlen"  # verl_ext/attention.py
_FLASH = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3", "flash_attention_4": "flash-attn-4"}
_WHOLE = "selectors, token log and attention need whole sequences and their logits"
_OTHER = "the rollout would sample from another distribution than the trainer's probabilities are of"
_LORA = "a LoRA trains few of the weights, and its checkpoint is no model; the paper trains all"
_TOOLS = "the suite's agent loop calls no tool, so that no prompt names one; veRL would count prompts with them"
_SOCKET = "the suite gives each run a socket of its own for veRL's naive transfer of weights alone"
_FOLDER = "the run's own folder says where it goes on, and nothing else does"
_SETTING = "run.validation_settings names the numbers, and has no other"
_ENGINES = {"vllm", "sglang", "trtllm", "stapo_cpu"}
_RESUMED = {"model", "optimizer", "extra"}
_FIXED: dict[str, tuple[Any, str]] = {
    **{
        f"actor_rollout_ref.{part}.ulysses_sequence_parallel_size": (1, _WHOLE)
        for part in ("actor.fsdp_config", "actor", "ref.fsdp_config", "ref")
    },
    "actor_rollout_ref.model.use_fused_kernels": (False, _WHOLE),
    "actor_rollout_ref.model.lora_rank": (0, _LORA),
    "actor_rollout_ref.model.lora.rank": (0, _LORA),
    "actor_rollout_ref.model.lora_adapter_path": (None, _LORA),
    "actor_rollout_ref.nccl_timeout": (600, "veRL reads it for a critic alone; torch's limit holds"),
    "actor_rollout_ref.rollout.checkpoint_engine.backend": ("naive", _SOCKET),
    "actor_rollout_ref.rollout.top_p": (1, _OTHER),
    "actor_rollout_ref.rollout.top_k": (-1, _OTHER),
    "actor_rollout_ref.rollout.val_kwargs.top_k": (-1, _SETTING),
    "actor_rollout_ref.rollout.val_kwargs.do_sample": (True, _SETTING),
    "trainer.resume_mode": ("auto", _FOLDER),
    "trainer.resume_from_path": (None, _FOLDER),
    "algorithm.rollout_correction.rollout_rs": (
        None,
        "rejected responses would still decide the advantages of their group; method=tis or icepop weighs tokens",
    ),
    "data.tool_config_path": (None, _TOOLS),
    "data.function_tool_path": (None, _TOOLS),
    "data.filter_overlong_prompts": (
        True,
        "prompts over data.max_prompt_length would be cut from the left, since veRL's trainer reads no data.truncation",
    ),
}
"""Settings of veRL that have one value here, and why no other."""
_LOGGERS = {"console": "", "file": ""}  # veRL's, and the package of each
_LOGGERS |= {n: n for n in ("clearml", "mlflow", "rl_insight", "swanlab", "tensorboard", "trackio", "wandb")}
_LOGGERS |= {"vemlp_wandb": "volcengine_ml_platform"}


def check_settings(config: Any) -> Checks:
    """The checks that need no machine, no data and no model."""
    a, checks = config.actor_rollout_ref, Checks()
    checks.attempt("selector", selector_from, a.selector)
    checks.attempt("advantage", advantage_from, a, config.algorithm)
    checks.attempt("proxy", proxy_from, a, config.algorithm)
    checks.attempt("dynamic sampling", _check_groups, config)
    checks.attempt("token log", token_log_from, a.token_log, config.run.out)
    checks.attempt("sizes", check_sizes, config)
    checks.attempt("checkpoints", _check_contents, a.actor.checkpoint)
    checks.attempt("what veRL reads", _check_read, config)
    checks.attempt("attention", check_attention, config)
    checks.attempt("alarms", alarms_from, config.alarms)
    checks.attempt("loggers", check_loggers, config.trainer.logger)
    checks.attempt("verifier", reward.verifier_from, config)
    checks.attempt("noise of the reward", reward.noise_from, config)
    for key in _FIXED:
        checks.attempt(key, check_fixed, config, key)
    return checks


def check_sizes(config: Any) -> None:
    """Sizes that have to divide, and the packing limit, which has to hold one sequence (Clip-Cov, KL-Cov: two, since
    they rank the tokens of one micro-batch, and in a single sequence all covariances are 0).

    Raises:
        BadInput: with both numbers and the key.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks, batch = config.trainer.n_gpus_per_node * config.trainer.nnodes, config.data.train_batch_size
    mini = actor.ppo_mini_batch_size
    parts = {
        "data.train_batch_size by actor_rollout_ref.actor.ppo_mini_batch_size": (batch, mini),
        "the ranks by actor_rollout_ref.rollout.tensor_model_parallel_size": (
            ranks,
            rollout.tensor_model_parallel_size,
        ),
        "a mini-batch's sequences (actor.ppo_mini_batch_size x rollout.n) by the ranks": (mini * rollout.n, ranks),
    }
    for key, micro in (
        ("rollout.log_prob_micro_batch_size_per_gpu", rollout.log_prob_micro_batch_size_per_gpu),
        ("actor.ppo_micro_batch_size_per_gpu", actor.ppo_micro_batch_size_per_gpu),
    ):
        if micro and not actor.use_dynamic_bsz:
            parts[f"a rank's mini-batch by actor_rollout_ref.{key}"] = mini * rollout.n // ranks, micro
    for name, (divided, part) in parts.items():
        if divided % part:
            found, cure = f"{divided} / {part}", "change one of the two"
            raise BadInput(f"{name} does not divide", found=found, expected="no remainder", next_step=cure)
    longest, loss = config.data.max_prompt_length + config.data.max_response_length, actor.policy_loss.loss_mode
    sequences = 2 if loss in RANKING_LOSSES else 1
    key, holds, least = "ppo_micro_batch_size_per_gpu", actor.ppo_micro_batch_size_per_gpu or 1, sequences
    if actor.use_dynamic_bsz:
        key, holds, least = "ppo_max_token_len_per_gpu", actor.ppo_max_token_len_per_gpu, sequences * longest
    if holds < least:
        raise BadInput(
            f"a micro-batch of {loss} does not hold {sequences} sequence(s)",
            found=f"actor_rollout_ref.actor.{key}={holds}",
            expected=f"at least {least} (a sequence has up to {longest} tokens)",
            next_step=f"actor_rollout_ref.actor.{key}={least}",
        )

    for key in ("rollout", "ref"):
        part = config.actor_rollout_ref[key]
        if part.log_prob_use_dynamic_bsz and part.log_prob_max_token_len_per_gpu < longest:
            key = f"actor_rollout_ref.{key}.log_prob_max_token_len_per_gpu"
            raise BadInput(
                "a micro-batch does not hold a sequence",
                found=f"{key}={part.log_prob_max_token_len_per_gpu}",
                expected=f"at least {longest}",
                next_step=f"{key}={longest}",
            )
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        key = "actor_rollout_ref.rollout.max_model_len"
        raise BadInput("veRL's rollout would cut responses, and the count of the truncated not know of it",
                       found=f"{key}={rollout.max_model_len}", expected=f"at least {longest}, or null",
                       next_step=f"{key}={longest}, or a smaller data.max_response_length")  # fmt: skip


def _check_contents(checkpoint: Any) -> None:
    """Raises BadInput for checkpoints from which a resumed run would begin anew, without a word of veRL's."""
    saved, loaded = set(checkpoint.save_contents), set(checkpoint.load_contents)
    if not (_RESUMED <= saved <= _RESUMED | {"hf_model"} and _RESUMED <= loaded <= saved):
        raise BadInput("a resumed run needs all of its state", found=f"save {sorted(saved)}, load {sorted(loaded)}",
                       expected=f"{sorted(_RESUMED)}, and hf_model where it is wanted",
                       next_step="leave out actor_rollout_ref.actor.checkpoint")  # fmt: skip


def _check_read(config: Any) -> None:
    """Raises BadInput for values that veRL would not read, or would read as something else."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    unread = {
        f"rollout.engine_kwargs.{n}": f"one of {', '.join(sorted(_ENGINES))}"
        for n in {*rollout.engine_kwargs} - _ENGINES
    }
    if actor.clip_ratio not in (0.2, actor.clip_ratio_low) and actor.clip_ratio_low is not None:
        unread["actor.clip_ratio"] = "actor.clip_ratio_low and actor.clip_ratio_high"
    if actor.grad_clip != actor.optim.clip_grad:
        unread["actor.grad_clip"] = "actor.optim.clip_grad"
    for key, read in unread.items():
        raise BadInput("veRL does not read this key", found=f"actor_rollout_ref.{key}", expected=read,
                       next_step="set what it reads, below actor_rollout_ref")  # fmt: skip
    if rollout.n < 2 and config.algorithm.adv_estimator == "grpo":
        raise BadInput("a group of one response has no advantage: veRL takes the bare reward",
                       found=f"rollout.n={rollout.n}", expected="2 or more",
                       next_step="actor_rollout_ref.rollout.n=8")  # fmt: skip


def _check_groups(config: Any) -> None:
    groups = config.algorithm.get("filter_groups")
    if groups and groups.enable and groups.metric not in ("acc", "score", "reward"):
        what = "algorithm.filter_groups.metric names nothing that the reward gives"
        cure = "algorithm.filter_groups.metric=acc"
        raise BadInput(what, found=groups.metric, expected="acc | score | reward", next_step=cure)


def check_fixed(config: Any, key: str) -> None:
    """Raises BadInput where a key of `_FIXED` has another value."""
    from omegaconf import OmegaConf

    only, why = _FIXED[key]
    if (found := OmegaConf.select(config, key)) != only:
        value = "null" if only is None else str(only).lower()
        raise BadInput(f"{key}: {why}", found=found, expected=value, next_step=f"set {key}={value}")


def check_loggers(names: str | Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Raises BadInput for a logger whose package is missing, and for wandb without an account: veRL would say so, or
    wait for a password, when the GPUs have started."""
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        known, package = name in _LOGGERS, _LOGGERS.get(name)  # pip is suggested for known packages only
        if not known or (package and importlib.util.find_spec(package) is None):
            what = f"trainer.logger={name}: its package is missing" if known else f"trainer.logger={name} is unknown"
            cure = f"python -m pip install {package}" if known else "trainer.logger=[console,tensorboard]"
            raise BadInput(what, found=name, expected=" | ".join(_LOGGERS), next_step=cure)
    offline = environment.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    netrc = Path(environment.get("HOME", "~")).expanduser() / ".netrc"
    if "wandb" in chosen and not (offline or environment.get("WANDB_API_KEY") or netrc.exists()):
        raise BadInput(
            "trainer.logger=wandb has no account and would wait for a password",
            found="neither WANDB_API_KEY, nor WANDB_MODE=offline, nor ~/.netrc",
            next_step="WANDB_MODE=offline before the command, or: wandb login",
        )


def check_attention(config: Any) -> None:
    """Raises BadInput for an attention whose package is not installed."""
    chosen = attention_of(config)
    package = _FLASH.get(chosen)
    if package and not _installed(package):
        raise BadInput(
            f"{ATTENTION} asks for a package that is not installed",
            found=f"{chosen}, and no package {package}",
            expected=f"{OURS}, which is torch's own kernel, or {package} built for the installed torch",
            next_step=f"set {ATTENTION}={OURS}, or install {package} in this environment",
        )


def attention_of(config: Any) -> str:
    return config.actor_rollout_ref.model.override_config.get("attn_implementation", "flash_attention_2")  # veRL's


def _installed(package: str) -> bool:
    """Asked by the distribution's name, as transformers does: two of them are a module flash_attn."""
    try:
        return distribution(package) is not None
    except PackageNotFoundError:
        return False
