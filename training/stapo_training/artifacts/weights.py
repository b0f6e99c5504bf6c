"""Weights by hub id: pinned to a commit, and read from one folder that every node sees."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stapo_results.errors import BadInput, RunFailed, message_of
from stapo_results.shapes import missing_files

Shapes = dict[str, tuple[int, ...]]
FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def is_hub_id(model: str) -> bool:
    """`owner/name` that is no folder here."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()


@contextmanager
def made_whole(partial: Path, out: Path) -> Iterator[None]:
    """The block fills the folder `partial`, which then gets the name `out`; where it fails, `partial` is removed.

    Raises:
        RunFailed: safetensors could not write, whose error is no OSError.
    """
    from safetensors import SafetensorError

    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield
        partial.rename(out)
    except SafetensorError as e:
        raise RunFailed(f"the weights of {out} could not be written", found=e,
                        next_step="free some space if the disk is full, then the same command") from None  # fmt: skip
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def shapes_of(files: Sequence[Path]) -> Shapes:
    """Name -> shape of the tensors in files of weights, by their headers. Raises: BadInput: one is not whole."""
    from safetensors import SafetensorError, safe_open

    found = Shapes()
    for file in files:
        try:
            with safe_open(file, "pt") as tensors:
                found |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as e:
            raise BadInput(f"{file} is no whole file of weights", found=message_of(e), next_step="copy it again") from e
    return found


def check_tensors(folder: Path, found: Shapes, next_step: str, *, more: bool) -> None:
    """Raises BadInput unless tensors have the names and shapes of the model that a folder's config.json describes.

    transformers would fill the others at random. A tied head needs none.

    Args:
        more: whether there may be tensors that the model does not have.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", trust_remote_code=False)
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    names = expected.keys() | (set() if more else found.keys())
    names -= {"lm_head.weight"} if config.tie_word_embeddings else set()
    if wrong := [n for n in sorted(names) if expected.get(n) != found.get(n)]:
        raise BadInput(
            f"{folder}: the tensors are not those of the model that config.json describes",
            found=f"{len(wrong)} differ: " + ", ".join(f"{n} {found.get(n, 'missing')}" for n in wrong[:3]),
            expected=", ".join(f"{n} {expected.get(n, 'missing')}" for n in wrong[:3]),
            next_step=next_step,
        )


def pin(config: Any, *, download: bool) -> None:
    """Replace the hub id in `actor_rollout_ref.model.path` by the folder of `run.model_revision` in the hub's cache.

    veRL has no key for a revision: it would load whatever the hub serves that day. The folder's weights are hashed into
    the run's record. Without `download` a model that is not in the cache keeps its id.

    Raises:
        BadInput: the commit is not in the cache and cannot be fetched.
    """
    model, revision = str(config.actor_rollout_ref.model.path), config.run.model_revision
    if not is_hub_id(model) or revision is None:
        return
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    local = constants.HF_HUB_OFFLINE or not download
    try:
        folder = snapshot_download(model, revision=revision, allow_patterns=FILES, local_files_only=local)
        lacking = missing_files(Path(folder))  # a download that was interrupted leaves a folder, too
        why = f"{folder} lacks {', '.join(lacking[:3])}" if lacking else ""
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as e:
        folder, why = "", message_of(e)
    if not why:
        config.actor_rollout_ref.model.path = folder
    elif download:
        raise BadInput(
            f"{model} at commit {revision} is not in the model cache",
            found=why,
            expected="the weights in HF_HOME",
            next_step=f"hf download {model} --revision {revision}   (or HF_HUB_OFFLINE=0 in front of the same command)",
        )
