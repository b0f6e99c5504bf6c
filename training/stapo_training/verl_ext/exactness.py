"""`stapo-train check`: a method's objective through the real veRL worker, against the calculation by hand.

One fixed mini-batch of sixteen sequences under a small random model: of the four responses to a prompt one, two, three
and all are right. The worker trains it at several micro-batches, on one rank and on two, and the gradients that its
optimizer would be given are compared, number by number. Importing veRL takes longer than the rest, so that it is
imported once, and every worker is a fork of that process.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils import tensordict_utils as tu

from stapo_results.errors import RunFailed
from stapo_training import by_hand
from stapo_training.by_hand import TokensByHand
from stapo_training.methods import Definition
from stapo_training.selection.token_stats import token_keys
from stapo_training.verl_ext import in_process, platform
from stapo_training.verl_ext.advantages import PROXY

assert platform  # registers the CPU

SEQUENCES, GROUP = 16, 4
LIMIT = 1e-5
"""The largest relative difference that float32 rounding explains."""
SPLITS: dict[str, dict[str, Any]] = {
    "1 sequence": {"micro_batch_size_per_gpu": 1, "use_dynamic_bsz": False},
    "4 sequences": {"micro_batch_size_per_gpu": 4, "use_dynamic_bsz": False},
    "packed": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 48},
}
_WHOLE: dict[str, dict[str, Any]] = {
    "16 sequences": {"micro_batch_size_per_gpu": SEQUENCES, "use_dynamic_bsz": False},
}


_MORE = 75
"""Times Lp-Reg's share of tokens and STARE's target: of this mini-batch 1 % are none, and its entropy is above 0.3."""


Compose = Callable[[Sequence[str]], Any]
"""Overrides -> the composed configuration."""


@dataclass(frozen=True)
class Case:
    """One way to train the mini-batch, and how far it is from the calculation by hand; of several updates the largest.

    loss: the difference over the sum of the tokens' absolute losses. norm: of the gradients' norms, relative. gradient:
    the norm of the gradients' difference, relative. tokens: kept tokens more or fewer. silenced: tokens that the worker
    left out, of all `counted` ones.
    """

    ranks: int
    split: str
    loss: float
    norm: float
    gradient: float
    tokens: int
    silenced: int
    counted: int

    @property
    def exact(self) -> bool:
        return max(self.loss, self.norm, self.gradient) <= LIMIT and self.tokens == 0


def check(compose: Compose, overrides: Sequence[str], definition: Definition) -> Iterator[Case]:
    """Train the mini-batch with the configuration of `overrides` in every way; each is held against `definition`.

    Raises:
        RunFailed: when a worker fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        forked(1, make_model, Path(folder))
        base = ["size=mini", "hardware=cpu", *overrides, f"run.base={folder}", f"run.out={folder}/unused"]
        config = compose(base)
        longest = config.data.max_response_length
        for part, name in (("proxy", "lowest"), ("advantage", "target_entropy")):
            value = _MORE * config.actor_rollout_ref[part][name]
            base.append(f"actor_rollout_ref.{part}.{name}={min(value, 1.0) if name == 'lowest' else value}")
            definition = definition.model_copy(update={name: _MORE * getattr(definition, name)})
        hand = forked(1, _by_hand, Path(folder), definition, longest)
        for ranks in (1,) if definition.within_micro_batch else (1, 2):
            splits = _WHOLE if definition.within_micro_batch else SPLITS
            for split, trained in forked(ranks, _trained, Path(folder), compose(base), splits).items():
                yield _compared(ranks, split, trained, hand)


def make_model(folder: Path) -> None:
    """The miniature's architecture with random weights."""
    from stapo_training.miniature.pretrain import Recipe, build_model
    from stapo_training.miniature.tokenizer import END_OF_TEXT, IM_END, build_tokenizer

    tokenizer = build_tokenizer()
    ids = tokenizer.get_vocab()
    model = build_model(Recipe(), len(tokenizer), seed=0, end_id=ids[IM_END], pad_id=ids[END_OF_TEXT])
    with torch.no_grad():
        model.model.embed_tokens.weight *= 3  # so that some tokens are likely and many are rare
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "data").mkdir()


