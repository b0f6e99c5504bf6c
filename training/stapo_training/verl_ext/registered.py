"""Is everything registered in a fresh process? Run as `python -m stapo_training.verl_ext.registered` by `registration`.

Reads {"config": ...} from stdin, imports what Ray's processes import, in their order, and writes one JSON line:
{"found": {what: where}} or {"lacking": what, "error": text}. veRL's own loading hides import errors (entry points are
logged at DEBUG), and a name that is missing shows only after the GPUs have started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _platform(config: Any) -> str:
    from verl.plugin.platform import get_platform

    platform = get_platform()
    wanted = config.trainer.device
    assert platform.device_name == wanted, f"veRL's platform is {platform.device_name}, trainer.device is {wanted}"
    return _name(type(platform))


def _worker(config: Any) -> str:
    """What unpickling the worker imports; its constructor puts the selecting engine where veRL looks for one."""
    from verl.utils.device import get_device_name
    from verl.workers.engine import EngineRegistry

    from stapo_training.verl_ext import worker
    from stapo_training.verl_ext.engine import SelectingEngine

    strategy, device = config.actor_rollout_ref.actor.strategy, config.trainer.device
    if get_device_name() != device:  # asked for on a machine without the device: veRL's registry cannot answer
        known = EngineRegistry._engines["language_model"].get(strategy, {})
        assert device in known, f"no {strategy} engine for {device}"
        return _name(worker.StapoWorker)
    worker.register_engine()
    engine = EngineRegistry.get_engine_cls("language_model", strategy)
    assert issubclass(engine, SelectingEngine), f"veRL's engine for {strategy} on {device} is {_name(engine)}"
    return f"{_name(worker.StapoWorker)} with {_name(engine)}"


def _attention(config: Any) -> str:
    from transformers import AttentionInterface

    chosen = config.actor_rollout_ref.model.override_config.get("attn_implementation", "flash_attention_2")
    known = {"eager", *AttentionInterface().valid_keys()}
    assert chosen in known, f"{chosen} is none of {sorted(known)}"
    return chosen


def _rollout(config: Any) -> str:
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from stapo_training.verl_ext import rollout

    name = config.actor_rollout_ref.rollout.name
    if name == rollout.NAME:
        return _name(rollout.LocalRollout)
    adapter = get_rollout_class(name, config.actor_rollout_ref.rollout.mode)
    return f"{_name(adapter)} with {_name(RolloutReplicaRegistry.get(name))}"


def _trainer(config: Any) -> str:
    from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

    from stapo_training.verl_ext import trainer

    cls = get_trainer_cls(config.trainer.v1.trainer_mode)
    assert cls is trainer.StapoTrainer, f"trainer mode {config.trainer.v1.trainer_mode} is {_name(cls)}"
    return _name(cls)


def _agent_loop(config: Any) -> str:
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.utils.import_utils import load_class_from_fqn

    agent = config.actor_rollout_ref.rollout.agent
    manager = load_class_from_fqn(agent.agent_loop_manager_class, "AgentLoopManager")
    assert agent.default_agent_loop in _agent_loop_registry, f"agent loop {agent.default_agent_loop} is not registered"
    return _name(manager)


def _reward(config: Any) -> str:
    """Loaded as veRL loads it, and asked about one right and one wrong answer."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    reward: Any = get_custom_reward_fn(config)
    assert reward is not None, "reward.custom_reward_function.path is empty"
    kwargs = config.reward.custom_reward_function.reward_kwargs
    scores = [
        reward(data_source="preflight", solution_str=f"Answer: {a}\n\\boxed{{{a}}}", ground_truth="42")["score"]
        for a in (42, 41)
    ]
    assert scores == [1.0, -1.0], f"42 and 41 against 42 score {scores}"
    return f"{config.reward.custom_reward_function.path} {dict(kwargs)}: +1 and -1"


def _selector(config: Any) -> str:
    from stapo_training.methods import selector_from

    return selector_from(config.actor_rollout_ref.selector, config.actor_rollout_ref.actor).name


PARTS: dict[str, Callable[[Any], str]] = {
    "platform": _platform,
    "worker and engine": _worker,
    "attention": _attention,
    "rollout": _rollout,
    "trainer mode": _trainer,
    "agent loop": _agent_loop,
    "reward": _reward,
    "selector": _selector,
}


def main() -> int:
    from omegaconf import OmegaConf

    config = OmegaConf.create(json.load(sys.stdin)["config"])
    out, sys.stdout = sys.stdout, sys.stderr  # libraries print while they are imported
    found: dict[str, str] = {}
    for part, look in PARTS.items():
        try:
            found[part] = look(config)
        except Exception as e:  # noqa: BLE001  # whatever it is, it is reported with its part
            print(json.dumps({"lacking": part, "error": f"{type(e).__name__}: {e}"}), file=out)
            return 1
    print(json.dumps({"found": found}), file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
