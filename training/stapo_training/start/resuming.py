"""Whether a run's folder is a command's: what must be the same for it to go on, and what may have changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stapo_results.schema import Run
from stapo_training.folder.training_folder import TrainingFolder
from stapo_training.methods import RANKING_LOSSES

FOREIGN = ("metrics.jsonl", "checkpoints")
"""Files of a training, which must not be in a folder without a record; a user's log may."""
_MAY_DIFFER = (
    *("alarms.", "run.silenced_share_reference", "trainer.logger", "run.card", "run.check_memory"),
    *("run.weight_transfer_limit_s", "run.rollout_limit_s"),
    *("ray_kwargs.ray_init.num_cpus", "ray_kwargs.ray_init.address"),
    *(f"ray_kwargs.ray_init.runtime_env.env_vars.{name}" for name in ("OMP_NUM_THREADS", "GLIBC_TUNABLES")),
    *("transfer_queue.", "trainer.max_actor_ckpt_to_keep"),
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
    "actor_rollout_ref.selector.form",  # removed; the records of 0.2.0 name it
    "actor_rollout_ref.nccl_timeout",  # which nothing reads
    "reward.num_workers",  # how many processes ask the reward function
    *("run.save_minutes", "run.keep_best", "by_size.", "trainer.total_epochs"),
    "trainer.val_before_train",  # a run that has begun does not validate at step 0
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward",  # when weights are gathered, not which
    *("run.cpu_dtype", "run.cpu_threads"),  # what follows from them may not
)
"""Keys whose values change no result, so that a resumed run may have others: alarms, loggers, preflight, the machine's
cores, where its Ray is, how many checkpoints are made and kept, how data and weights travel."""

_MEMORY = (
    *(f".{of}_{per}_per_gpu" for of in ("ppo", "log_prob") for per in ("max_token_len", "micro_batch_size")),
    *(".param_offload", ".optimizer_offload", ".offload_policy"),
    *(".gpu_memory_utilization", ".max_num_batched_tokens", ".max_num_seqs"),
)
"""How keys end that say what memory a GPU's run takes. A resumed one may have others: it may have run out of it."""


def may_differ(key: str) -> bool:
    """Whether a resumed run may have another value of this key."""
    return key.startswith(_MAY_DIFFER)


def rules(new: Run, out: Path) -> dict[str, Any]:
    """How a run's folder is compared with a command (`runs.previous_of`). The validation before the first step binds
    nobody: what that step was refused for may be corrected."""
    folder, a = TrainingFolder(out), new.config["actor_rollout_ref"]
    # a mini-batch's loss is the same however it is packed, unless the tokens of a micro-batch are ranked; on a CPU
    # the bytes are the same as well
    decides = new.deterministic or a["actor"]["policy_loss"]["loss_mode"] in RANKING_LOSSES
    return {
        "may_differ": lambda key: may_differ(key) or (not decides and key.endswith(_MEMORY)),
        "foreign": FOREIGN,
        "older": partial(older, new=new.config, folder=folder),
        "advice": _advice,
        "resumes": folder.begun,
    }


def older(config: Mapping[str, Any], new: Mapping[str, Any], folder: TrainingFolder) -> dict[str, Any]:
    """The configuration of an earlier run, as it is compared with a new one: with the new one's steps where it may
    have as many, and with what version 0.2.0 did, where it could not say so."""
    a = {"logits_form": "eager", **config["actor_rollout_ref"]}
    a["selector"] = {"among": "positive", **a["selector"]}
    config = {**config, "actor_rollout_ref": a}
    steps, before = new["run"]["steps"], config["run"]["steps"]
    logged, saved = (max((x.step for x in kept), default=0) for kept in (folder.steps, folder.whole_checkpoints()))
    # a last step that was not saved would be made again, now perhaps without the validation that it had as the last
    grows = steps > before and _any_length(new) and (logged < before or saved >= before)
    shrinks = logged <= steps <= saved < before  # back from a length that was asked for and not begun
    return with_steps(config, steps) if grows or shrinks else config


def with_steps(config: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The same configuration, trained for another number of steps."""
    longer = {"run": {**config["run"], "steps": steps}}
    return {**config, **longer, "trainer": {**config["trainer"], "total_training_steps": steps}}


def _any_length(config: Mapping[str, Any]) -> bool:
    """Whether the learning rate of a step is the same however many steps follow; a warm-up without a number of steps
    is a share of them."""
    optim = config["actor_rollout_ref"]["actor"]["optim"]
    warm_up = optim["lr_warmup_steps"] > 0 or not optim.get("lr_warmup_steps_ratio")
    kinds = {optim["lr_scheduler_type"], optim.get("warmup_style") or "constant"}  # the second one wins in veRL
    return kinds == {"constant"} and warm_up


def _advice(previous: Run, differing: list[str]) -> str:
    steps = previous.config["run"]["steps"]
    if not any(d.startswith("run.steps:") for d in differing):
        return ""
    constant = "give another run.out; a run grows at a constant learning rate after a fixed warm-up, from its last step"
    return f"run.steps={steps} resumes it, or {constant}"