def rows_and_statistics(
    folder: Path, longest: int, temperature: float = 1.0
) -> tuple[Any, list[dict[str, torch.Tensor]], TokensByHand]:
    """A plain transformers model, the mini-batch as rows without advantages, and its statistics under this model."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model").float()
    g = torch.Generator().manual_seed(7)
    rows, logp, every, entropy, keys = [], [], [], [], []
    for i in range(SEQUENCES):
        prompt, response = 4 + i % 3, 5 + (3 * i) % 7
        ids = torch.randint(5, 200, (prompt,), generator=g)
        for _ in range(response):  # a likely token or any
            likely = model(ids[None]).logits[0, -1].argmax()
            any_token = torch.randint(5, 200, (), generator=g)
            ids = torch.cat([ids, (likely if torch.rand((), generator=g) < 0.5 else any_token)[None]])
        logits = model(ids[None]).logits[0, prompt - 1 : -1] / temperature
        row_logp = torch.log_softmax(logits, -1)
        every.append(row_logp.detach())
        logp.append(row_logp[torch.arange(response), ids[prompt:]])
        entropy.append(-(row_logp.exp() * row_logp).sum(-1).detach())
        keys.append(token_keys(ids, torch.tensor([0, len(ids)]), torch.tensor([0, response]), seed=0))
        current = logp[-1].detach()

        def other(policy: torch.Tensor, far: float, n: int = response) -> torch.Tensor:
            """Log-probabilities near the given ones."""
            return (policy + far * torch.randn(n, generator=g)).clamp(max=-0.01)

        old = other(current, 0.25)
        rows.append(
            {
                "number": torch.tensor([i]),
                "prompts": ids[:prompt],
                "responses": ids[prompt:],
                "input_ids": ids,
                "position_ids": torch.arange(prompt + response),
                "response_mask": torch.ones(response, dtype=torch.long),
                "old_log_probs": old,
                "rollout_log_probs": other(old, 0.8),
                "ref_log_prob": other(current, 0.25),
                "entropy": entropy[-1] + 0.5 * torch.randn(response, generator=g),
            }
        )
    statistics = {"logprob_N": torch.cat(logp), "every_NV": torch.cat(every), "key_N": torch.cat(keys).numpy()}
    return model, rows, _tokens(rows, entropy_N=torch.cat(entropy).double().numpy(), longest=longest, **statistics)


def _tokens(rows: list[dict[str, torch.Tensor]], **statistics: Any) -> TokensByHand:
    """The rows as `by_hand` reads them."""
    old_N, reference_N, rollout_N, chosen_N = (
        torch.cat([r[k] for r in rows]) for k in ("old_log_probs", "ref_log_prob", "rollout_log_probs", "responses")
    )
    return TokensByHand(
        old_N=old_N,
        reference_N=reference_N,
        rollout_N=rollout_N,
        chosen_N=chosen_N,
        sequence_N=torch.cat([torch.full((len(r["responses"]),), i) for i, r in enumerate(rows)]),
        reward_S=torch.tensor([1.0 if i % GROUP <= i // GROUP else -1.0 for i in range(SEQUENCES)]),
        group_S=torch.arange(SEQUENCES) // GROUP,
        **statistics,
    )


def with_advantages(
    config: Any, rows: list[dict[str, torch.Tensor]], tokens: TokensByHand
) -> list[dict[str, torch.Tensor]]:
    """The rows with rewards, and with advantages and rollout weights as veRL's trainer computes them."""
    lengths = [len(r["responses"]) for r in rows]

    def padded(name: str) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([r[name] for r in rows], batch_first=True)

    mask = padded("response_mask")
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(SEQUENCES), torch.tensor(lengths) - 1] = tokens.reward_S
    fields = {"response_mask": mask, "token_level_rewards": rewards}
    fields |= {name: padded(name) for name in ("old_log_probs", "rollout_log_probs")}
    data = DataProto(TensorDict(fields, batch_size=SEQUENCES))
    data.non_tensor_batch["uid"] = np.array([str(int(g)) for g in tokens.group_S], dtype=object)
    algorithm = config.algorithm
    if algorithm.rollout_correction.rollout_is:
        data, _ = compute_rollout_correction_and_add_to_batch(data, algorithm.rollout_correction)
    data = compute_advantage(
        data,
        adv_estimator=algorithm.adv_estimator,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    )
    assert data.batch is not None
    wanted = [k for k in ("advantages", "rollout_is_weights") if k in data.batch]
    return [
        r | {"rm_scores": rewards[i, :n]} | {k: data.batch[k][i, :n].float() for k in wanted}
        for i, (r, n) in enumerate(zip(rows, lengths, strict=True))
    ]


def _compared(ranks: int, split: str, found: dict[str, Any], hand: dict[str, Any]) -> Case:
    losses, norms, gradients = [], [], []
    for loss, gradient, choices in zip(found["loss"], found["gradient"], hand["updates"], strict=True):
        # where the method draws one of several, the one that it drew
        by_loss, size, by_gradient = min(choices, key=lambda c: float(np.linalg.norm(gradient - c[2])))
        norm = float(np.linalg.norm(by_gradient))
        losses.append(abs(loss - by_loss) / size)
        norms.append(abs(float(np.linalg.norm(gradient)) - norm) / norm)
        gradients.append(float(np.linalg.norm(gradient - by_gradient)) / norm)
    tokens = int(found["kept"]) - hand["kept"] if found["kept"] is not None else 0
    silenced = int(found["silenced"])
    return Case(ranks, split, max(losses), max(norms), max(gradients), tokens, silenced, hand["kept"] + silenced)


