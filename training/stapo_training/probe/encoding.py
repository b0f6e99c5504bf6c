"""A model's folder, and from texts to the ids that the model is asked about.

The folder is checked before anything is loaded: safetensors and a tokenizer, no code. A response's text is tokenised by
itself and put behind the prompt's ids. Which ids the model really drew is not known from text: a word at the seam, or
one that it spelt in other pieces, comes out as the tokenizer would write it. Lines with ids have no such loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.token_log import TOKENIZER
from stapo_training.artifacts.weights import missing_files
from stapo_training.probe.responses import Response
from stapo_training.run.folder import first_line

_AT_ONCE = 1024
_MARK = "MESSAGE0"


@dataclass(frozen=True)
class ModelFolder:
    """vocabulary: the width of the logits. positions: tokens that fit, None where the model sets no limit."""

    path: Path
    vocabulary: int
    positions: int | None
    tokenizer: Any

    @property
    def revisions(self) -> dict[str, str]:
        """Hashes of the weights (of each file in the order of their names) and of the tokenizer."""
        weights = " ".join(store.sha256_file(f) for f in sorted(self.path.glob("*.safetensors")))
        return {"model": f"sha256:{weights}", "tokenizer": f"sha256:{store.sha256_file(self.path / TOKENIZER)}"}


def find_model(path: Path) -> ModelFolder:
    """Check a model's folder and load its tokenizer.

    Raises:
        BadInput: no such folder; it lacks a file, or has its weights pickled only; its code would have to be run; its
            tokenizer has more tokens than the model has logits.
    """
    if not path.is_dir():
        raise BadInput(
            "--model is no folder",
            found=path,
            expected="a folder with config.json, tokenizer.json and *.safetensors",
            next_step="stapo-train export --checkpoint RUN --out DIR, or hf download ORG/NAME --local-dir DIR",
        )
    lacking = missing_files(path) + [name for name in (TOKENIZER,) if not (path / name).is_file()]
    if lacking:
        raise BadInput(
            f"{path} lacks files of a model",
            found=f"no {', '.join(lacking[:5])}",
            expected="config.json, tokenizer.json and all *.safetensors (pickled weights are never read)",
            next_step="complete the folder; weights in another form: save them with transformers' save_pretrained",
        )
    from transformers import AutoConfig, AutoTokenizer

    try:
        whole: Any = AutoConfig.from_pretrained(path, trust_remote_code=False)
        config = whole.get_text_config()
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as e:  # noqa: BLE001  a folder's files may be broken in any way; no code of its own is run
        raise BadInput(
            f"the configuration or the tokenizer in {path} cannot be loaded",
            found=first_line(e),
            expected="a model that transformers knows: code from a model's folder is never run",
            next_step="copy the folder again, or take a model of another architecture",
        ) from None
    vocabulary: int = config.vocab_size
    if len(tokenizer) > vocabulary:
        raise BadInput(
            f"the tokenizer in {path} is not the model's",
            found=f"{len(tokenizer):,} tokens, {vocabulary:,} logits (config.json's vocab_size)",
            expected="at most as many tokens as logits",
            next_step="copy the model's own tokenizer.json into its folder",
        )
    positions = getattr(config, "max_position_embeddings", None)
    return ModelFolder(path, vocabulary, None if positions is None else int(positions), tokenizer)


@dataclass(frozen=True)
class Tokens:
    """The ids (int32) of one prompt and of the response to it."""

    prompt: np.ndarray
    response: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


def encode(rows: Sequence[Response], model: ModelFolder) -> tuple[list[Tokens], list[str]]:
    """The ids of all responses in their order, checked against the model, and notes for the run's record.

    The tokenizer's eos_token stands behind the text of a response that the model ended itself.

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
    prompts, found = _Prompts(model.tokenizer), []
    for r, ids in zip(rows, _response_ids(rows, model.tokenizer), strict=True):
        if r.tokens is None and r.stopped and (not len(ids) or ids[-1] != end):
            ids = np.concatenate([ids, np.array([end], dtype=np.int32)])
        found.append(Tokens(prompts(r), ids))
        _check(found[-1], r, model)
    note = (
        f"{len(prompts.bare)} of {len(prompts.known)} prompts are scored without the special tokens that the dump left "
        "out: they are not one user message in the model's chat template"
    )
    return found, [note] if prompts.bare else []


