"""A veRL checkpoint as a Hugging Face folder: merged shards, safetensors, tokenizer, stapo.json, README.md.

veRL's own merger writes bfloat16 alone; here the type is a choice, and the labels of the run travel with the weights.
Shards are read with `weights_only`, so a checkpoint from elsewhere cannot run code.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, cast

from stapo_results import store
from stapo_results.errors import BadInput, message_of
from stapo_results.runs import RECORD, check_folder
from stapo_results.schema import Labels, Run, StepMetrics
from stapo_training.artifacts.weights import check_tensors, made_whole
from stapo_training.folder.training_folder import COMPLETE, TrainingFolder, read_mark, step_folders, step_of

if TYPE_CHECKING:
    import torch

_FILE_BYTES = 2 * 10**9


def find_checkpoint(path: Path) -> tuple[Path, Path]:
    """(run folder, global_step folder) for a run folder, whose last checkpoint it is, or one of its checkpoints.

    Raises:
        BadInput: when there is no marked checkpoint, or the mark is of another step.
    """
    path = Path(os.path.abspath(path))  # links stay: a run's checkpoints may be on another disk
    path = path.parent if path.name == "actor" else path
    path = path.parent if path.name == "checkpoints" else path
    if path.is_symlink() and not (path / RECORD).is_file() and not (path.parent.parent / RECORD).is_file():
        path = path.resolve()  # such as latest -> RUN/checkpoints/global_step_9
    if path.name.startswith("global_step_"):
        run, folders = path.parent.parent, [path]
    else:
        run, folders = path, step_folders(path)
    marked = [f for f in folders if (f / COMPLETE).is_file()]
    checkpoint = max(marked, key=step_of, default=None)
    if checkpoint is None:
        raise BadInput(
            f"no checkpoint in {path}",
            found=f"no whole checkpoint ({COMPLETE})" if path.is_dir() else "no such folder",
            expected="a run folder of `stapo-train run`, or checkpoints/global_step_N",
            next_step="stapo-train run ... run.out=DIR makes one; the same command resumes an interrupted run",
        )
    if _mark(checkpoint)[0] != step_of(checkpoint):
        raise BadInput(f"{checkpoint} is not the checkpoint of its name", found=f"step {_mark(checkpoint)[0]}",
                       expected=f"the step of global_step_N in {COMPLETE}",
                       next_step="give a copy the name of its step")  # fmt: skip
    return run, checkpoint


def _mark(step_folder: Path) -> tuple[int, dict[str, int]]:
    """Step and sizes of files that a checkpoint was marked with. Raises: BadInput for a damaged mark."""
    try:
        return read_mark(step_folder)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise BadInput(f"{step_folder / COMPLETE} is damaged", found=message_of(e),
                       next_step="copy it again, or use another checkpoint") from None  # fmt: skip


def find_shards(folder: Path) -> list[Path]:
    """FSDP's files `model_world_size_W_rank_R.pt`, by rank; `_check_sizes` has refused a checkpoint that lacks one.

    Raises:
        BadInput: files of runs on different numbers of ranks.
    """
    files = sorted(folder.glob("model_world_size_*_rank_*.pt"), key=lambda p: int(p.stem.rpartition("_")[2]))
    worlds = {p.stem.split("_")[3] for p in files}
    if worlds != {str(len(files))}:
        raise BadInput(f"{folder}: the shards are not those of one run", found=f"{len(files)} files", expected=
                       f"all of {' or '.join(sorted(worlds))} ranks", next_step="use another checkpoint")  # fmt: skip
    return files


def read_shards(files: Sequence[Path]) -> list[dict[str, torch.Tensor]]:
    """Each rank's tensors, mapped from disk: what is not read takes no memory. Raises: BadInput for damaged files."""
    import torch
    import torch.distributed.tensor  # makes DTensor known to the weights-only unpickler

    # it warns of every file that no process group exists; none is needed to read
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    try:
        return [torch.load(f, map_location="cpu", weights_only=True, mmap=True) for f in files]
    except (RuntimeError, pickle.UnpicklingError, EOFError) as e:
        raise BadInput(f"{files[0].parent}: a shard is damaged", found=message_of(e),
                       next_step="copy the files again, or use another checkpoint") from None  # fmt: skip


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
    ranks = mesh.reshape(-1, mesh.shape[-1])[0].tolist()  # of one replica: only the last dimension is sharded
    placement, parts = first.placements[-1], [cast("DTensor", shards[r][name])._local_tensor for r in ranks]
    tensor = torch.cat(parts, dim=placement.dim) if isinstance(placement, Shard) else parts[0]
    if tensor.shape != first.shape:
        raise BadInput(
            f"{name}: the ranks' parts are not the whole tensor",
            found=f"{tuple(tensor.shape)} of placements {first.placements}",
            expected=tuple(first.shape),
            next_step="train with one sharded dimension: actor_rollout_ref.actor.fsdp_config.fsdp_size=-1",
        )
    return tensor


