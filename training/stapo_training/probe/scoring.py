"""A model's own numbers at the tokens of responses, one forward pass a sequence, and a mask's verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from stapo_results.errors import BadInput
from stapo_training.methods import SelectorConfig
from stapo_training.probe.encoding import EncodedTokens, ModelFolder
from stapo_training.probe.responses import Response
from stapo_training.selection.selectors import alone, silence_spurious
from stapo_training.selection.token_stats import TokenDistribution, TokenStats, token_distribution, token_keys
from stapo_training.token_log.rows import TOP, MiniBatch

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_CHECKED = 16
"""Tokens of the first response at which the model's own logits are compared with those of its output layer."""
_AT_A_TIME = 2**25
"""Logits that exist at a time: 128 MiB of float32."""


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices of sequences, longest first, in batches of at most `tokens` with their padding; one longer goes alone."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    at = 0
    while at < len(order):
        rows = max(1, tokens // lengths[order[at]])
        yield order[at : at + rows]
        at += rows


class Scorer:
    """A loaded causal language model.

    Args:
        dtype: of weights and hidden states; the statistics are float32 whatever it is.

    Raises:
        BadInput: the weights are damaged or incomplete.
    """

    def __init__(self, model: ModelFolder, *, dtype: str, device: str):
        self.model = model.load(DTYPES[dtype], device)
        self.device, self.folder = device, model.path
        self.head = self.model.get_output_embeddings()

    @torch.no_grad()
    def check(self, row: EncodedTokens) -> None:
        """Raise BadInput unless logits are what the output layer gives: some models cap or scale them."""
        ids_1T = torch.from_numpy(np.concatenate([row.prompt, row.response])[None, :_CHECKED]).long().to(self.device)
        own_1TV = self.model(input_ids=ids_1T, use_cache=False).logits
        if self.head is None or not torch.allclose(
            self.head(self._hidden(ids_1T)), own_1TV, rtol=1e-3, atol=1e-3, equal_nan=True
        ):
            raise BadInput(
                f"the logits of the model in {self.folder} are not its hidden states times its output matrix",
                found=type(self.model).__name__,
                expected="a plain output layer, as Qwen, Llama and Mistral have (no capped or scaled logits)",
                next_step="probe a model of such an architecture",
            )

    def _hidden(self, ids_BT: torch.Tensor) -> torch.Tensor:
        return self.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state

    @torch.no_grad()
    def score(
        self, rows: Sequence[EncodedTokens], *, batch_tokens: int, done: Callable[[int], None] = lambda responses: None
    ) -> TokenDistribution:
        """The next-token distributions at all response tokens, one response after the other, on the CPU.

        Padding is on the right, where a causal model's earlier tokens do not see it: a token's numbers depend on its
        own sequence alone, up to rounding.

        Args:
            batch_tokens: of a batch with its padding.
            done: called after each batch with how many of `rows` are finished.
        """
        scored: dict[int, list[TokenDistribution]] = {}
        answered = [i for i, r in enumerate(rows) if len(r.response)]
        for batch in batches([len(rows[i]) - 1 for i in answered], batch_tokens):
            members = [answered[i] for i in batch]
            scored |= zip(members, self._batch([rows[i] for i in members]), strict=True)
            done(len(rows) - len(answered) + len(scored))
        parts = [part for i in answered for part in scored[i]]
        return TokenDistribution(
            *(torch.cat([getattr(p, f) for p in parts]) for f in TokenDistribution.__annotations__)
        )

    def _batch(self, rows: Sequence[EncodedTokens]) -> Iterator[list[TokenDistribution]]:
        # the last token of a response predicts nothing
        inputs = [np.concatenate([r.prompt, r.response[:-1]]) for r in rows]
        ids_BT = torch.zeros(len(rows), max(map(len, inputs)), dtype=torch.long)
        for b, ids in enumerate(inputs):
            ids_BT[b, : len(ids)] = torch.from_numpy(ids)
        hidden_BTD = self._hidden(ids_BT.to(self.device))
        for b, r in enumerate(rows):
            # a response's first token is predicted at the prompt's last
            hidden_TD = hidden_BTD[b, len(r.prompt) - 1 : len(inputs[b])]
            chosen_T = torch.from_numpy(r.response).long().to(self.device)
            size = max(1, _AT_A_TIME // self.model.config.get_text_config().vocab_size)
            yield [
                _on_cpu(token_distribution(self.head(hidden), chosen, TOP))
                for hidden, chosen in zip(hidden_TD.split(size), chosen_T.split(size), strict=True)
            ]


def _on_cpu(found: TokenDistribution) -> TokenDistribution:
    return TokenDistribution(*(v.cpu() for v in vars(found).values()))


def _offsets(end_B: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.append(0, end_B))


def scored_mini_batch(
    step: int,
    responses: Sequence[Response],
    tokens: Sequence[EncodedTokens],
    scores: TokenDistribution,
    mask: SelectorConfig,
) -> MiniBatch:
    """Responses, their ids and scores with what a mask selects; rare tokens and threshold are S2T's, as in training.

    There is no update and no old policy: every ratio is 1, and the clip cuts nothing.

    Raises:
        RunFailed: a log-probability or an entropy is not finite.
    """
    response_B = np.array([len(t.response) for t in tokens])
    total = int(response_B.sum())
    advantage_N = np.repeat(np.array([r.advantage for r in responses], np.float32), response_B)
    ids = np.concatenate([ids for t in tokens for ids in (t.prompt, t.response)])
    end_B = np.cumsum([len(t.prompt) + len(t.response) for t in tokens])
    stats = TokenStats(
        logprob_N=scores.logprob_T,
        entropy_N=scores.entropy_T,
        advantage_N=torch.from_numpy(advantage_N),
        response_N=torch.ones(total, dtype=torch.bool),
        key_N=token_keys(torch.from_numpy(ids), _offsets(end_B), _offsets(np.cumsum(response_B)), mask.seed),
    )
    if problem := stats.problem(f"mini-batch {step}"):
        problem.next_step = "check the model's weights, or score with --dtype fp32"
        raise problem
    chosen, s2t = mask.select(stats, pool=alone), silence_spurious(stats, tau_p=mask.tau_p, q=mask.q)
    rare_N, logprob_N = s2t.candidate_N.numpy(), scores.logprob_T.numpy()
    return MiniBatch(
        step=step,
        number=1,
        prompt_id_B=[r.prompt_id for r in responses],
        sample_B=[r.sample for r in responses],
        ids=ids,
        end_B=end_B,
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
        silenced_N=~chosen.keep_N.bool().numpy(),
        top_id_NK=scores.top_id_TK.numpy().astype(np.int32),
        top_logprob_NK=scores.top_logprob_TK.numpy(),
        tau_h=s2t.threshold if rare_N.any() else None,
        old_logprob_N=logprob_N,
        sampler_logprob_N=np.full(total, np.nan, np.float32),
        mismatched_N=np.zeros(total, bool),
    )
