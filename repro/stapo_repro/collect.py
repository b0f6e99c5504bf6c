"""From a finished run to records that can be committed, without a machine's paths: verdicts, curves, tokens, time."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stapo_repro.calibration import graders
from stapo_repro.driver import times
from stapo_repro.testbed import counts
from stapo_repro.tokens import readings
from stapo_results import store, token_log
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, Run, StepMetrics

_ABSOLUTE = re.compile(r"(?:^|[= ])(/[^\s/]+/\S*)")
_ANY_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+[^\s'\",:)]*")
_OWN_FILE = re.compile(r"^([\w.+]+=)/.*/(?=[^/]+\.(?:ya?ml|py:\w+)$)")  # an overlay or a selector of one's own
_OF_A_RUN = ("cells/*.json", f"{token_log.FOLDER}/**/*.parquet", counts.FILE)
_HUB_CACHE = re.compile(r"(^|[= ])/\S*?/(?=models--[^\s/]+/snapshots/)")


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same value with every text in it changed."""
    if isinstance(value, dict):
        return {k: _texts(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [_texts(v, change) for v in value]
    return change(value) if isinstance(value, str) else value


def shorten(value: Any, root: str, name: str = "RUN") -> Any:
    """The same value with the folder `root` written as `name`."""
    folder = re.compile(re.escape(root) + r"(?![\w.-])")  # not of RUN.yaml beside it
    return _texts(value, lambda text: folder.sub(lambda _: name, text))


def without_paths(text: str) -> str:
    """A message in words with every absolute path in it written as (path)."""
    return _ANY_PATH.sub("(path)", text)


def paths_in(value: Any) -> list[str]:
    """Absolute paths that stand anywhere in a value."""
    found: list[str] = []
    _texts(value, lambda text: (found.extend(_ABSOLUTE.findall(text)), text)[1])
    return found


def collect(run: Path, out: Path, token_logs: bool = True) -> list[Path]:
    """Copy what tables and figures need of a finished `run` to `out`, in the same tree.

    Taken are run.json of base models, trainings, evaluations and probes, metrics.jsonl, cells/*.json, labels.json,
    graders.json and the token log of a training or probe (all steps joined into one pair of files), each read as its
    record first, and of a run of the driver what each stage took (stages.json); responses, their times and checkpoints
    stay behind. Of a run of the testbed the tokens are counted (planted.json), its logs stay behind too.

    Args:
        run: a folder that `stapo-repro miniature` or `run` wrote.
        out: a folder below results/records.
        token_logs: False leaves them and stages.json behind, as bundles for others do.

    Returns:
        The files written.

    Raises:
        BadInput: for a folder without records, or a run that is not finished.
        RecordError: for a broken record, one that still names a path of this machine, or one at `out` that an earlier
            call took from a folder of this run and that is gone there: tables would count it.
    """
    root = run.resolve()
    written: dict[Path, str | bytes] = {}
    hardware, of_testbed = [], _is_testbed(root)
    for path in sorted(root.rglob("run.json")):
        name = path.relative_to(root)
        if "set-aside" in name.parts:  # what a stage made before it was made anew: it may be broken
            continue
        record = store.read_json(path, Run)
        if record.kind not in ("base", "train", "eval", "probe"):  # the driver's own record stays behind
            continue
        written[name] = json.dumps(_plain(record, path, root), ensure_ascii=False, indent=1) + "\n"
        hardware.append(record.hardware)
        if record.kind == "train":
            metrics = path.with_name("metrics.jsonl")
            lines = [store.to_line(m) + "\n" for m in store.read(metrics, StepMetrics)]
            written[metrics.relative_to(root)] = "".join(lines)
        if record.kind in ("train", "probe"):
            if of_testbed:
                counted = counts.of_run(path.parent, record.run_id)
                log = {counts.FILE: store.to_line(counted) + "\n"} if counted else {}
            else:
                log = token_log.join(path.parent) if token_logs else {}
            written |= {name.parent / file: data for file, data in log.items()}
        for cell in sorted(path.parent.glob("cells/*.json")):
            store.read_json(cell, CellRecord)
            written[cell.relative_to(root)] = cell.read_bytes()
    for file, kind in ((readings.FILE, readings.LabelRecord), (graders.FILE, graders.GraderRecord)):
        for path in (p for p in sorted(root.rglob(file)) if "set-aside" not in p.relative_to(root).parts):
            written[path.relative_to(root)] = store.read_json(path, kind).model_dump_json(indent=1) + "\n"
    if not written:
        raise BadInput(
            f"{run}: no record found",
            expected="run.json files of trainings and evaluations",
            next_step="name the folder of a finished run: stapo-repro collect runs/miniature --out DIR",
        )
    if token_logs and (taken := times.of_run(root, hardware)) is not None:
        before = out / times.FILE  # of runs that were collected into this folder before
        taken = times.joined(store.read_json(before, times.RunTimes), taken) if before.is_file() else taken
        written[Path(times.FILE)] = taken.model_dump_json(indent=1) + "\n"
    own = [out / name.parent for name in written if name.name == "run.json"]
    there = (p for folder in own for pattern in _OF_A_RUN for p in sorted(folder.glob(pattern)))
    if gone := [p for p in there if p.relative_to(out) not in written]:
        raise RecordError(f"{out} has records that {run} no longer has", found=", ".join(map(str, gone[:5])),
                          expected="those of the run alone, in the folders that it has",
                          next_step=f"{shlex.join(['rm', *map(str, gone)])}   then run this command again")  # fmt: skip
    for name, data in written.items():
        store.write_atomic(out / name, data)
    return [out / name for name in written]


def _is_testbed(root: Path) -> bool:
    own = root / "run.json"
    return own.is_file() and store.read_json(own, Run).config.get("experiment") == "testbed"


def _plain(record: Run, path: Path, root: Path) -> dict[str, Any]:
    """A finished run's record without paths of this machine."""
    if record.status != "done":
        raise BadInput(
            f"{path}: not a finished run",
            found=record.status,
            expected="done",
            next_step="run the same `stapo-repro` command again: it goes on",
        )
    plain = shorten(record.model_dump(mode="json"), str(root))
    plain = shorten(plain, f"{tempfile.gettempdir()}/ray", "RAY")  # a default of veRL's configuration
    plain = _texts(plain, lambda text: _HUB_CACHE.sub(r"\1HUB/", text))  # a model's id and commit follow
    plain["command"] = [_OWN_FILE.sub(r"\1", part) for part in plain["command"]]  # the run has its copy and its hash
    for key, name in (("data_dir", "BENCHMARKS"), ("judge_prompt", "PROMPT")):  # known by their hashes
        if known := record.config.get(key):
            plain = shorten(plain, str(known).rstrip("/"), name)
    plain["notes"] = [without_paths(note) for note in plain["notes"]]
    if left := sorted({p for part in ("command", "config", "revisions") for p in paths_in(plain[part])}):
        raise RecordError(
            f"{path}: the record names paths outside the run",
            found=", ".join(left[:5]),
            expected=f"paths below {root} only",
            next_step="keep base model, data and outputs of a run in one folder",
        )
    return plain
