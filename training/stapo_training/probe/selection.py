"""S2T's verdict on scored responses, as the token log's rows and counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stapo_results.token_log import Facts
from stapo_training.probe.encoding import Tokens
from stapo_training.probe.responses import Response
from stapo_training.probe.scoring import Scores
from stapo_training.selection.selectors import silence_spurious
from stapo_training.selection.token_stats import TokenStats
from stapo_training.token_log.rows import MiniBatch


def judge(step: int, rows: Sequence[Response], found: Sequence[Tokens], scores: Scores, facts: Facts) -> MiniBatch:
    """What S2T says of the responses of one mini-batch.

    There is no update and no old policy: every ratio is 1, and no clip takes hold.

    Raises:
        RunFailed: a log-probability or an entropy is not finite.
    """
    response_B = np.array([len(x.response) for x in found])
    tokens = int(response_B.sum())
    advantage_N = np.repeat(np.array([r.advantage for r in rows], np.float32), response_B)
    stats = TokenStats(
        logprob_N=torch.from_numpy(scores.logprob_N),
        entropy_N=torch.from_numpy(scores.entropy_N),
        advantage_N=torch.from_numpy(advantage_N),
        response_N=torch.ones(tokens, dtype=torch.bool),
    )
    if problem := stats.problem(f"mini-batch {step}"):
        problem.next_step = "check the model's weights, or score with --dtype fp32"
        raise problem
    selection = silence_spurious(stats, tau_p=facts.tau_p, q=facts.q)
    rare_N = selection.candidate_N.numpy()
    return MiniBatch(
        step=step,
        number=1,
        prompt_id_B=[r.prompt_id for r in rows],
        sample_B=[r.sample for r in rows],
        ids=np.concatenate([ids for x in found for ids in (x.prompt, x.response)]),
        end_B=np.cumsum([len(x) for x in found]),
        response_B=response_B,
        response_N=np.ones(tokens, bool),
        advantage_N=advantage_N,
        logprob_N=scores.logprob_N,
        entropy_N=scores.entropy_N,
        logprob_now_N=scores.logprob_N,
        ratio_N=np.ones(tokens, np.float32),
        clipped_N=np.zeros(tokens, bool),
        collision_N=scores.collision_N,
        rare_N=rare_N,
        silenced_N=~selection.keep_N.numpy(),
        top_id_NK=scores.top_id_NK,
        top_logprob_NK=scores.top_logprob_NK,
        tau_h=selection.threshold if rare_N.any() else None,
    )
