"""Masks that are decided while the training pass runs: each micro-batch's own, or a guess that is corrected after it.

`form=speculative` gives Algorithm 1's gradient without a second forward pass. The guess is the threshold that this very
mini-batch has under the old policy, whose statistics the old-log-prob pass left behind; where it left none, the
threshold of the mini-batch before in the same step, and for the first none. A guess puts a few candidates on the wrong
side of the true threshold. A second forward and backward pass over just their sequences, cut behind their last such
token, adds or subtracts their gradients: a causal model's token depends on nothing behind it. What comes out is the
two-pass gradient up to rounding.
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
from stapo_training.selection.selectors import INFINITY, Selection
from stapo_training.selection.token_stats import TokenStats
from stapo_training.verl_ext.mini_batch import Batch, Outputs, SelectionParts
from stapo_training.verl_ext.selection import MiniBatchTraining, WhilePassing


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


def each_micro_batch(training: MiniBatchTraining) -> tuple[Outputs, Selection]:
    """`scope=micro_batch`: a quantile a micro-batch and rank, which is all that a loss function alone can see."""
    selector, recorder = training.selector, training.recorder
    if selector.policy == "old" and training.old is not None:
        training.check(training.old)
        recorder.judged = training.old
    parts = SelectionParts(recorder.response_N)

    def decide(stats: TokenStats, index_M: torch.Tensor) -> torch.Tensor:
        own = selector.select(stats if recorder.judged is None else recorder.judged.take(index_M))
        parts.add(index_M, own)
        return own.keep_N

    outputs = training.train_pass(decide)
    chosen = parts.joined(training.group)
    _divide(training, outputs, chosen)
    return outputs, chosen


def guess_and_correct(training: MiniBatchTraining) -> tuple[Outputs, Selection]:
    """`form=speculative`, the default."""
    selector, recorder = training.selector, training.recorder
    guess = training.engine.last_threshold
    if training.old is not None:
        training.check(training.old)
        guess = training.select(training.old).threshold
    guessed_N = recorder.response_N.clone()  # without a guess all is kept

    def decide(stats: TokenStats, index_M: torch.Tensor) -> torch.Tensor:
        if guess is not None:
            guessed_N[index_M] = selector.select(stats, threshold=guess).keep_N
        return guessed_N[index_M]

    outputs = training.train_pass(decide)
    chosen = training.select(recorder.stats())
    _correct(training, outputs, correction(guessed_N, chosen.keep_N, recorder.offsets))
    if guess is not None and abs(guess) != INFINITY and abs(chosen.threshold) != INFINITY:
        training.metrics["guess_error"] = abs(guess - chosen.threshold)
    _divide(training, outputs, chosen)
    training.engine.last_threshold = chosen.threshold
    return outputs, chosen


PLANS: dict[str, WhilePassing] = {"local": each_micro_batch, "guessed": guess_and_correct}
"""By `SelectorConfig.plan`."""


def _divide(training: MiniBatchTraining, outputs: Outputs, chosen: Selection) -> None:
    """From a mean over all response tokens to one over the kept, of gradients, losses, summed metrics."""
    factor = training.tokens_per_kept(chosen)
    for p in training.engine.module.parameters():
        if p.grad is not None:
            p.grad.mul_(factor)
    outputs["loss"] = [x * factor for x in outputs["loss"]]
    for metric in outputs["metrics"].values():
        if isinstance(metric, Metric) and metric.aggregation == AggregationType.SUM:
            metric.values = [v * factor for v in metric.values]


@dataclass(frozen=True)
class Correction:
    """R sequences to run again.

    row_R: their rows. tokens_R: how many of their response tokens (from the first) are run. added_N, removed_N: bool
    over all N response tokens; silenced by the guess though they are kept, and the other way round.
    """

    row_R: torch.Tensor
    tokens_R: torch.Tensor
    added_N: torch.Tensor
    removed_N: torch.Tensor


def correction(guessed_keep_N: torch.Tensor, keep_N: torch.Tensor, offsets: torch.Tensor) -> Correction:
    """What turns the gradient of the guessed mask into that of the true one.

    Args:
        guessed_keep_N, keep_N: the two masks, bool, over the response tokens of B sequences one after the other.
        offsets: (B + 1,), where each sequence's response begins.

    Returns:
        The sequences with a wrong token, longest part first (so that micro-batches hold parts of similar length).
    """
    added_N, removed_N = keep_N & ~guessed_keep_N, guessed_keep_N & ~keep_N
    wrong = torch.nonzero(added_N | removed_N).squeeze(-1)
    row_of_wrong = torch.searchsorted(offsets, wrong, right=True) - 1
    tokens_B = torch.zeros(len(offsets) - 1, dtype=torch.long, device=offsets.device)
    tokens_B.scatter_reduce_(0, row_of_wrong, wrong - offsets[row_of_wrong] + 1, "amax")
    rows = torch.nonzero(tokens_B).squeeze(-1)
    rows = rows[tokens_B[rows].argsort(descending=True, stable=True)]
    return Correction(rows, tokens_B[rows], added_N, removed_N)


def _correct(training: MiniBatchTraining, outputs: Outputs, wrong: Correction) -> None:
    """Add to the gradients what the guess left out, take away what it added; log what that took.

    redone_share: tokens run again, of all. redone_longest: those of the rank that ran most, of a rank's tokens; all
    ranks wait for it.
    """
    data, offsets, metrics = training.data, training.recorder.offsets, training.metrics
    most = _most(training, torch.tensor([len(wrong.row_R)], device=offsets.device))
    if most == 0:
        metrics |= {"redone_share": 0.0, "redone_longest": 0.0}
        return
    size = most
    if not tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True):
        size = min(most, int(data["micro_batch_size_per_gpu"]))
    parts = cut(data, wrong, offsets, -(-most // size) * size)
    tu.assign_non_tensor(parts, micro_batch_size_per_gpu=size)
    tokens = training.total(training.recorder.response_N)
    again = training.engine.verl_pass(parts, CorrectionLoss(training.loss, tokens))
    outputs["loss"] += again["loss"]
    for key, metric in again["metrics"].items():
        outputs["metrics"][key].extend(metric)
    longest = _most(training, wrong.tokens_R.sum())
    metrics["redone_share"] = training.total(wrong.tokens_R) / tokens
    metrics["redone_longest"] = float(longest) * training.engine.get_data_parallel_size() / tokens


def _most(training: MiniBatchTraining, number: torch.Tensor) -> int:
    """The largest of the ranks' numbers."""
    dist.all_reduce(number, op=dist.ReduceOp.MAX, group=training.group)
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
