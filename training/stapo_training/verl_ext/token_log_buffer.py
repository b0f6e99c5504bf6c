"""What the token log keeps of a mini-batch, collected while its micro-batches pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stapo_training.methods import SelectorConfig
from stapo_training.selection import selectors
from stapo_training.selection.token_stats import TokenStats
from stapo_training.token_log.rows import MiniBatch, Part, clipped, logged
from stapo_training.token_log.writer import TokenLogConfig

Clip = tuple[float, float, float]
TOP = 5
"""Most probable tokens that a row names."""


class TokenLogBuffer:
    """Buffers over a mini-batch's N response tokens, on one rank.

    Args:
        judged: the statistics that the selector judges by, where the pass that is watched does not make them.
        clip: the policy loss's (low, high, clip_ratio_c); None where it clips otherwise or not at all.
    """

    def __init__(
        self,
        data: Any,
        config: TokenLogConfig,
        selector: SelectorConfig,
        clip: Clip | None,
        judged: TokenStats | None,
        device: Any,
    ):
        self.config, self.selector, self.clip, self.judged = config, selector, clip, judged
        self.token_N = data["responses"].values().to(device)
        self.watched_N = torch.isin(self.token_N, torch.tensor(config.watch, dtype=torch.long, device=device))
        count = len(self.token_N)
        self.collision_N = torch.full((count,), float("nan"), device=device)
        self.top_id_NK = torch.zeros(count, TOP, dtype=torch.long, device=device)
        self.top_logprob_NK = torch.full((count, TOP), float("nan"), device=device)

    def wanted(self, passing: TokenStats, index_M: torch.Tensor) -> torch.Tensor:
        """Of the tokens of a micro-batch that passes, by what the selector judges by: those that get a row."""
        stats = passing if self.judged is None else self.judged.take(index_M)
        if self.config.mode == "full":
            return stats.response_N
        return self._rare(stats) | (self.watched_N[index_M] & stats.response_N & (stats.advantage_N > 0))

    def _rare(self, stats: TokenStats) -> torch.Tensor:
        return selectors.rare_in_correct(stats, self.selector.tau_p)

    def keep_top(self, index_M: torch.Tensor, top_id_MK: torch.Tensor, top_logprob_MK: torch.Tensor) -> None:
        """Keep the most probable tokens at some tokens."""
        self.top_id_NK[index_M], self.top_logprob_NK[index_M] = top_id_MK, top_logprob_MK

    def finish(
        self, data: Any, passed: TokenStats, keep_N: torch.Tensor, pool: selectors.Pool, step: int, number: int
    ) -> Part:
        """This rank's rows and counts of the mini-batch.

        Args:
            passed: the current policy's statistics. keep_N: what was trained. pool: over the ranks.
            step, number: of the rollout step and, in it, of the mini-batch.
        """
        judged = passed if self.judged is None else self.judged
        s = self.selector
        chosen = selectors.silence_spurious(judged, tau_p=s.tau_p, q=s.q, pool=pool)
        any_rare = pool(self._rare(judged).sum()[None]).sum() > 0
        old_N = data["old_log_probs"].values().float().to(passed.logprob_N.device)
        sampler = data.get("rollout_log_probs")  # veRL leaves it out without rollout.calculate_log_probs
        sampler_N = torch.full_like(old_N, float("nan")) if sampler is None else sampler.values().float().to(old_N)
        mismatch_N = (old_N - sampler_N).abs()
        positive_N = judged.response_N & (judged.advantage_N > 0) & mismatch_N.isfinite()
        ratio_N, advantage_N = _numpy((passed.logprob_N - old_N).exp()), _numpy(judged.advantage_N)
        cut_N = np.zeros(len(ratio_N), bool) if self.clip is None else clipped(advantage_N, ratio_N, *self.clip)
        ids = data["input_ids"]
        prompts, samples = _prompts_and_samples(data)
        m = MiniBatch(
            step=step,
            number=number,
            prompt_id_B=prompts,
            sample_B=samples,
            ids=_numpy(ids.values()),
            end_B=_numpy(ids.offsets()[1:]),
            response_B=_numpy(data["responses"].offsets().diff()),
            response_N=_numpy(judged.response_N),
            advantage_N=advantage_N,
            logprob_N=_numpy(judged.logprob_N),
            entropy_N=_numpy(judged.entropy_N),
            logprob_now_N=_numpy(passed.logprob_N),
            ratio_N=ratio_N,
            clipped_N=cut_N,
            collision_N=_numpy(self.collision_N),
            rare_N=_numpy(self._rare(judged)),
            silenced_N=_numpy(judged.response_N & ~keep_N),
            top_id_NK=_numpy(self.top_id_NK),
            top_logprob_NK=_numpy(self.top_logprob_NK),
            tau_h=chosen.threshold if any_rare else None,
            old_logprob_N=_numpy(old_N),
            sampler_logprob_N=_numpy(sampler_N),
            mismatched_N=_numpy(largest(mismatch_N, positive_N, judged.response_N & ~chosen.keep_N, pool)),
        )
        return logged(m, self.config.mode, self.config.watch, self.config.most_rows)


def largest(
    values_N: torch.Tensor, among_N: torch.Tensor, as_many_as_N: torch.Tensor, pool: selectors.Pool
) -> torch.Tensor:
    """(N,): of the tokens `among_N` those with the largest values, over all ranks as many as `as_many_as_N` has; more
    where several are equal at the end."""
    count = int(pool(as_many_as_N.sum()[None]).sum())
    every_M = pool(values_N[among_N])
    if not count or not len(every_M):
        return torch.zeros_like(among_N)
    return among_N & (values_N >= every_M.topk(min(count, len(every_M))).values[-1])


def _numpy(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _prompts_and_samples(data: Any) -> tuple[list[str], list[int]]:
    """(problem id, sample) of each sequence, as the data set and the agent loop left them; "" and 0 without them."""
    count = len(data)
    info = data.get("extra_info")
    found = [{}] * count if info is None else [x if isinstance(x, dict) else {} for x in info.tolist()]
    sample = data.get("session_id")
    return (
        [str(x.get("problem_id", "")) for x in found],
        [0] * count if sample is None else [int(x) for x in sample.tolist()],
    )