def forked(ranks: int, work: Callable, *args: Any) -> Any:
    """What `work` returns on the first of `ranks` forked processes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)

    def run(rank: int) -> None:
        os.environ |= {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
        os.environ |= {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.set_num_threads(1)
        nothing = os.open(os.devnull, os.O_WRONLY)  # what libraries log is no part of the table
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        try:
            result = work(*args)
        except Exception:  # noqa: BLE001  # it is raised again in the parent
            sender.send(traceback.format_exc())  # of any rank: the others may wait for it for ever
            return
        if rank == 0:
            sender.send(result)

    processes = [fork.Process(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for p in processes:
        p.start()
    try:
        while not receiver.poll(0.2):
            if codes := [p.exitcode for p in processes if p.exitcode]:
                raise RunFailed(
                    "a worker of the check died without a word",
                    found=f"exit code {codes[0]}",
                    next_step="free memory (2 GiB are needed) and give the same command again",
                )
        result = receiver.recv()
    finally:
        for p in processes:
            p.terminate()
            p.join()
    if isinstance(result, str):
        raise RunFailed(f"a worker of the check failed:\n{result}", next_step="correct what the traceback names")
    return result


def _by_hand(folder: Path, definition: Definition, longest: int) -> dict[str, Any]:
    """The choices of (loss, gradient) of each update, and how many tokens are kept."""
    model, _, tokens = rows_and_statistics(folder, longest)
    parameters = list(model.parameters())

    def choice(loss: torch.Tensor, size: float) -> tuple[float, float, np.ndarray]:
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        return float(loss.detach()), size, torch.cat([g.flatten() for g in gradients]).numpy()

    advantage_N = by_hand.advantages(definition, tokens)
    keep, _ = by_hand.kept(definition, tokens, advantage_N)
    losses = by_hand.losses(definition, tokens, advantage_N, torch.from_numpy(keep))
    updates = [[choice(*c) for c in choices] for choices in losses]
    return {"updates": updates, "kept": int(keep.sum())}


def step(worker: Any, rows: Sequence[Mapping[str, torch.Tensor]], **settings: Any) -> dict[str, Any]:
    """Train a rank's share of the rows as one mini-batch, without the optimizer's steps.

    Args:
        worker: of `in_process.build`. settings: veRL's per-call settings, as of `in_process.batch`.

    Returns:
        `metrics`: what the worker logs. `gradient`: of each update what its optimizer would be given, flat.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rank_rows = rows[rank * len(rows) // ranks : (rank + 1) * len(rows) // ranks]
    gradients: list[np.ndarray] = []

    def instead_of_a_step() -> float:
        gradient = torch.cat([p.grad.full_tensor().flatten() for p in worker.engine.module.parameters()])
        gradients.append(gradient.numpy().copy())
        return 0.0

    worker.engine.optimizer_step = instead_of_a_step
    engine = worker.engine.engine_config
    engine.infer_micro_batch_size_per_gpu, engine.infer_max_token_len_per_gpu = 4, 48
    sizes = {"global_batch_size": SEQUENCES, "mini_batch_size": SEQUENCES, "use_remove_padding": False}
    data = in_process.batch(rank_rows, **sizes | settings)
    numbers = [int(row["number"]) for row in rank_rows]  # the token log names the sequences by them
    tu.assign_non_tensor_stack(data, "session_id", numbers)
    tu.assign_non_tensor_stack(data, "extra_info", [{"problem_id": f"p{n:02d}"} for n in numbers])
    if worker.engine.proxy.min_p:
        data[PROXY] = in_process.old_log_prob_pass(worker, data)[PROXY]
    return {"metrics": in_process.metrics(worker.train_mini_batch(data)), "gradient": gradients}


def _trained(folder: Path, config: Any, splits: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the worker's optimizer would be given, for each split."""
    rows = with_advantages(config, *rows_and_statistics(folder, 0)[1:])
    worker = in_process.build(config)
    result = {}
    for split, settings in splits.items():
        trained = step(worker, rows, **settings)
        kept, silenced = (trained["metrics"].get(f"selector/{name}_tokens") for name in ("kept", "silenced"))
        result[split] = {
            "loss": [float(x) for x in trained["metrics"]["loss"]],
            "gradient": trained["gradient"],
            "kept": None if kept is None else float(kept[0]),
            "silenced": 0 if silenced is None else float(silenced[0]),
        }
    dist.barrier()
    return result
