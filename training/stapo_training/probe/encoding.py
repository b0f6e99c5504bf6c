"""A model's folder, and from texts to the ids that the model is asked about.

The folder is checked before anything is loaded: safetensors and a tokenizer, no code. A response's text is tokenised by
itself and put behind the prompt's ids. Which ids the model really drew is not known from text: a word at the seam, or
one that it spelt in other pieces, comes out as the tokenizer would write it. Lines with ids have no such loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stapo_results import store
from stapo_results.errors import BadInput, message_of
from stapo_results.shapes import missing_files
from stapo_results.sizes import REAL
from stapo_results.token_log import TOKENIZER
from stapo_training.probe.responses import Response


@dataclass(frozen=True)
class ModelFolder:
    """vocabulary: the width of the logits. positions: tokens that fit, None where the model sets no limit."""

    path: Path
    vocabulary: int
    positions: int | None
    tokenizer: Any

    @property
    def revisions(self) -> dict[str, str]:
        """Hashes of the weights (of each file in the order of their names), of the tokenizer, and of the settings of
        both: architecture, chat template, stop tokens."""
        weights = " ".join(store.sha256_file(f) for f in sorted(self.path.glob("*.safetensors")))
        settings = {*self.path.glob("*.json"), *self.path.glob("*.jinja")}
        settings -= {self.path / name for name in (TOKENIZER, "stapo.json", "model.safetensors.index.json")}
        return {
            "model": f"sha256:{weights}",
            "tokenizer": f"sha256:{store.sha256_file(self.path / TOKENIZER)}",
            "settings": f"sha256:{store.sha256_files(sorted(settings))}",
        }

    def ids(self, text: str) -> list[int]:
        """The ids of a text; special tokens that it spells out are read as such, and none is added."""
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def prompt(self, prompt: str | list[dict[str, str]], where: str, template: Mapping[str, Any]) -> list[int]:
        """The ids of a text, or of a chat up to the model's turn with arguments of its template.

        Raises:
            BadInput: naming `where`; the chat does not fit the template, or there is none.
        """
        if isinstance(prompt, str):
            return self.ids(prompt)
        tokenizer = self.tokenizer
        try:
            how = {**template, "tokenize": False, "add_generation_prompt": True}
            return self.ids(tokenizer.apply_chat_template(prompt, **how))
        except Exception as e:  # noqa: BLE001  a template may be missing, and may refuse a chat with any error
            raise BadInput(
                f"{where}: the chat does not fit the model's chat template",
                found=message_of(e) if tokenizer.chat_template else f"no chat_template in {tokenizer.name_or_path}",
                next_step="correct messages and roles, add the family's chat_template.jinja, or give prompt instead",
            ) from None

    def load(self, dtype: str, device: str) -> Any:
        """The causal language model in eval mode.

        Raises:
            BadInput: the weights are damaged or incomplete.
        """
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        model: Any = None
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.path,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=getattr(torch, dtype),
                output_loading_info=True,
            )
            model, info = loaded
            absent = sorted(info["missing_keys"]) + sorted(str(k) for k in info["mismatched_keys"])
            wrong = f"{len(absent)} tensors missing or of another shape: {', '.join(absent[:3])}" if absent else ""
        except Exception as e:  # noqa: BLE001  a damaged file or an unfit configuration may raise anything
            wrong = message_of(e)
        if wrong:
            raise BadInput(
                f"the model in {self.path} cannot be loaded",
                found=wrong,
                expected="every tensor that config.json describes (a missing one would be random), and memory for them",
                next_step="copy the folder again; bfloat16 halves the memory",
            )
        return model.to(torch.device(device)).eval()


def find_model(path: Path, flag: str = "--model") -> ModelFolder:
    """Check a model's folder, which the option `flag` named, and load its tokenizer.

    Raises:
        BadInput: it is not there or lacks a file, has its weights pickled only, needs code of its own, or its tokenizer
            has more tokens than the model has logits.
    """
    if lacking := missing_files(path, tokenizer=TOKENIZER):
        cure = "stapo-train export --checkpoint RUN --out DIR, or hf download ORG/NAME --local-dir DIR"
        if path.parent.name in REAL:  # where `stapo-train fetch` keeps it
            cure = f"stapo-train fetch {path.parent.name}"
        raise BadInput(
            f"{flag} is no whole model",
            found=f"no {', '.join(lacking[:5])} in {path}",
            expected="config.json, tokenizer.json and all *.safetensors (pickled weights are never read)",
            next_step=cure,
        )
    from transformers import AutoConfig, AutoTokenizer

    try:
        whole_config: Any = AutoConfig.from_pretrained(path, trust_remote_code=False)
        config = whole_config.get_text_config()
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as e:  # noqa: BLE001  a folder's files may be broken in any way; no code of its own is run
        raise BadInput(
            f"the configuration or the tokenizer in {path} cannot be loaded",
            found=message_of(e),
            expected="a model that transformers knows: code from a model's folder is never run",
            next_step="copy the folder again, or take a model of another architecture",
        ) from None
    if len(tokenizer) > config.vocab_size:
        raise BadInput(
            f"the tokenizer in {path} is not the model's",
            found=f"{len(tokenizer):,} tokens, {config.vocab_size:,} logits (config.json's vocab_size)",
            expected="at most as many tokens as logits",
            next_step="copy the model's own tokenizer.json into its folder",
        )
    return ModelFolder(path, config.vocab_size, getattr(config, "max_position_embeddings", None), tokenizer)


@dataclass(frozen=True)
class EncodedTokens:
    """The ids (int32) of one prompt and of the response to it."""

    prompt: np.ndarray
    response: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


def encode(rows: Sequence[Response], model: ModelFolder) -> list[EncodedTokens]:
    """The ids of all responses in their order, checked against the model.

    The tokenizer's eos_token follows the text of a response that the model ended itself.

    Raises:
        BadInput: naming file and line: no chat template for a chat, an empty prompt, an id beyond the vocabulary, a
            sequence beyond the model's positions.
    """
    end = model.tokenizer.eos_token_id
    if end is None and any(r.stopped and r.tokens is None for r in rows):
        raise BadInput(
            f"the tokenizer in {model.path} names no eos_token",
            expected="the token that ends a response",
            next_step="set eos_token in tokenizer_config.json",
        )
    prompts: dict[str, list[int]] = {}
    encoded = []
    for r in rows:
        if r.prompt_id not in prompts:
            prompts[r.prompt_id] = model.prompt(r.prompt, r.where, r.template)
        response = model.ids(r.text) if r.tokens is None else r.tokens
        if r.tokens is None and r.stopped and response[-1:] != [end]:
            response = [*response, end]
        _check(prompts[r.prompt_id], response, r.where, model)
        encoded.append(EncodedTokens(*(np.array(ids, dtype=np.int32) for ids in (prompts[r.prompt_id], response))))
    return encoded


def _check(prompt: list[int], response: list[int], where: str, model: ModelFolder) -> None:
    length, highest = len(prompt) + len(response), max([*prompt, *response], default=0)
    limit = model.positions or length
    if not prompt:
        what, found, expected = "the prompt has no token", "an empty prompt", "what the model saw first"
    elif highest >= model.vocabulary:
        what, found = "a token that the model does not know", f"id {highest}"
        expected = f"ids below {model.vocabulary:,}"
    elif length > limit:
        what = "prompt and response are longer than the model can see"
        found = f"{len(prompt):,} + {len(response):,} tokens"
        expected = f"at most {limit:,} (max_position_embeddings in config.json)"
    else:
        return
    next_step = "correct the line, or leave it out; check that the responses are this model's"
    raise BadInput(f"{where}: {what}", found=found, expected=expected, next_step=next_step)
