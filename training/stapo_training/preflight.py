"""What can be known to fail before a training starts anything expensive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from stapo_results import provenance
from stapo_results.errors import BadInput
from stapo_training.methods import selector_from


@dataclass(frozen=True)
class Facts:
    """What is needed to check a run before Ray starts."""

    out: Path
    model: Path
    files: list[Path]
    prompts: int


def check(config: Any) -> Facts:
    """Everything that can be known to fail before anything expensive starts.

    Raises:
        BadInput: for missing files, sizes that do not divide, too little memory or disk, a GPU that is not there.
    """
    selector_from(config.actor_rollout_ref.selector)
    out = Path(config.run.out).resolve()
    model = Path(config.actor_rollout_ref.model.path)
    local = model.is_absolute() or str(config.actor_rollout_ref.model.path).startswith((".", "/")) or config.run.base
    if local and not (model / "config.json").exists():
        raise BadInput(
            "the model is not there",
            found=f"no config.json in {model}",
            expected="a Hugging Face model folder",
            next_step=f"stapo-train base --out {config.run.base or 'DIR'}, or set run.base=DIR",
        )
    files, prompts = [], 0
    for kind in ("train_files", "val_files"):
        names = config.data[kind]
        for name in [names] if isinstance(names, str) else list(names):
            path = Path(name)
            if not path.exists():
                raise BadInput(
                    f"data.{kind} is not there",
                    found=str(path),
                    expected="a Parquet file",
                    next_step="stapo-train data --out DIR, then run.data=DIR (miniature: stapo-train base --out DIR)",
                )
            table = pq.ParquetFile(path)
            lacking = {"data_source", "prompt", "reward_model", "extra_info"} - set(table.schema_arrow.names)
            if lacking:
                raise BadInput(
                    f"{path}: columns are missing",
                    found=", ".join(table.schema_arrow.names),
                    expected=f"also {', '.join(sorted(lacking))}",
                    next_step="make the file with stapo-train base or stapo-train data",
                )
            files.append(path)
            prompts += table.metadata.num_rows if kind == "train_files" else 0
    batch, ranks = config.data.train_batch_size, config.trainer.n_gpus_per_node * config.trainer.nnodes
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts < batch:
        raise BadInput("fewer prompts than one training batch", found=prompts, expected=f"at least {batch}")
    for name, whole, part in (
        ("data.train_batch_size by actor.ppo_mini_batch_size", batch, mini),
        ("a mini-batch's sequences by the ranks", mini * config.actor_rollout_ref.rollout.n, ranks),
    ):
        if whole % part:
            raise BadInput(
                f"{name} does not divide",
                found=f"{whole} / {part}",
                expected="no remainder",
                next_step="change one of the two",
            )
    rows = mini * config.actor_rollout_ref.rollout.n // ranks
    for key, micro in (
        (
            "rollout.log_prob_micro_batch_size_per_gpu",
            config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu,
        ),
        ("actor.ppo_micro_batch_size_per_gpu", config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu),
    ):
        if not config.actor_rollout_ref.actor.use_dynamic_bsz and micro and rows % micro:
            raise BadInput(
                f"{key} does not divide a rank's mini-batch",
                found=f"{rows} sequences, micro-batch {micro}",
                expected="no remainder",
                next_step=f"set actor_rollout_ref.{key} to a divisor of {rows}",
            )
    if config.trainer.device == "cuda" and not provenance.hardware()["gpus"]:
        raise BadInput(
            "no GPU found",
            found="nvidia-smi lists none",
            expected=f"{ranks} GPUs",
            next_step="run on a GPU node, or the miniature: tox -e miniature",
        )
    memory = psutil.virtual_memory().available / 2**30
    if memory < 4:
        raise BadInput(
            "too little memory is free",
            found=f"{memory:.1f} GiB",
            expected="at least 4 GiB",
            next_step="close other programs",
        )
    out.mkdir(parents=True, exist_ok=True)
    disk = psutil.disk_usage(str(out)).free / 2**30
    if disk < 1:
        raise BadInput(
            f"too little disk is free for {out}",
            found=f"{disk:.2f} GiB",
            expected="at least 1 GiB",
            next_step="free some space or choose another run.out",
        )
    return Facts(out, model, files, prompts)
