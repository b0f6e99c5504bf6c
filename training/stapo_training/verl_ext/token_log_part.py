"""A rank's part of the token log for one mini-batch: what is recorded while it passes, and its rows and counts."""

from __future__ import annotations

import numpy as np
import torch

from stapo_training.methods import SelectorConfig
from stapo_training.selection import selectors
from stapo_training.selection.token_stats import TokenStats
from stapo_training.token_log.rows import TOP, LogPart, MiniBatch, clipped, logged
from stapo_training.token_log.writer import TokenLogConfig
from stapo_training.verl_ext.logits import PackedLogits
from stapo_training.verl_ext.mini_batch import Batch, RankTokens, TrainedStep

ROW = "selector_row"
"""The key under which micro-batches carry their sequences' rows in the mini-batch."""


class LogRecorder:
    """What the token log needs of a training pass: micro-batches are recorded as they pass, then `part` makes this
    rank's part of the log.

    Attributes:
        judged: the statistics by which tokens were selected; where all are kept, those that pass.
        passed: the current policy's, as they pass; its entropies only where they are `judged`.
        collision_N: the sums of squared probabilities. top_id_NK, top_logprob_NK: the most probable tokens where a row
            is written.
    """

    def __init__(
        self,
        tokens: RankTokens,
        judged: TokenStats | None,
        selector: SelectorConfig,
        log: TokenLogConfig,
        ids_N: torch.Tensor,
    ):
        self.tokens, self.selector, self.log = tokens, selector, log
        unseen_N = torch.full_like(tokens.advantage_N, float("nan"))
        self.passed = tokens.stats(unseen_N, torch.zeros_like(unseen_N))
        self.judged, self.wants_entropy = judged or self.passed, judged is None
        watch = torch.tensor(log.watch, dtype=torch.long, device=unseen_N.device)
        self.watched_N = torch.isin(ids_N.to(unseen_N.device), watch)
        self.collision_N = unseen_N.clone()
        self.top_id_NK = torch.zeros(len(unseen_N), TOP, dtype=torch.long, device=unseen_N.device)
        self.top_logprob_NK = unseen_N[:, None].repeat(1, TOP)

    def record(
        self,
        rows_B: torch.Tensor,
        logprob_M: torch.Tensor,
        entropy_M: torch.Tensor | None,
        collision_M: torch.Tensor,
        logits: PackedLogits,
    ) -> None:
        """Record the M tokens of a micro-batch's rows; `entropy_M` where `wants_entropy`."""
        index_M = self.tokens.index(rows_B)
        self.passed.logprob_N[index_M] = logprob_M
        every_M = self.tokens.response_N[index_M]
        at = index_M[every_M]
        self.collision_N[at] = collision_M[every_M]
        if entropy_M is not None:
            self.passed.entropy_N[at] = entropy_M[every_M]
        wanted_M = self._logged(index_M)
        if wanted_M.any():
            at = index_M[wanted_M]
            self.top_id_NK[at], self.top_logprob_NK[at] = logits.most_probable(wanted_M, TOP)

    def _logged(self, index_M: torch.Tensor) -> torch.Tensor:
        """The tokens of a micro-batch that get a row in the token log."""
        judged = self.judged.take(index_M)
        if self.log.mode == "full":
            return judged.response_N
        watched_M = self.watched_N[index_M] & judged.response_N & (judged.advantage_N > 0)
        return selectors.rare_in_correct(judged, self.selector.tau_p) | watched_M

    def part(
        self,
        now: TrainedStep,
        clip: tuple[float, float, float] | None,
        data: Batch,
        keep_N: torch.Tensor,
        pool: selectors.Pool,
    ) -> LogPart:
        """This rank's rows and counts of the mini-batch, once all of it has passed.

        Args:
            clip: of the loss, as the engine has it. keep_N: the trained tokens. pool: over the ranks.
        """
        passed, judged, s, log = self.passed, self.judged, self.selector, self.log
        chosen = selectors.silence_spurious(judged, tau_p=s.tau_p, q=s.q, among=s.among, pool=pool)
        rare_N = chosen.candidate_N
        any_rare = pool(rare_N.sum()[None]).sum() > 0
        old_N = data["old_log_probs"].values().float().to(passed.logprob_N.device)
        sampler = data.get("rollout_log_probs")  # veRL leaves it out without rollout.calculate_log_probs
        sampler_N = torch.full_like(old_N, float("nan")) if sampler is None else sampler.values().float().to(old_N)
        mismatch_N = (old_N - sampler_N).abs()
        positive_N = judged.response_N & (judged.advantage_N > 0) & mismatch_N.isfinite()
        ratio_N, advantage_N = _numpy((passed.logprob_N - old_N).exp()), _numpy(judged.advantage_N)
        cut_N = np.zeros(len(ratio_N), bool) if clip is None else clipped(advantage_N, ratio_N, *clip)
        ids = data["input_ids"]
        m = MiniBatch(
            step=now.number,
            number=now.mini_batch,
            prompt_id_B=[str(x["problem_id"]) for x in data.get("extra_info").tolist()],
            sample_B=[int(x) for x in data.get("session_id").tolist()],
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
            rare_N=_numpy(rare_N),
            silenced_N=_numpy(judged.response_N & ~keep_N),
            top_id_NK=_numpy(self.top_id_NK),
            top_logprob_NK=_numpy(self.top_logprob_NK),
            tau_h=chosen.threshold if any_rare else None,
            old_logprob_N=_numpy(old_N),
            sampler_logprob_N=_numpy(sampler_N),
            mismatched_N=_numpy(largest(mismatch_N, positive_N, judged.response_N & ~chosen.keep_N, pool)),
        )
        return logged(m, log.mode, log.watch, log.most_rows)


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
