"""Algorithm 1's gradient without a second forward pass: guess the threshold, train, correct what the guess got wrong.

The guess is the threshold that this very mini-batch has under the old policy, whose statistics the old-log-prob pass
left behind; where it left none, the threshold of the mini-batch before in the same step. A guess puts a few candidates
on the wrong side of the true threshold; a second forward and backward pass over just their sequences, cut behind their
last such token, adds or subtracts their gradients. What comes out is the two-pass gradient up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric

from stapo_results.errors import RunFailed
from stapo_training.selection.correction import Correction, correction
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats
from stapo_training.verl_ext.mini_batch import Batch
from stapo_training.verl_ext.plans.base import Outputs, Plan


def refuse_dropout(module: torch.nn.Module) -> None:
    """Raise where training draws what it drops: a sequence that is run again would not cancel its first gradient.

    Raises:
        RunFailed: naming a part of the model that has dropout.
    """
    for name, part in module.named_modules():
        p = part.p if isinstance(part, torch.nn.modules.dropout._DropoutNd) else getattr(part, "attention_dropout", 0.0)
        if isinstance(p, int | float) and p > 0:
            raise RunFailed(
                "selector.form=speculative runs sequences twice, and dropout would make the two differ",
                found=f"dropout {p:g} in {name or type(part).__name__}",
                expected="a model without dropout",
                next_step="set actor_rollout_ref.selector.form=two_pass, or the model's dropout to 0",
            )


class GuessedPlan(Plan):
    """`form=speculative`, the default."""

    def train(self) -> Outputs:
        guess = self._guess()
        guessed_N = torch.zeros_like(self.buffer.response_N)

        def decide(stats: TokenStats, index: torch.Tensor) -> torch.Tensor:
            guessed_N[index] = self.selector.select(stats, threshold=guess).keep_N
            return guessed_N[index]

        outputs = self.train_pass(decide)
        chosen = self.select(self.buffer.stats())
        self._correct(outputs, guessed_N, chosen)
        if abs(guess) != INFINITY and abs(chosen.threshold) != INFINITY:
            self.metrics["guess_error"] = abs(guess - chosen.threshold)
        self.divide(outputs, chosen)
        self.finish(chosen)
        self.engine.last_threshold = chosen.threshold
        return outputs

    def _guess(self) -> float:
        if self.old is not None:
            return self.select(self.old).threshold
        last = self.engine.last_threshold
        return -INFINITY if last is None else last

    def _correct(self, outputs: Outputs, guessed_N: torch.Tensor, chosen: Selection) -> None:
        """Add to the gradients what the guess left out, take away what it added; log what that took.

        redone_share: tokens run again, of all. redone_longest: those of the rank that ran most, of a rank's tokens; all
        ranks wait for it.
        """
        wrong = correction(guessed_N, chosen.keep_N, self.buffer.offsets)
        most = self._most(torch.tensor([len(wrong.row_R)], device=self.buffer.offsets.device))
        if most == 0:
            self.metrics |= {"redone_share": 0.0, "redone_longest": 0.0}
            return
        size = most
        if not tu.get_non_tensor_data(data=self.data, key="use_dynamic_bsz", default=True):
            size = min(most, int(self.data["micro_batch_size_per_gpu"]))
        parts = cut(self.data, wrong, self.buffer.offsets, -(-most // size) * size)
        tu.assign_non_tensor(parts, micro_batch_size_per_gpu=size)
        tokens = self.total(self.buffer.response_N)
        again = self.engine.verl_pass(parts, CorrectionLoss(self.loss, tokens))
        outputs["loss"] += again["loss"]
        for key, metric in again["metrics"].items():
            outputs["metrics"][key].extend(metric)
        longest = self._most(wrong.tokens_R.sum())
        self.metrics["redone_share"] = self.total(wrong.tokens_R) / tokens
        self.metrics["redone_longest"] = float(longest) * self.engine.get_data_parallel_size() / tokens

    def _most(self, number: torch.Tensor) -> int:
        """The largest of the ranks' numbers."""
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self.group)
        return int(number)


@dataclass
class CorrectionLoss:
    """The loss of the tokens that a guess silenced wrongly, minus that of those it kept wrongly, over N tokens."""

    loss: Callable
    tokens: float

    def __call__(self, model_output: dict, data: Batch, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        signed = []
        for name in ("added", "removed"):
            masked = data.copy()
            tu.assign_non_tensor(masked, batch_num_tokens=self.tokens)
            masked["response_mask"] = data[name]
            signed.append(self.loss(model_output=model_output, data=masked, dp_group=dp_group))
        (added, sums), (removed, minus) = signed
        return added - removed, {
            k: Metric(value=m.aggregate() - minus[k].aggregate(), aggregation=m.aggregation)
            for k, m in sums.items()
            if isinstance(m, Metric) and m.aggregation == AggregationType.SUM
        }


_CUT = {
    "prompts": (True, False),
    "input_ids": (True, True),
    "position_ids": (True, True),
    **dict.fromkeys(("responses", "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights"), (False, True)),
}
"""Field -> whether it covers the prompt, and whether the response."""
_SETTINGS = (
    "temperature",
    "global_batch_size",
    "use_remove_padding",
    "use_fused_kernels",
    "use_dynamic_bsz",
    "max_token_len_per_gpu",
    "micro_batch_size_per_gpu",
    "pad_token_id",
)


def cut(data: Batch, wrong: Correction, offsets: torch.Tensor, count: int) -> Batch:
    """The sequences of a correction, each cut behind its last token that counts, filled up to `count` sequences.

    All ranks have to run equally many; the filling is a short prompt with one response token and an empty mask (without
    a response token on a rank none of whose sequences has any).
    """
    prompts, responses = (data[name].offsets().diff().tolist() for name in ("prompts", "responses"))
    shortest = min(range(len(prompts)), key=lambda r: (responses[r] == 0, prompts[r]))
    filling = [shortest] * (count - len(wrong.row_R))
    rows = wrong.row_R.tolist() + filling
    lengths = wrong.tokens_R.tolist() + [min(1, responses[shortest])] * len(filling)
    real = [True] * len(wrong.row_R) + [False] * len(filling)
    starts = offsets.tolist()

    def nested(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    fields = {}
    for name, (prompt, response) in _CUT.items():
        if data.get(name) is not None:
            whole = data[name].unbind()
            ends = [prompt * prompts[r] + response * n for r, n in zip(rows, lengths, strict=True)]
            fields[name] = nested([whole[r][:end] for r, end in zip(rows, ends, strict=True)])
    mask = data["response_mask"]
    for name, flat in (("added", wrong.added_N), ("removed", wrong.removed_N)):
        signs = flat.to(mask.dtype).to(mask.device)
        fields[name] = nested(
            [signs[starts[r] : starts[r] + n] * on for r, n, on in zip(rows, lengths, real, strict=True)]
        )
    fields["response_mask"] = fields["loss_mask"] = fields["added"]
    parts = TensorDict(fields, batch_size=count)
    known = {k: v for k in _SETTINGS if (v := tu.get_non_tensor_data(data=data, key=k, default=None)) is not None}
    tu.assign_non_tensor(parts, calculate_entropy=False, **known)
    return parts
