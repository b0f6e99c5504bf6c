"""One rank of the worker test: run by test_worker.py as a process (RANK, WORLD_SIZE, MASTER_*), prints JSON lines.

Builds veRL's training worker with our selector, without Ray, feeds it one mini-batch of eight sequences, and compares
with the same mini-batch worked out here: a plain transformers model, numpy's quantile and the objective written out.
"""

import json
import os
import sys
from functools import partial

import numpy as np
import torch

CASES = {
    "micro 1": {"micro": 1, "dynamic": False},
    "micro 4": {"micro": 4, "dynamic": False},
    "dynamic": {"micro": 1, "dynamic": True},
}
TAU_P, Q, CLIP = 0.02, 0.6, (0.2, 0.28)


def sequences() -> list[dict[str, torch.Tensor]]:
    """Eight sequences of different lengths, four of them with a positive advantage."""
    g = torch.Generator().manual_seed(7)
    made = []
    for i in range(8):
        prompt, response = 4 + i % 3, 5 + (3 * i) % 7
        ids = torch.randint(5, 60, (prompt + response,), generator=g)
        made.append(
            {
                "prompts": ids[:prompt],
                "responses": ids[prompt:],
                "input_ids": ids,
                "position_ids": torch.arange(prompt + response),
                "response_mask": torch.ones(response, dtype=torch.long),
                "advantages": torch.full((response,), [1.62, -0.54, 0.35, -1.21][i % 4]),
                "old_log_probs": -4.1 + 0.25 * torch.randn(response, generator=g),
            }
        )
    return made


def by_hand(model_path: str, batch: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path).float()
    logps, entropies = [], []
    for s in batch:
        start = len(s["prompts"]) - 1
        logits = model(s["input_ids"][None]).logits[0, start:-1]
        logp = torch.log_softmax(logits, -1)
        logps.append(logp[torch.arange(len(s["responses"])), s["responses"]])
        entropies.append(-(logp.exp() * logp).sum(-1).detach())
    logp, entropy = torch.cat(logps), torch.cat(entropies)
    advantage = torch.cat([s["advantages"] for s in batch])
    old = torch.cat([s["old_log_probs"] for s in batch])
    candidate = (advantage > 0) & (logp.detach().exp() < TAU_P)
    threshold = float(np.quantile(entropy[candidate].double().numpy(), Q))
    keep = ~(candidate & (entropy.double() < threshold))
    ratio = (logp - old).exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP[0], 1 + CLIP[1]) * advantage)
    loss = -(surrogate * keep).sum() / keep.sum()
    loss.backward()
    norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None))
    return {
        "loss": loss.item(),
        "grad_norm": float(norm),
        "threshold": threshold,
        "candidates": int(candidate.sum()),
        "kept": int(keep.sum()),
        "silenced": int((~keep).sum()),
    }


def worker(model_path: str, micro: int, dynamic: bool):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.utils.losses import ppo_loss

    from stapo_training.launch import compose
    from stapo_training.methods import SelectorConfig
    from stapo_training.verl_ext.worker import SelectingTrainingWorker

    base = os.path.dirname(model_path)
    config = compose(
        [
            f"run.base={base}",
            "run.out=unused",
            "actor_rollout_ref.actor.optim.clip_grad=1e9",
            "actor_rollout_ref.actor.optim.lr_warmup_steps=-1",
        ]
    ).actor_rollout_ref
    model, actor = omega_conf_to_dataclass(config.model), omega_conf_to_dataclass(config.actor)
    actor.model_config = model
    made = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine = made.engine_config
    engine.use_dynamic_bsz = dynamic
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = micro
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = 48
    w = SelectingTrainingWorker(config=made)
    w.reset()
    w.set_loss_fn(partial(ppo_loss, config=actor))
    w.selector = SelectorConfig(name="silence_spurious", tau_p=TAU_P, q=Q)
    return w


def step(w, batch: list[dict[str, torch.Tensor]], rank: int, ranks: int) -> dict[str, float]:
    import torch.distributed as dist
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    mine = batch[rank * len(batch) // ranks : (rank + 1) * len(batch) // ranks]
    nested = {k: torch.nested.as_nested_tensor([s[k] for s in mine], layout=torch.jagged) for k in mine[0]}
    data = TensorDict(nested | {"loss_mask": nested["response_mask"]}, batch_size=len(mine))
    tu.assign_non_tensor(
        data,
        temperature=1.0,
        calculate_entropy=True,
        global_batch_size=len(batch),
        mini_batch_size=len(batch),
        epochs=1,
        seed=1,
        dataloader_kwargs={"shuffle": False},
    )
    output = w.train_mini_batch(data)
    output = output.get() if hasattr(output, "get") and not isinstance(output, TensorDict) else output
    metrics = tu.get(output, "metrics")

    def number(key: str) -> float:
        value = metrics[key]
        return float(value[0] if isinstance(value, list) else value)

    with torch.no_grad():
        total = sum(
            (p.full_tensor() if hasattr(p, "full_tensor") else p).double().abs().sum()
            for p in w.engine.module.parameters()
        )
    dist.barrier()
    return {
        "loss": number("loss"),
        "grad_norm": number("grad_norm"),
        "threshold": number("selector/threshold"),
        "candidates": number("selector/candidate_tokens"),
        "kept": number("selector/kept_tokens"),
        "silenced": number("selector/silenced_tokens"),
        "parameters": float(total),
    }


def main() -> None:
    model_path = sys.argv[1]
    torch.set_num_threads(1)
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    import torch.distributed as dist

    import stapo_training.verl_ext.platform  # noqa: F401

    batch = sequences()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        print(json.dumps({"case": "by hand", **by_hand(model_path, batch)}), flush=True)
    for name, case in CASES.items():
        found = step(worker(model_path, **case), batch, rank, ranks)
        if rank == 0:
            print(json.dumps({"case": name, **found}), flush=True)
    # the order of the sequences must not matter either
    found = step(worker(model_path, 4, False), batch[::-1], rank, ranks)
    if rank == 0:
        print(json.dumps({"case": "reversed", **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
