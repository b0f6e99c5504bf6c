"""From a finished run to records that can be committed, without a machine's paths: verdicts, curves, tokens, time."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from stapo_repro.driver import times
from stapo_results import store, token_log
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, Run, StepMetrics

_ABSOLUTE = re.compile(r"(?:^|[= ])(/[^\s/]+/\S*)")
_ANY_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+[^\s'\",:)]*")
_HUB_CACHE = re.compile(r"(^|[= ])/\S*?/(?=models--[^\s/]+/snapshots/)")


def shorten(value: Any, root: str, name: str = "RUN") -> Any:
    """The same value with the folder `root` written as `name`."""
    if isinstance(value, dict):
        return {k: shorten(v, root, name) for k, v in value.items()}
    if isinstance(value, list):
        return [shorten(v, root, name) for v in value]
    return value.replace(root, name) if isinstance(value, str) else value


def without_paths(text: str) -> str:
    """A message in words with every absolute path in it written as (path)."""
    return _ANY_PATH.sub("(path)", text)


def shorten_hub(value: Any) -> Any:
    """The same value with the hub's cache, wherever it is, written as HUB: a model's id and commit follow."""
    if isinstance(value, dict):
        return {k: shorten_hub(v) for k, v in value.items()}
    if isinstance(value, list):
        return [shorten_hub(v) for v in value]
    return _HUB_CACHE.sub(r"\1HUB/", value) if isinstance(value, str) else value


def paths_in(value: Any) -> list[str]:
    """Absolute paths that stand anywhere in a value."""
    if isinstance(value, dict):
        return [p for v in value.values() for p in paths_in(v)]
    if isinstance(value, list):
        return [p for v in value for p in paths_in(v)]
    return _ABSOLUTE.findall(value) if isinstance(value, str) else []


def collect(run: Path, out: Path, token_logs: bool = True) -> list[Path]:
    """Copy what tables and figures need of a finished `run` to `out`, in the same tree.

    Taken are run.json, metrics.jsonl, cells/*.json and the token log (all steps joined into one pair of files), each
    read as its record first, and of a run of the driver what each stage took (stages.json); responses, their times and
    checkpoints stay behind.

    Args:
        run: a folder that `stapo-repro miniature` or `run` wrote.
        out: a folder below results/records.
        token_logs: False leaves them and stages.json behind, as bundles for others do.

    Returns:
        The files written.

    Raises:
        BadInput: for a folder without records, or a run that is not finished.
        RecordError: for a broken record, or one that still names a path of this machine.
    """
    root = run.resolve()
    written: dict[Path, str | bytes] = {}
    hardware = []
    for path in sorted(root.rglob("run.json")):
        if "set-aside" in path.relative_to(root).parts:
            continue  # what a stage made before it was made anew
        record = store.read_json(path, Run)
        if record.kind not in ("train", "eval"):
            continue
        if record.status != "done":
            raise BadInput(
                f"{path}: not a finished run",
                found=record.status,
                expected="done",
                next_step="run the same `stapo-repro` command again: it goes on",
            )
        plain = shorten(record.model_dump(mode="json"), str(root))
        plain = shorten(plain, f"{tempfile.gettempdir()}/ray", "RAY")  # a default of veRL's configuration
        plain = shorten_hub(plain)
        if benchmarks := record.config.get("data_dir"):  # benchmarks are known by their hashes
            plain = shorten(plain, str(benchmarks).rstrip("/"), "BENCHMARKS")
        plain["notes"] = [without_paths(note) for note in plain["notes"]]
        if left := sorted({p for part in ("command", "config", "revisions") for p in paths_in(plain[part])}):
            raise RecordError(
                f"{path}: the record names paths outside the run",
                found=", ".join(left[:5]),
                expected=f"paths below {root} only",
                next_step="keep base model, data and outputs of a run in one folder",
            )
        hardware.append(record.hardware)
        name = path.relative_to(root)
        written[name] = json.dumps(plain, ensure_ascii=False, indent=1) + "\n"
        metrics = path.with_name("metrics.jsonl")
        if record.kind == "train":
            written[metrics.relative_to(root)] = "".join(
                store.to_line(m) + "\n" for m in store.read(metrics, StepMetrics)
            )
            log = token_log.join(path.parent) if token_logs else {}
            written |= {name.parent / file: data for file, data in log.items()}
        for cell in sorted(path.parent.glob("cells/*.json")):
            store.read_json(cell, CellRecord)
            written[cell.relative_to(root)] = cell.read_text(encoding="utf-8")
    if not written:
        raise BadInput(
            f"{run}: no record found",
            expected="run.json files of trainings and evaluations",
            next_step="name the folder of a finished run: stapo-repro collect runs/miniature --out DIR",
        )
    if token_logs and (taken := times.of_run(root, hardware)) is not None:
        written[Path(times.FILE)] = taken.model_dump_json(indent=1) + "\n"
    for name, data in written.items():
        store.write_atomic(out / name, data)
    return [out / name for name in written]
