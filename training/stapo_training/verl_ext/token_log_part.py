"""A rank's part of the token log for one mini-batch, from what was recorded of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stapo_training.selection import selectors
from stapo_training.token_log.rows import LogPart, MiniBatch, clipped, logged
from stapo_training.verl_ext.mini_batch import Batch, LogRecorder, TrainedStep


def finish(
    now: TrainedStep,
    clip: tuple[float, float, float] | None,
    data: Batch,
    recorder: LogRecorder,
    keep_N: torch.Tensor,
    pool: selectors.Pool,
) -> LogPart:
    """This rank's rows and counts of the mini-batch.

    Args:
        clip: of the loss, as the engine has it.
        recorder: with the training pass's statistics. keep_N: the trained tokens. pool: over the ranks.
    """
    passed, judged, s, log = recorder.passed, recorder.judged, recorder.selector, recorder.log
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
    prompts, samples = _prompts_and_samples(data)
    m = MiniBatch(
        step=now.number,
        number=now.mini_batch,
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
        collision_N=_numpy(recorder.collision_N),
        rare_N=_numpy(rare_N),
        silenced_N=_numpy(judged.response_N & ~keep_N),
        top_id_NK=_numpy(recorder.top_id_NK),
        top_logprob_NK=_numpy(recorder.top_logprob_NK),
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
