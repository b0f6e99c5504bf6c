"""A mini-batch of scored responses with what S2T would silence in it, as the token log takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stapo_results.token_log import LogHeader
from stapo_training.probe.encoding import Tokens
from stapo_training.probe.responses import Response
from stapo_training.selection.selectors import silence_spurious
from stapo_training.selection.token_distribution import TokenDistribution
from stapo_training.selection.token_stats import TokenStats
from stapo_training.token_log.rows import MiniBatch


def scored_mini_batch(
    step: int, responses: Sequence[Response], tokens: Sequence[Tokens], scores: TokenDistribution, header: LogHeader
) -> MiniBatch:
    """Responses, their ids and scores with S2T's selection.

    There is no update and no old policy: every ratio is 1, and the clip cuts nothing.

    Raises:
        RunFailed: a log-probability or an entropy is not finite.
    """
    response_B = np.array([len(t.response) for t in tokens])
    total = int(response_B.sum())
    advantage_N = np.repeat(np.array([r.advantage for r in responses], np.float32), response_B)
    stats = TokenStats(
        logprob_N=scores.logprob_T,
        entropy_N=scores.entropy_T,
        advantage_N=torch.from_numpy(advantage_N),
        response_N=torch.ones(total, dtype=torch.bool),
    )
    if problem := stats.problem(f"mini-batch {step}"):
        problem.next_step = "check the model's weights, or score with --dtype fp32"
        raise problem
    selection = silence_spurious(stats, tau_p=header.tau_p, q=header.q)
    rare_N, logprob_N = selection.candidate_N.numpy(), scores.logprob_T.numpy()
    return MiniBatch(
        step=step,
        number=1,
        prompt_id_B=[r.prompt_id for r in responses],
        sample_B=[r.sample for r in responses],
        ids=np.concatenate([ids for t in tokens for ids in (t.prompt, t.response)]),
        end_B=np.cumsum([len(t) for t in tokens]),
        response_B=response_B,
        response_N=np.ones(total, bool),
        advantage_N=advantage_N,
        logprob_N=logprob_N,
        entropy_N=scores.entropy_T.numpy(),
        logprob_now_N=logprob_N,
        ratio_N=np.ones(total, np.float32),
        clipped_N=np.zeros(total, bool),
        collision_N=scores.collision_T.numpy(),
        rare_N=rare_N,
        silenced_N=~selection.keep_N.numpy(),
        top_id_NK=scores.top_id_TK.numpy().astype(np.int32),
        top_logprob_NK=scores.top_logprob_TK.numpy(),
        tau_h=selection.threshold if rare_N.any() else None,
    )
