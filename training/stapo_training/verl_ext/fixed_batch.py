"""The mini-batch of `stapo-train check`: a small random model, sixteen sequences, and their statistics under it.

Of the four responses to a prompt one, two, three and all are right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

from stapo_training.by_hand import TokensByHand
from stapo_training.selection.token_stats import token_keys

SEQUENCES, GROUP = 16, 4


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
