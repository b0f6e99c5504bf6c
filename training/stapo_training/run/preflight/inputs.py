"""The files a run reads: model and data, and whether they are what they claim to be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_training.artifacts.weights import is_hub_id
from stapo_training.data.folder import LAST, DataRecord
from stapo_training.data.rows import parquet_content_sha256

_COLUMNS = {"data_source", "prompt", "reward_model", "extra_info"}


def check_model(config: Any) -> str:
    """The configured model, when it is there.

    That is a local folder with configuration, tokenizer and all weights, or a hub id that is cached or may be fetched.

    Raises:
        BadInput: naming what is missing and how to get it.
    """
    model = str(config.actor_rollout_ref.model.path)
    if is_hub_id(model):
        _check_hub(model, config.run.model_revision)
        return model
    folder = Path(model)
    lacking = [
        name
        for name, there in (
            ("config.json", (folder / "config.json").exists()),
            ("*.safetensors", any(folder.glob("*.safetensors"))),
            ("tokenizer.json or tokenizer_config.json", any(folder.glob("tokenizer*.json"))),
        )
        if not there
    ]
    if lacking:
        raise BadInput(
            "the model is not there",
            found=f"no {', no '.join(lacking)} in {folder}" if folder.exists() else f"no folder {folder}",
            expected="a Hugging Face model folder",
            next_step=how_to_make(config)
            if config.run.size == "mini"
            else "actor_rollout_ref.model.path=DIR or a hub id",
        )
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if missing := [s for s in shards if not (folder / s).exists()]:
            raise BadInput(
                "the model's weights are incomplete",
                found=f"{len(missing)} of {len(shards)} files missing, the first {missing[0]}",
                expected=f"all files of {index.name} in {folder}",
                next_step="download the model again",
            )
    return model


def _check_hub(model: str, revision: str | None) -> None:
    from huggingface_hub import constants, try_to_load_from_cache

    cached = isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str)
    if not cached and constants.HF_HUB_OFFLINE:
        at = f" --revision {revision}" if revision else ""
        raise BadInput(
            "the model is not in the cache, and the hub is switched off",
            found=f"HF_HUB_OFFLINE={os.environ.get('HF_HUB_OFFLINE', '1')}, no {model} in {constants.HF_HUB_CACHE}",
            expected="a cached model, or a hub that may be asked",
            next_step=f"HF_HUB_OFFLINE=0 hf download {model}{at}   (on every node, or into a shared HF_HOME)",
        )


def how_to_make(config: Any, path: Path | None = None) -> str:
    """The command that makes a run's missing file, or its missing model (no path)."""
    of_data = config.run.data is not None and path is not None and path.is_relative_to(config.run.data)
    if config.run.size == "mini" and not of_data:
        return f"stapo-train base --out {config.run.base or 'DIR'}, then run.base={config.run.base or 'DIR'}"
    return "stapo-train data --source ID|FILE --benchmarks DIR --out DIR, then run.data=DIR"


def data_files(config: Any) -> Iterator[tuple[str, Path]]:
    """(data.train_files or data.val_files, a file) of a configuration."""
    for kind in ("train_files", "val_files"):
        names = config.data[kind]
        for name in [names] if isinstance(names, str) else list(names):
            yield kind, Path(name)


def check_data(kind: str, path: Path, make: str) -> int:
    """The number of rows of a data file that is whole.

    A `data.json` of `stapo-train data` beside the file says its content hash, which must match.

    Args:
        kind: data.train_files or data.val_files, for the message.
        make: the command that makes such a file.

    Raises:
        BadInput: file missing, no Parquet, columns missing, no rows, or content that differs from data.json.
    """
    if not path.exists():
        raise BadInput(
            f"data.{kind} is not there",
            found=str(path),
            expected="a Parquet file",
            next_step=make,
        )
    try:
        table = pq.ParquetFile(path)
    except pa.ArrowInvalid as e:
        raise BadInput(
            f"{path} is no Parquet file",
            found=str(e).splitlines()[0],
            expected="a whole Parquet file",
            next_step=f"make it again: {make}",
        ) from None
    if lacking := _COLUMNS - set(table.schema_arrow.names):
        raise BadInput(
            f"{path}: columns are missing",
            found=", ".join(table.schema_arrow.names),
            expected=f"also {', '.join(sorted(lacking))}",
            next_step=f"make it with {make}",
        )
    rows = table.metadata.num_rows
    if not rows:
        raise BadInput(f"{path} holds no row", found=0, expected="at least 1", next_step=f"make it again: {make}")
    _check_content(path)
    return rows


def _check_content(path: Path) -> None:
    record = path.with_name(LAST)
    if not record.exists():
        return
    said = store.read_json(record, DataRecord)
    hashes = {info.file: info.content_sha256 for info in (said.train, said.validation)}
    if path.name in hashes and (found := parquet_content_sha256(path)) != hashes[path.name]:
        raise BadInput(
            f"{path} is not what {record.name} beside it says",
            found=f"content {found[:16]}",
            expected=f"content {hashes[path.name][:16]}",
            next_step="prepare the data again in a new folder: one of the two files was changed",
        )
