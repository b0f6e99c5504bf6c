"""Finding a model's files: safetensors only, no code from a model's folder, every file's hash on record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from stapo_results.errors import BadInput, message_of
from stapo_results.schema import Labels
from stapo_results.shapes import missing_files
from stapo_results.store import read_json, sha256_files

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt",
                    "tokenizer.model", "special_tokens_map.json")  # fmt: skip
_CONFIGURATION = ("config.json", "generation_config.json")
_LARGE = 4 << 30  # bytes that take more than seconds to read
_GIVE = "give a folder with config.json and *.safetensors, or a hub id on a machine with network access"


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        given: what the user wrote; name: how records call it (never a path).
        folder: where its files are; for a model that only an endpoint has, a path at which nothing is.
        commit: the hub's commit, "" for a folder.
        labels: from stapo.json, if there is one.
    """

    given: str
    folder: Path
    name: str
    commit: str
    weights_sha256: str
    tokenizer_sha256: str
    labels: Labels | None
    configuration_sha256: str = ""

    @property
    def revision(self) -> str:
        if not self.weights_sha256:
            return f"{self.name} as an endpoint serves it, its weights are not known here"
        return f"{self.commit + ' ' if self.commit else ''}weights sha256:{self.weights_sha256}"


def check_given(given: str) -> None:
    """Raises BadInput for a folder without weights, and for what could be no hub id either: neither needs the hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if Path(given).is_dir():
        weights_of(Path(given))
        return
    try:
        validate_repo_id(given)
    except HFValidationError:
        raise BadInput(f"the model {given} is not there", found=f"no folder {given}", next_step=_GIVE) from None


def _download(given: str, revision: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    check_given(given)
    try:
        patterns = ["*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model"]
        # offline it would ask for a commit's list of files, though they are all there
        local = constants.HF_HUB_OFFLINE
        return Path(
            snapshot_download(given, revision=revision or None, allow_patterns=patterns, local_files_only=local)
        )
    except Exception as e:  # noqa: BLE001  whatever failed, the model is not available here
        raise BadInput(
            f"the model {given} is neither a folder nor a model that could be downloaded",
            found=message_of(e),
            next_step=_GIVE,
        ) from None


def weights_of(folder: Path) -> list[Path]:
    """The files of a model's weights.

    Raises:
        BadInput: there are none, one that the index names is not there, or no configuration; or one was cut off on its
            way (by its header).
    """
    from safetensors import SafetensorError, safe_open

    if lacking := missing_files(folder):
        there = ", ".join(sorted(p.name for p in folder.iterdir())[:12]) or "an empty folder"
        raise BadInput(
            f"{folder} holds no model that can be loaded",
            found=f"no {', '.join(lacking[:3])}; {there}",
            expected="config.json and *.safetensors (pickled weights are not read)",
            next_step="stapo-train export --checkpoint RUN --out DIR makes such a folder",
        )
    weights = sorted(folder.glob("*.safetensors"))
    for path in weights:
        try:
            with safe_open(path, "numpy"):
                pass
        except (SafetensorError, OSError, ValueError) as e:
            size = path.stat().st_size
            raise BadInput(f"{path} is incomplete", found=f"{size:,} bytes, {e}", next_step="copy it again") from None
    return weights


def find_model(given: str, revision: str = "") -> ModelFiles:
    """Locate and hash a model: a folder, or a hub id that is downloaded at `revision`.

    Raises:
        BadInput: no such model, a folder's revision, no safetensors weights, or a stapo.json that belongs to others.
    """
    local = Path(given).is_dir()
    if local and revision:
        raise BadInput(f"{given} is a folder, which has no revision", found=revision,
                       next_step="leave the revision out; for the hub's model call from another folder")  # fmt: skip
    folder = Path(given) if local else _download(given, revision)
    weights = weights_of(folder)
    if (size := sum(f.stat().st_size for f in weights)) >= _LARGE:
        print(f"{given}: hashing {size / 1e9:.1f} GB of weights", file=sys.stderr, flush=True)
    labels = read_json(folder / "stapo.json", Labels) if (folder / "stapo.json").exists() else None
    digest = sha256_files(weights)
    if labels and labels.weights_sha256 and labels.weights_sha256 != digest:
        raise BadInput(
            f"{folder / 'stapo.json'} describes other weights",
            found=digest,
            expected=labels.weights_sha256,
            next_step="export the model again, or delete stapo.json and give --method --size --train-seed --step",
        )
    tokenizer, configuration = (
        [folder / n for n in names if (folder / n).exists()] for names in (_TOKENIZER_FILES, _CONFIGURATION)
    )
    name = folder.resolve().name if local else given
    if labels:
        name = "/".join((labels.method, labels.size, f"s{labels.train_seed}", str(labels.step)))
    tokenizer_sha256 = sha256_files(tokenizer) if tokenizer else ""
    commit = "" if local else folder.name
    return ModelFiles(given, folder, name, commit, digest, tokenizer_sha256, labels, sha256_files(configuration))


def endpoint_model(name: str) -> ModelFiles:
    """A model of which only the name at an endpoint is known."""
    if not name:
        raise BadInput("the model has no name", next_step="--model NAME, as the endpoint calls it")
    return ModelFiles(name, Path(f"endpoint:{name}"), name, "", "", "", None)