def write_weights(files: Sequence[Path], out: Path, dtype: torch.dtype, leave_out: Collection[str] = ()) -> int:
    """The shards as safetensors: one file, or several with an index, each written before the next is read.

    The peak of memory is less than two files (`_FILE_BYTES`, or the largest tensor), whatever the model's size.

    Returns:
        How many tensors.
    """
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    shapes = {n: t.shape for n, t in read_shards(files)[0].items() if n not in leave_out}  # also of a DTensor
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

    check_folder(out.absolute().parent, "--out")
    run_folder, step_folder = find_checkpoint(checkpoint)
    run = store.read_json(run_folder / "run.json", Run)
    names, step = run.config["run"], step_of(step_folder)
    method, size, seed = (names[name] for name in ("method", "size", "seed"))
    labels = Labels(method=method, size=size, train_seed=seed, step=step, parent_run=run.run_id)
    name_of_type = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
    tokenizer = step_folder / "actor" / "huggingface"
    if out.exists() and (out.is_file() or any(out.iterdir())):  # before minutes of merging
        _check_exported(out, labels, name_of_type, tokenizer)
        print(f"{out}: this checkpoint is exported already")
        return
    _check_sizes(step_folder)
    shards = find_shards(step_folder / "actor")
    config = json.loads((tokenizer / "config.json").read_text())
    # safetensors stores no tensor twice; transformers ties it again
    tied = ["lm_head.weight"] if config.get("tie_word_embeddings") else []
    found = {name: tuple(t.shape) for name, t in read_shards(shards[:1])[0].items()}
    cure = "export a checkpoint of a training of all weights (no LoRA, no other architecture)"
    check_tensors(tokenizer, found, cure, more=False)
    partial = out.with_name(f".{out.name}.partial")
    with made_whole(partial, out):
        shutil.copytree(tokenizer, partial, ignore=shutil.ignore_patterns("*.safetensors*"))  # veRL's hf_model, in fp32
        config["dtype"] = name_of_type
        for name in ("attn_implementation", "_attn_implementation"):  # the run's choice, which others may not know
            config.pop(name, None)
        store.write_json(partial / "config.json", config)
        count = write_weights(shards, partial, getattr(torch, name_of_type), tied)
        labels = labels.model_copy(update={"weights_sha256": _sha256(partial)})
        store.write_json(partial / "stapo.json", labels)
        metrics = {m.step: m for m in TrainingFolder(run_folder).steps}
        store.write_atomic(partial / "README.md", model_card(run, labels, dtype, metrics.get(step)))
    print(f"{labels.method}/{labels.size} seed {labels.train_seed} step {step}: {count} tensors as {dtype} -> {out}")


