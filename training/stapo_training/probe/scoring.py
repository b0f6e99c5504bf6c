"""A model's own numbers at the tokens of responses: one forward pass a sequence, no (T, V) logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stapo_results.errors import BadInput
from stapo_training.probe.encoding import Tokens
from stapo_training.probe.model_files import ModelFolder, first_line
from stapo_training.selection.token_distribution import score_tokens

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOP = 5
_CHECKED = 16
"""Tokens of the first response at which the model's own logits are compared with those of its output matrix."""


@dataclass(frozen=True)
class Scores:
    """The next-token distributions at N response tokens, one response after the other, float32.

    See `token_distribution.TokenDistribution`; K is 5, or the vocabulary's size where that is smaller.
    """

    logprob_N: np.ndarray
    entropy_N: np.ndarray
    collision_N: np.ndarray
    top_id_NK: np.ndarray
    top_logprob_NK: np.ndarray


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
        BadInput: the weights are damaged or incomplete, or the model's logits are not its last hidden states times its
            output matrix.
    """

    def __init__(self, model: ModelFolder, *, dtype: str, device: str):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                model.path, use_safetensors=True, trust_remote_code=False, dtype=DTYPES[dtype], output_loading_info=True
            )
        except Exception as e:  # noqa: BLE001  a damaged file or an unfit configuration may raise anything
            raise BadInput(
                f"the model in {model.path} cannot be loaded",
                found=first_line(e),
                expected="the weights that config.json describes, and memory for them",
                next_step="copy the folder again; --dtype bf16 halves the memory",
            ) from None
        self.model, said = loaded
        if absent := sorted(said["missing_keys"]) + sorted(str(k) for k in said["mismatched_keys"]):
            raise BadInput(
                f"the weights in {model.path} are not those that config.json describes",
                found=f"{len(absent)} tensors are missing or of another shape: {', '.join(absent[:3])}",
                expected="all of them: transformers would draw them at random",
                next_step="copy the folder again",
            )
        self.model.to(torch.device(device)).eval()
        self.device, self.folder = device, model.path
        head = self.model.get_output_embeddings()
        self.weight_VD: torch.Tensor | None = getattr(head, "weight", None)
        self.bias_V: torch.Tensor | None = getattr(head, "bias", None)

    @torch.no_grad()
    def check(self, row: Tokens) -> None:
        """Raise BadInput unless logits are hidden states times the output matrix: some models cap or scale them."""
        ids_1T = torch.from_numpy(np.concatenate([row.prompt, row.response])[None, :_CHECKED]).long().to(self.device)
        own_TV = self.model(input_ids=ids_1T, use_cache=False).logits[0].float()
        if self.weight_VD is not None and self.weight_VD.is_floating_point() and self.weight_VD.ndim == 2:
            head = torch.nn.functional.linear(self._hidden(ids_1T)[0], self.weight_VD, self.bias_V).float()
            if head.shape == own_TV.shape and torch.allclose(head, own_TV, rtol=1e-3, atol=1e-3, equal_nan=True):
                return
        raise BadInput(
            f"the logits of the model in {self.folder} are not its hidden states times its output matrix",
            found=type(self.model).__name__,
            expected="a plain output layer, as Qwen, Llama and Mistral have (no capped, scaled or quantised logits)",
            next_step="probe a model of such an architecture",
        )

    def _hidden(self, ids_BT: torch.Tensor) -> torch.Tensor:
        return self.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state

    @torch.no_grad()
    def score(
        self,
        rows: Sequence[Tokens],
        *,
        batch_tokens: int,
        temperature: float = 1.0,
        done: Callable[[int], None] = lambda responses: None,
    ) -> Scores:
        """Score the response tokens of some sequences.

        Padding stands on the right, behind what a causal model looks at: what a token's numbers depend on is its own
        sequence, up to rounding.

        Args:
            batch_tokens: of a batch with its padding.
            temperature: divides the logits.
            done: told after each batch how many of `rows` are finished.
        """
        assert self.weight_VD is not None
        lengths_B = np.array([len(r.response) for r in rows])
        first_B = np.cumsum(lengths_B) - lengths_B
        total, k = int(lengths_B.sum()), min(TOP, len(self.weight_VD))
        # the last token of a response predicts nothing
        inputs = [np.concatenate([r.prompt, r.response[:-1]]) for r in rows]
        out = Scores(
            logprob_N=np.empty(total, np.float32),
            entropy_N=np.empty(total, np.float32),
            collision_N=np.empty(total, np.float32),
            top_id_NK=np.empty((total, k), np.int32),
            top_logprob_NK=np.empty((total, k), np.float32),
        )
        answered = [i for i in range(len(rows)) if lengths_B[i]]
        finished = len(rows) - len(answered)
        for batch in batches([len(inputs[i]) for i in answered], batch_tokens):
            members = [answered[i] for i in batch]
            self._score(rows, inputs, members, first_B, temperature, out)
            finished += len(members)
            done(finished)
        return out

    def _score(
        self,
        rows: Sequence[Tokens],
        inputs: Sequence[np.ndarray],
        members: Sequence[int],
        first_B: np.ndarray,
        temperature: float,
        out: Scores,
    ) -> None:
        assert self.weight_VD is not None
        ids_BT = np.zeros((len(members), max(len(inputs[i]) for i in members)), dtype=np.int64)
        for b, i in enumerate(members):
            ids_BT[b, : len(inputs[i])] = inputs[i]
        hidden_BTD = self._hidden(torch.from_numpy(ids_BT).to(self.device))
        # a response's first token is predicted at the prompt's last
        hidden_TD = torch.cat(
            [hidden_BTD[b, len(rows[i].prompt) - 1 : len(inputs[i])] for b, i in enumerate(members)]
        ).contiguous()
        del hidden_BTD
        chosen_T = torch.from_numpy(np.concatenate([rows[i].response for i in members])).long().to(self.device)
        temperature_T = None if temperature == 1.0 else torch.full((len(chosen_T),), temperature, device=self.device)
        found = score_tokens(
            hidden_TD,
            self.weight_VD,
            chosen_T,
            bias_V=self.bias_V,
            temperature_T=temperature_T,
            k=out.top_id_NK.shape[1],
        )
        places = np.concatenate([first_B[i] + np.arange(len(rows[i].response)) for i in members])
        out.logprob_N[places] = found.logprob_T.cpu().numpy()
        out.entropy_N[places] = found.entropy_T.cpu().numpy()
        out.collision_N[places] = found.collision_T.cpu().numpy()
        out.top_id_NK[places] = found.top_id_TK.cpu().numpy()
        out.top_logprob_NK[places] = found.top_logprob_TK.cpu().numpy()
