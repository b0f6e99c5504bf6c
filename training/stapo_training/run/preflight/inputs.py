"""The files a run reads: model and data, whether they are what they claim to be, and the model's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import constants, try_to_load_from_cache

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Labels
from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.sizes import SMALL, has_base
from stapo_training.artifacts.weights import is_hub_id, missing_files
from stapo_training.data.rows import RECORD, DataRecord, parquet_content_sha256

_COLUMNS = {"data_source", "prompt", "reward_model", "extra_info"}


def check_base(config: Any) -> None:
    """Raises BadInput where a path is made of run.base and run.base is not given."""
    paths = [config.actor_rollout_ref.model.path, config.data.train_files, config.data.val_files]
    if config.run.base is None and any(str(p).startswith("None/") for p in paths):
        raise BadInput(
            "values are missing",
            found="run.base",
            expected="the folder of a base model and its data",
            next_step=how_to_make(config),
        )


def check_model(config: Any) -> str:
    """The configured model, when it is there.

    That is a local folder with configuration, tokenizer and all weights, or a hub id that is cached or may be fetched.

    Raises:
        BadInput: naming what is missing and how to get it.
    """
    model, revision = str(config.actor_rollout_ref.model.path), config.run.model_revision
    if is_hub_id(model):
        if constants.HF_HUB_OFFLINE and _cached_config(model, revision) is None:
            raise BadInput(
                "the model is not in the cache, and the hub is switched off",
                found=f"HF_HUB_OFFLINE is set, no {model} in {constants.HF_HUB_CACHE}",
                expected="a cached model, or a hub that may be asked",
                next_step=f"HF_HUB_OFFLINE=0 hf download {model}"
                + (f" --revision {revision}" if revision else "")
                + "   (on every node, or into a shared HF_HOME)",
            )
        return model
    folder = Path(model)
    if lacking := missing_files(folder, tokenizer="tokenizer*.json"):
        raise BadInput(
            "the model is not there" if not folder.exists() else "the model is incomplete",
            found=f"no {', no '.join(lacking[:4])} in {folder}",
            expected="a Hugging Face model folder with all its weights",
            next_step=how_to_make(config)
            if has_base(config.run.size)
            else "actor_rollout_ref.model.path=DIR or a hub id",
        )
    _check_size(config, folder / "stapo.json")
    return model


def _check_size(config: Any, file: Path) -> None:
    """The label that the records of this run get is that of the model: three worlds have a base of one architecture."""
    known = store.read_json(file, Labels).size if file.exists() else config.run.size
    if known != config.run.size:
        raise BadInput(
            "the base model is of another size than the run",
            found=f"{file}: {known}",
            expected=f"run.size {config.run.size}",
            next_step=f"add run.size={known}, or name another model",
        )


def _cached_config(model: str, revision: str | None = None) -> Path | None:
    """config.json of a hub model in the cache."""
    cached = try_to_load_from_cache(model, "config.json", revision=revision) if is_hub_id(model) else None
    return Path(cached) if isinstance(cached, str) else None


def find_config(model: str) -> dict[str, Any] | None:
    """config.json of a local model folder, of a hub model in the cache, or the facts that come with this suite.

    Raises:
        BadInput: when it is no JSON object.
    """
    file = Path(model) / "config.json" if (Path(model) / "config.json").exists() else _cached_config(model)
    if file is None:
        return KNOWN.get(model)
    try:
        config, error = json.loads(file.read_text(encoding="utf-8")), "no object"
    except json.JSONDecodeError as e:
        config, error = None, str(e)
    if not isinstance(config, dict):
        raise BadInput(f"{file} is not JSON of a model", found=error, next_step="take the model's folder again")
    return config


def find_shape(model: str) -> Shape:
    """The shape that a model's `find_config` says.

    Raises:
        BadInput: when there is none.
    """
    config = find_config(model)
    if config is None:
        raise BadInput(
            f"the size of {model} is not known before it is downloaded",
            expected=f"a local folder, a model in the hub's cache, or one of {', '.join(KNOWN)}",
            next_step=f"hf download {model}",
        )
    return shape_from(config, model)


def how_to_make(config: Any, path: Path | None = None) -> str:
    """The command that makes a run's missing file, or its missing model (no path)."""
    of_data = config.run.data is not None and path is not None and path.is_relative_to(config.run.data)
    if has_base(config.run.size) and not of_data:
        base = config.run.base or "DIR"
        fetch, size = "", ""
        if config.run.size == SMALL:
            fetch, size = f"stapo-train fetch {SMALL}, then ", f" --size {SMALL}"
        return f"{fetch}stapo-train base{size} --out {base}, then run.base={base}"
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
        kind: train_files or val_files, for the message.
        make: the command that makes such a file.

    Raises:
        BadInput: file missing, no Parquet, columns or ids missing, no rows, or content that differs from data.json.
    """
    if not path.exists():
        raise BadInput(f"data.{kind} is not there", found=str(path), expected="a Parquet file", next_step=make)
    try:
        table = pq.ParquetFile(path)
        names, rows = set(table.schema_arrow.names), table.metadata.num_rows
    except pa.ArrowInvalid as e:
        raise BadInput(f"{path} is no Parquet file", found=str(e).splitlines()[0], next_step=make) from None
    if not rows or not names >= _COLUMNS:
        raise BadInput(
            f"{path} holds no row" if not rows else f"{path}: columns are missing",
            found=f"{rows} rows of {', '.join(sorted(names))}",
            expected=f"rows with {', '.join(sorted(_COLUMNS))}",
            next_step=make,
        )
    ids = table.read(["extra_info"]).column("extra_info").combine_chunks()
    known = pa.types.is_struct(ids.type) and ids.type.get_field_index("problem_id") >= 0
    if not known or ids.field("problem_id").null_count:
        raise BadInput(
            f"{path}: rows have no extra_info.problem_id, from which a sample's seed is derived",
            found=f"extra_info: {ids.type}" + ("" if not known else f", {ids.field('problem_id').null_count} without"),
            expected="an id of its problem in every row",
            next_step=make,
        )
    _check_content(path)
    return rows


def _check_content(path: Path) -> None:
    record = path.with_name(RECORD)
    if not record.exists():
        return
    prepared = store.read_json(record, DataRecord)
    hashes = {info.file: info.content_sha256 for info in (prepared.train, prepared.validation)}
    if path.name in hashes and (found := parquet_content_sha256(path)) != hashes[path.name]:
        raise BadInput(
            f"{path} is not what {record.name} beside it says",
            found=f"content {found[:16]}",
            expected=f"content {hashes[path.name][:16]}",
            next_step="prepare the data again in a new folder: one of the two files was changed",
        )