def _check_sizes(step_folder: Path) -> None:
    """Of what is read; a copy needs no optimizer."""
    marked = _mark(step_folder)[1]
    read = {step_folder / n: size for n, size in marked.items() if n.startswith(("actor/model_", "actor/huggingface/"))}
    if wrong := [f.name for f, size in read.items() if not f.is_file() or f.stat().st_size != size]:
        raise BadInput(
            f"{step_folder} is damaged",
            found=f"another size, or none: {', '.join(wrong[:3])}",
            expected=f"the sizes in {COMPLETE}",
            next_step="copy the files again, or use another checkpoint",
        )


def _sha256(folder: Path) -> str:
    return store.sha256_files(sorted(folder.glob("*.safetensors")))


def _check_exported(out: Path, labels: Labels, name_of_type: str, tokenizer: Path) -> None:
    """Raises BadInput unless `out` holds whole weights of this checkpoint in this type, and the tokenizer's files."""
    old = store.read_json(out / "stapo.json", Labels) if (out / "stapo.json").exists() else None
    whole = all((out / f.name).exists() for f in tokenizer.glob("*"))
    if old and whole and old.model_copy(update={"weights_sha256": ""}) == labels:
        dtype = json.loads((out / "config.json").read_text())["dtype"]
        if dtype == name_of_type and old.weights_sha256 == _sha256(out):
            return
    raise BadInput(
        f"{out} exists and holds something else",
        found=f"step {old.step} of run {old.parent_run}" if old else "no stapo.json",
        expected="a new folder, or this checkpoint whole, in this type",
        next_step="choose another --out, or remove the folder",
    )


_TEMPLATE = """\
---
library_name: transformers
{base_line}tags:
- reinforcement-learning
- {method}
---

# {method}-{size}-s{seed}, step {step}

Weights after step {step} of a training. Generated by `stapo-train export` from the run's own records.

| | |
|---|---|
{rows}

The metrics are of the training batch, `accuracy` of its validation set; they are no benchmark. To evaluate, in a
checkout of the code above: `tox -e eval -- --model DIR`. The base model's licence applies to these weights.
"""


def model_card(run: Run, labels: Labels, dtype: str, metrics: StepMetrics | None) -> str:
    """README.md of an export as Markdown: where the weights come from, by the run's record and nothing else.

    metrics: the line of this step in metrics.jsonl; None when there is none.
    """
    path, actor = run.config["actor_rollout_ref"]["model"]["path"], run.config["actor_rollout_ref"]["actor"]
    commit = ""
    if cached := re.search(r"/models--([^/]+)/snapshots/([^/]+)", path):  # where `weights.pin` found the hub's model
        path, commit = cached[1].replace("--", "/"), f" at {cached[2]}"
    hub = not path.startswith((".", "/")) and path.count("/") == 1
    base = path if hub else PurePath(path).name  # no folder of the training machine
    numbers = {k: v for k, v in metrics.values.items() if "/" not in k} if metrics else {}
    rows = {
        "base model": base + commit if hub else f"{base} (a local folder)",
        "selector": ", ".join(f"{k} {v}" for k, v in run.config["actor_rollout_ref"]["selector"].items()),
        "objective": f"clip {actor['clip_ratio_low']} / {actor['clip_ratio_high']}, {actor['loss_agg_mode']}, "
        f"KL {actor['kl_loss_coef'] if actor['use_kl_loss'] else 'none'}, learning rate {actor['optim']['lr']}",
        "SHA-256": ", ".join(f"{k} `{v}`" for k, v in run.revisions.items() if "/" not in v) or "not recorded",
        "run": f"{run.run_id}, started {run.started}, {run.status}",
        "code": f"`{run.code_commit}`" + (f" with changes `{run.code_dirty}`" if run.code_dirty else ""),
        "these weights": f"{dtype}, SHA-256 `{labels.weights_sha256}`",
        f"metrics of step {labels.step}": ", ".join(f"{k} {v:.6g}" for k, v in numbers.items()) or "not recorded",
    }
    return _TEMPLATE.format(
        base_line=f"base_model: {base}\n" if hub else "",
        method=labels.method,
        size=labels.size,
        seed=labels.train_seed,
        step=labels.step,
        rows="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
    )
