"""The model's folder as a probe needs it, checked before anything is loaded: safetensors and a tokenizer, no code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.token_log import TOKENIZER
from stapo_training.artifacts.weights import missing_files


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


def first_line(e: BaseException) -> str:
    """What a library says in its first line, with the kind of its error."""
    return f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[0]}"


def find(path: Path) -> ModelFolder:
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
            next_step="stapo-train export --checkpoint RUN --out DIR makes one; hf download ORG/NAME --local-dir DIR "
            "fetches one",
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
