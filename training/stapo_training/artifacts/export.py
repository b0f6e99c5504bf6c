"""A veRL checkpoint as a Hugging Face folder: merged shards, safetensors, tokenizer, stapo.json, README.md.

veRL's own merger writes bfloat16 alone; here the type is a choice, and the labels of the run travel with the weights.
Shards are read with `weights_only`, so a checkpoint from elsewhere cannot run code.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Labels, Run, StepMetrics
from stapo_training.artifacts.model_card import model_card
from stapo_training.run.folder import TrainingFolder

if TYPE_CHECKING:
    import torch

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def find_checkpoint(path: Path) -> tuple[Path, Path]:
    """(run folder, global_step folder) for a run folder or one of its checkpoints.

    Raises:
        BadInput: when there is no whole checkpoint.
    """
    if re.fullmatch(r"global_step_\d+", path.name):
        run, checkpoint = path.parent.parent, path
        if not (checkpoint / "COMPLETE.json").exists():
            raise BadInput(
                f"{checkpoint} is not a whole checkpoint",
                found="no COMPLETE.json",
                expected="a checkpoint that was saved to its end",
                next_step=f"choose another one under {path.parent}, or run the training again: it resumes",
            )
        return run, checkpoint
    found = TrainingFolder(path).last_checkpoint() if path.is_dir() else None
    if found is None:
        raise BadInput(
            f"no checkpoint in {path}",
            expected="a run folder of `stapo-train run`, or checkpoints/global_step_N",
            next_step="stapo-train run ... run.out=DIR makes one",
        )
    return path, found


def merge_shards(folder: Path) -> dict[str, torch.Tensor]:
    """The full tensors (on the CPU, in the saved type) of FSDP shards `model_world_size_W_rank_R.pt`.

    Raises:
        BadInput: when a rank's file is missing.
    """
    import torch
    import torch.distributed.tensor  # makes DTensor known to the weights-only unpickler
    from torch.distributed.tensor import DTensor, Shard

    files = {int(m[2]): (p, int(m[1])) for p in folder.iterdir() if (m := _SHARD.fullmatch(p.name))}
    world = {w for _, w in files.values()}
    if not files or world != {len(files)}:
        raise BadInput(
            f"{folder}: the shards are not complete",
            found=f"ranks {sorted(files)}",
            expected=f"all of {sorted(world)} ranks",
            next_step="copy the missing files, or use another checkpoint",
        )
    shards = [torch.load(files[r][0], map_location="cpu", weights_only=True) for r in sorted(files)]
    merged: dict[str, torch.Tensor] = {}
    for name, first in shards[0].items():
        if not isinstance(first, DTensor):
            merged[name] = first
            continue
        placement, parts = first.placements[-1], [s[name]._local_tensor for s in shards]
        merged[name] = torch.cat(parts, dim=placement.dim) if isinstance(placement, Shard) else parts[0]
    return merged


def export(checkpoint: Path, out: Path, dtype: str = "fp32") -> None:
    """Write `checkpoint` to `out` in one step (a partial folder is never left under that name).

    Args:
        checkpoint: a run folder or a global_step folder.
        dtype: "fp32" or "bf16".

    Raises:
        BadInput: for a missing or damaged checkpoint, or when `out` holds something else.
    """
    import torch
    from safetensors.torch import save_file

    run_folder, step_folder = find_checkpoint(checkpoint)
    run = store.read_json(run_folder / "run.json", Run)
    step = int(step_folder.name.rsplit("_", 1)[1])
    actor = step_folder / "actor"
    settings = run.config["run"]
    name_of_type = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
    tensors = {name: t.to(getattr(torch, name_of_type)).contiguous() for name, t in merge_shards(actor).items()}
    config = json.loads((actor / "huggingface" / "config.json").read_text())
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)  # safetensors stores no tensor twice; transformers ties it again
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(actor / "huggingface", partial)
    config["dtype"] = name_of_type
    store.write_json(partial / "config.json", config)
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    labels = Labels(
        method=settings["method"],
        size=settings["size"],
        train_seed=settings["seed"],
        step=step,
        parent_run=run.run_id,
        weights_sha256=store.sha256_file(partial / "model.safetensors"),
    )
    store.write_json(partial / "stapo.json", labels)
    logged = run_folder / "metrics.jsonl"
    metrics = {m.step: m for m in store.read(logged, StepMetrics)} if logged.exists() else {}
    store.write_atomic(partial / "README.md", model_card(run, labels, dtype, metrics.get(step)))
    if out.exists():
        old = store.read_json(out / "stapo.json", Labels) if (out / "stapo.json").exists() else None
        shutil.rmtree(partial)
        if old == labels:
            print(f"{out}: this checkpoint is exported already")
            return
        raise BadInput(
            f"{out} exists and holds something else", expected="a new folder", next_step="choose another --out"
        )
    partial.rename(out)
    print(
        f"{labels.method}/{labels.size} seed {labels.train_seed} step {step}: "
        f"{len(tensors)} tensors as {dtype} -> {out}"
    )
