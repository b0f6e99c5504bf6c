"""Starts veRL's task runner in this process: the trainer is the command itself, and Ctrl-C reaches it."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
from typing import Any

import ray
import torch
from omegaconf import OmegaConf, open_dict
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer import main_ppo
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.rollout.base import _ROLLOUT_REGISTRY

from stapo_results import safe_path
from stapo_training.verl_ext import agent_loop, queue_start, trainer, vllm_plugin, waiting
from stapo_training.verl_ext.trainer import is_right

assert agent_loop  # imported because it registers

# veRL declares the runner as a Ray actor; its plain class is what `ray.remote` keeps
_TaskRunner: type = main_ppo.TaskRunnerV1.__ray_metadata__.modified_class  # type: ignore[attr-defined]


def validate(config: Any) -> None:
    """veRL's own validation of a composed configuration, its dataclasses, and what it finds under the names of ours.

    A name that is wrong shows only when the GPUs have sampled, or not at all: veRL's trainer leaves out the selection.

    Raises whatever veRL raises: its messages name the keys.
    """
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    for section in (config.actor_rollout_ref.rollout, config.algorithm):  # the actor's is made by validate_config
        omega_conf_to_dataclass(section)
    a, mode = config.actor_rollout_ref, config.trainer.v1.trainer_mode
    assert get_trainer_cls(mode) is trainer.StapoTrainer, f"trainer.v1.trainer_mode must be stapo, not {mode}"
    assert a.actor.strategy == "fsdp2", f"actor_rollout_ref.actor.strategy={a.actor.strategy}: selection needs fsdp2"
    _check_names(config)
    loop = a.rollout.agent.default_agent_loop
    assert loop in _agent_loop_registry, f"actor_rollout_ref.rollout.agent.default_agent_loop={loop} is not registered"
    if a.rollout.name == "vllm":
        vllm_plugin.check_installed()
    manager = a.rollout.agent.agent_loop_manager_class
    assert str(manager).startswith("stapo_training."), f"agent_loop_manager_class={manager} gives samples no seeds"
    reward: Any = get_custom_reward_fn(config)
    assert reward is not None, "reward.custom_reward_function.path is empty"
    texts = [f"Answer: {answer}\n\\boxed{{{answer}}}" for answer in (42, 41)]
    asked = [reward(data_source="preflight", solution_str=t, ground_truth="42", extra_info={}) for t in texts]
    replies = [asyncio.run(r) if inspect.iscoroutine(r) else r for r in asked]
    results = [r if isinstance(r, dict) else {"score": r, "acc": r} for r in replies]  # as veRL reads it
    scores = [r.get("score") for r in results]
    assert scores == [1.0, -1.0], f"reward.custom_reward_function gives 42 and 41 the scores {scores} where 42 is right"
    right = [is_right(r.get("acc")) for r in results]
    assert right == [True, False], f"reward.custom_reward_function gives 42 and 41 {right} as acc where 42 is right"


def _check_names(config: Any) -> None:
    """Names that veRL looks up when it has sampled or updates, after minutes or hours."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    core_algos.get_adv_estimator_fn(config.algorithm.adv_estimator)
    core_algos.get_policy_loss_fn(actor.policy_loss.loss_mode)
    if actor.use_kl_loss:
        zero: Any = torch.zeros(1)
        core_algos.kl_penalty(zero, zero, actor.kl_loss_type)
    for key in ("dtype", "model_dtype"):
        PrecisionType.to_dtype(actor.fsdp_config[key])
    known = {name for name, _ in _ROLLOUT_REGISTRY} | {"stapo_cpu"}
    assert rollout.name in known, f"actor_rollout_ref.rollout.name={rollout.name} is none of {', '.join(sorted(known))}"


def train(config: Any) -> None:
    """Run a whole training; Ray is started here (or joined, if `ray_init.address` is set) and left at the end."""
    with open_dict(config):
        config.transfer_queue.enable = True
    environment = get_ppo_ray_runtime_env(config)
    environment.setdefault("env_vars", {})["TRANSFER_QUEUE_ENABLE"] = "1"
    given: Any = OmegaConf.to_container(config.ray_kwargs.get("ray_init", {}), resolve=True)
    asked = given.pop("runtime_env", None) or {}
    environment["env_vars"] |= {k: str(v) for k, v in (asked.pop("env_vars", None) or {}).items()} | safe_path.VARIABLES
    environment["env_vars"][vllm_plugin.RUN] = hashlib.sha256(str(config.run.out).encode()).hexdigest()[:12]
    environment |= {k: v for k, v in asked.items() if v is not None}
    if given.get("address"):  # a node's own Python is that of the environment in which `ray start` was called
        environment.setdefault("py_executable", sys.executable)
    # without an address Ray would join whatever cluster somebody has started on this machine
    given |= {"address": given.get("address") or "local", "job_config": safe_path.ray_job()}
    ray.init(**given, runtime_env=environment)
    if asked:  # which may hold secrets, and a logger is given the configuration
        config.ray_kwargs.ray_init.runtime_env = None
    try:
        main_ppo.pprint = lambda _: None  # the whole configuration, 1,100 lines; run.json has it
        with waiting.watched(config.run.command), queue_start.beside():
            _TaskRunner().run(config)
    finally:
        ray.shutdown()