def _ids(tokenizer: Any, texts: list[str]) -> list[np.ndarray]:
    # special tokens that a text spells out are read as such, and none is added
    return [np.array(x, dtype=np.int32) for x in tokenizer(texts, add_special_tokens=False).input_ids]


def _response_ids(rows: Sequence[Response], tokenizer: Any) -> Iterator[np.ndarray]:
    for first in range(0, len(rows), _AT_ONCE):
        part = rows[first : first + _AT_ONCE]
        texts = iter(_ids(tokenizer, [r.text for r in part if r.tokens is None] or [""]))
        for r in part:
            # an id beyond int32 is beyond every vocabulary as well
            yield next(texts) if r.tokens is None else np.array([min(t, 2**31 - 1) for t in r.tokens], dtype=np.int32)


class _Prompts:
    """Ids of prompts, each made once.

    A dump's prompt has lost its special tokens. Where what is left is what the chat template leaves of one user
    message, the template is put around that message again; the result has to give the same text.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.known: dict[str, np.ndarray] = {}
        self.bare: set[str] = set()
        self._frame: tuple[str, str] | None = None

    def __call__(self, r: Response) -> np.ndarray:
        if r.prompt_id not in self.known:
            self.known[r.prompt_id] = self._ids(r)
        return self.known[r.prompt_id]

    def _ids(self, r: Response) -> np.ndarray:
        if not isinstance(r.prompt, str):
            return self._chat(r.prompt, r.where)
        if r.stripped:
            if (ids := self._restored(r.prompt, r.where)) is not None:
                return ids
            self.bare.add(r.prompt_id)
        return _ids(self.tokenizer, [r.prompt])[0]

    def _chat(self, messages: list[dict[str, str]], where: str) -> np.ndarray:
        if not self.tokenizer.chat_template:
            raise BadInput(
                f"{where}: a chat, and the model's tokenizer has no chat template",
                expected="chat_template in the model's folder, or prompts as the model saw them",
                next_step="add the family's chat_template.jinja to the folder, or give prompt instead of messages",
            )
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as e:  # noqa: BLE001  a template may refuse a chat with any error
            raise BadInput(
                f"{where}: the model's chat template refuses the chat",
                found=first_line(e),
                next_step="correct the messages and their roles",
            ) from None
        return _ids(self.tokenizer, [text])[0]

    def _plain(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True)

    def _restored(self, text: str, where: str) -> np.ndarray | None:
        if not self.tokenizer.chat_template:
            return None
        if self._frame is None:
            before, _, after = self._plain(self._chat([{"role": "user", "content": _MARK}], where)).partition(_MARK)
            self._frame = before, after
        before, after = self._frame
        if not (text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after)):
            return None
        message = text[len(before) : len(text) - len(after)]
        ids = self._chat([{"role": "user", "content": message}], where)
        return ids if self._plain(ids) == text else None


def _check(row: Tokens, r: Response, model: ModelFolder) -> None:
    if not len(row.prompt):
        raise BadInput(
            f"{r.where}: the prompt has no token", expected="what the model saw first", next_step="complete the line"
        )
    for name, ids in (("prompt", row.prompt), ("response", row.response)):
        if len(ids) and int(ids.max()) >= model.vocabulary:
            raise BadInput(
                f"{r.where}: the {name} has a token that the model does not know",
                found=f"id {int(ids.max())}",
                expected=f"ids below {model.vocabulary:,}",
                next_step="check that the responses are those of this model",
            )
    if model.positions is not None and len(row) > model.positions:
        raise BadInput(
            f"{r.where}: prompt and response are longer than the model can see",
            found=f"{len(row.prompt):,} + {len(row.response):,} tokens",
            expected=f"at most {model.positions:,} (max_position_embeddings in config.json)",
            next_step="leave out such lines",
        )
