"""A veRL checkpoint as a Hugging Face folder: merged shards, safetensors, tokenizer, stapo.json, README.md.

veRL's own merger writes bfloat16 alone; here the type is a choice, and the labels of the run travel with the weights.
Shards are read with `weights_only`, so a checkpoint from elsewhere cannot run code.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Labels, Run, StepMetrics
from stapo_training.artifacts.model_card import model_card
from stapo_training.run.folder import TrainingFolder

if TYPE_CHECKING:
    import torch

_FILE_BYTES = 2 * 10**9
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
            found="no whole checkpoint" if path.is_dir() else "no such folder",
            expected="a run folder of `stapo-train run`, or checkpoints/global_step_N",
            next_step="stapo-train run ... run.out=DIR makes one",
        )
    return path, found


def find_shards(folder: Path) -> list[Path]:
    """FSDP's files `model_world_size_W_rank_R.pt`, by rank.

    Raises:
        BadInput: when a rank's file is missing.
    """
    files = {int(m[2]): (p, int(m[1])) for p in folder.iterdir() if (m := _SHARD.fullmatch(p.name))}
    world = {w for _, w in files.values()}
    if not files or world != {len(files)}:
        raise BadInput(
            f"{folder}: the shards are not complete",
            found=f"ranks {sorted(files)}",
            expected=f"all of {sorted(world)} ranks",
            next_step="copy the missing files, or use another checkpoint",
        )
    return [files[r][0] for r in sorted(files)]


def read_shards(files: Sequence[Path]) -> list[dict[str, torch.Tensor]]:
    """Each rank's tensors, mapped from disk: what is not looked at takes no memory."""
    import torch
    import torch.distributed.tensor  # makes DTensor known to the weights-only unpickler

    # it warns of every file that no process group exists; none is needed to read
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    return [torch.load(f, map_location="cpu", weights_only=True, mmap=True) for f in files]


def merged(shards: Sequence[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
    """A full tensor of the ranks' parts, in the saved type.

    Raises:
        BadInput: when the parts are not the whole tensor, as in a layout with two sharded dimensions.
    """
    import torch
    from torch.distributed.tensor import DTensor, Shard

    first = shards[0][name]
    if not isinstance(first, DTensor):
        return first
    mesh = first.device_mesh.mesh
    ranks = mesh.reshape(-1, mesh.shape[-1])[0].tolist()  # one replica's: the last dimension is the sharded one
    placement, parts = first.placements[-1], [cast("DTensor", shards[r][name])._local_tensor for r in ranks]
    whole = torch.cat(parts, dim=placement.dim) if isinstance(placement, Shard) else parts[0]
    if whole.shape != first.shape:
        raise BadInput(
            f"{name}: the ranks' parts are not the whole tensor",
            found=f"{tuple(whole.shape)} of placements {first.placements}",
            expected=tuple(first.shape),
            next_step="train with one sharded dimension: actor_rollout_ref.actor.fsdp_config.fsdp_size=-1",
        )
    return whole


def write_weights(files: Sequence[Path], out: Path, dtype: torch.dtype, leave_out: Collection[str] = ()) -> int:
    """The shards as safetensors: one file, or several with an index, each written before the next is read.

    The peak of memory is less than two files (`_FILE_BYTES`, or the largest tensor), whatever the model's size.

    Returns:
        How many tensors.
    """
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    shapes = {
        n: t.shape for n, t in read_shards(files)[0].items() if n not in leave_out
    }  # a DTensor's is the whole one
    empty = {n: torch.empty(shape, dtype=dtype, device="meta") for n, shape in shapes.items()}
    split = split_torch_state_dict_into_shards(empty, max_shard_size=_FILE_BYTES)
    for file, names in split.filename_to_tensors.items():
        shards = read_shards(files)  # anew, so that the pages of the file before are given back
        tensors = {n: merged(shards, n).to(dtype).contiguous() for n in names}
        save_file(tensors, out / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        store.write_atomic(out / "model.safetensors.index.json", json.dumps(index, indent=1) + "\n")
    return len(shapes)


def export(checkpoint: Path, out: Path, dtype: str = "fp32") -> None:
    """Write `checkpoint` to `out` in one step (a partial folder is never left under that name).

    Args:
        checkpoint: a run folder or a global_step folder.
        dtype: "fp32" or "bf16".

    Raises:
        BadInput: for a missing or damaged checkpoint, or when `out` holds something else.
    """
    import torch

    run_folder, step_folder = find_checkpoint(checkpoint)
    run = store.read_json(run_folder / "run.json", Run)
    step = int(step_folder.name.rsplit("_", 1)[1])
    actor = step_folder / "actor"
    settings = run.config["run"]
    name_of_type = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
    labels = Labels(
        method=settings["method"],
        size=settings["size"],
        train_seed=settings["seed"],
        step=step,
        parent_run=run.run_id,
    )
    other = BadInput(
        f"{out} exists and holds something else", expected="a new folder", next_step="choose another --out"
    )
    old = store.read_json(out / "stapo.json", Labels) if (out / "stapo.json").exists() else None
    there = json.loads((out / "config.json").read_text())["dtype"] if old else None
    if out.exists() and (
        old is None or (old.model_copy(update={"weights_sha256": ""}), there) != (labels, name_of_type)
    ):
        raise other  # before minutes of merging
    shards = find_shards(actor)
    config = json.loads((actor / "huggingface" / "config.json").read_text())
    # safetensors stores no tensor twice; transformers ties it again
    tied = ["lm_head.weight"] if config.get("tie_word_embeddings") else []
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(actor / "huggingface", partial)
    config["dtype"] = name_of_type
    for name in ("attn_implementation", "_attn_implementation"):  # the run's choice, which others may not know
        config.pop(name, None)
    store.write_json(partial / "config.json", config)
    count = write_weights(shards, partial, getattr(torch, name_of_type), tied)
    labels = labels.model_copy(update={"weights_sha256": store.sha256_files(sorted(partial.glob("*.safetensors")))})
    store.write_json(partial / "stapo.json", labels)
    logged = run_folder / "metrics.jsonl"
    metrics = {m.step: m for m in store.read(logged, StepMetrics)} if logged.exists() else {}
    store.write_atomic(partial / "README.md", model_card(run, labels, dtype, metrics.get(step)))
    if out.exists():
        shutil.rmtree(partial)
        if old != labels:
            raise other
        print(f"{out}: this checkpoint is exported already")
        return
    partial.rename(out)
    print(f"{labels.method}/{labels.size} seed {labels.train_seed} step {step}: {count} tensors as {dtype} -> {out}")
