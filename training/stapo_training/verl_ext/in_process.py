"""veRL's training worker in this very process, without Ray, on single mini-batches: for `check`, `bench` and tests.

The caller is one rank; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which, as torchrun sets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from stapo_training.selection import logit_statistics
from stapo_training.verl_ext.worker import SelectingTrainingWorker


def build(config: Any) -> SelectingTrainingWorker:
    """The actor's worker of a composed configuration, with its loss and its selector."""
    config = config.actor_rollout_ref
    model, actor = omega_conf_to_dataclass(config.model), omega_conf_to_dataclass(config.actor)
    actor.model_config = model
    worker_config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    worker = SelectingTrainingWorker(config=worker_config)
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    worker.engine.logits_form = logit_statistics.chosen_form(
        config.logits_form, model.hf_config.vocab_size, get_device_name()
    )
    worker.follow(config)
    return worker


def batch(sequences: Sequence[Mapping[str, torch.Tensor]], **settings: Any) -> TensorDict:
    """This rank's sequences as the trainer hands them over.

    Args:
        sequences: each a mapping of vectors: prompts, responses, input_ids, position_ids, response_mask, advantages,
            old_log_probs, and entropy where the old policy's is known.
        settings: veRL's per-call settings (temperature, mini_batch_size, micro_batch_size_per_gpu, ...).
    """
    fields = {k: torch.nested.as_nested_tensor([s[k] for s in sequences], layout=torch.jagged) for k in sequences[0]}
    data = TensorDict({"loss_mask": fields["response_mask"]} | fields, batch_size=len(sequences))
    defaults = {"temperature": 1.0, "epochs": 1, "seed": 1, "dataloader_kwargs": {"shuffle": False}}
    tu.assign_non_tensor(data, **defaults | settings)
    return data


def metrics(output: Any) -> dict[str, Any]:
    """What a call of the worker logs."""
    return tu.get(output if isinstance(output, TensorDict) else output.get(), "metrics")


def old_policy(worker: SelectingTrainingWorker, data: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    """veRL's old-log-prob pass: (log-probabilities, entropies) of the responses, jagged."""
    output, mask = old_log_prob_pass(worker, data), data["response_mask"]
    return response_from_nested(output["log_probs"], mask), response_from_nested(output["entropy"], mask)


def old_log_prob_pass(worker: SelectingTrainingWorker, data: TensorDict) -> TensorDict:
    """All fields that veRL's old-log-prob pass leaves."""
    data = data.copy()
    tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False)
    output: Any = worker.infer_batch(data)
    return output if isinstance(output, TensorDict) else output.get()
