"""A base folder of the miniature: benchmarks, training data and model that are made here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stapo_results import runs, store
from stapo_results.benchmarks import registry_entry, write_registry
from stapo_results.schema import Labels, Run
from stapo_results.terminal import duration
from stapo_training.data.rows import verl_rows, write_parquet

_MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "stapo.json")
_DATA = ("data/train.parquet", "data/val.parquet", "benchmarks/registry.yaml")

Parts = Mapping[str, tuple[str, Sequence[Any]]]
"""Benchmark's name -> title and problems, each with `text` (no instruction) and `answer`, a whole number."""


def write_base(
    out: Path,
    run: Run,
    size: str,
    parts: Parts,
    train: tuple[str, Sequence[Any]],
    write_model: Callable[[Path], None],
    *,
    validation: Sequence[str],
    samples: int,
    **known: Any,
) -> bool:
    """Fill a base folder; an interrupted one, or one that lost a file, is made anew. Returns False where it is whole.

    Args:
        size: of the model's label.
        train: data source and problems of train.parquet.
        write_model: fills a new folder with model and tokenizer.
        validation: the benchmarks whose problems are val.parquet.
        samples: N of avg@N.
        known: further fields of each benchmark's registry entry.
    """
    with runs.opened(out, run, resumes=False) as folder:
        files = [*(f"model/{x}" for x in _MODEL), *_DATA, *(f"benchmarks/{x}.jsonl" for x in parts)]
        if folder.finished and all((out / name).exists() for name in files):
            print(f"base model: {out} is finished already")
            return False
        with folder.working("the start", resume="the same command makes it anew"):
            _write_benchmarks(out / "benchmarks", parts, samples, **known)
            write_parquet(out / "data" / "train.parquet", _verl_rows(train[1], train[0], "train"))
            rows = [row for name in validation for row in _verl_rows(parts[name][1], name, "val")]
            write_parquet(out / "data" / "val.parquet", rows)
            partial, target = out / ".model", out / "model"
            for stale in (partial, target):
                shutil.rmtree(stale, ignore_errors=True)
            write_model(partial)
            labels = Labels(
                method="base",
                size=size,
                train_seed=run.seeds["base"],
                step="base",
                parent_run=folder.record.run_id,
                weights_sha256=store.sha256_file(partial / "model.safetensors"),
            )
            store.write_json(partial / "stapo.json", labels)
            partial.rename(target)
    print(f"base model: {out}, {duration(folder.record.wall_seconds)}")
    return True


def _verl_rows(problems: Sequence[Any], source: str, split: str) -> list[dict[str, Any]]:
    """The ground truth is decimal text; a validation row has the id of the benchmark's row."""
    name = source if split == "val" else f"{source}-{split}"
    made = ((p.text, str(p.answer), f"{name}-{i:04d}") for i, p in enumerate(problems))
    return verl_rows(made, data_source=source, split=split)


def _write_benchmarks(folder: Path, parts: Parts, samples: int, **known: Any) -> None:
    """NAME.jsonl of each benchmark, and registry.yaml."""
    entries = {}
    for name, (title, problems) in parts.items():
        rows = [{"id": f"{name}-{i:04d}", "problem": p.text, "answer": str(p.answer)} for i, p in enumerate(problems)]
        path = folder / f"{name}.jsonl"
        store.write_atomic(path, "".join(json.dumps(r) + "\n" for r in rows))
        entries[name] = registry_entry(path, name, samples=samples, title=title, answer_type="integer", **known)
    write_registry(folder / "registry.yaml", entries)
