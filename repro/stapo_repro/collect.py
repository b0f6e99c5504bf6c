"""From a finished run to records that can be committed: cut to what is read of them, without a machine's paths."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stapo_repro.labels import REAL_SIZES
from stapo_repro.read import below, check_roots
from stapo_repro.run.stages import FILE, StageState, read_states
from stapo_results import store, token_log
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, Cut, Record, Run, StepMetrics

KEPT = (
    *("reward", "entropy", "accuracy", "accuracy_t1.0", "accuracy_t0.7", "useful_rate", "spurious_rate"),
    *("silenced_share", "candidate_share", "threshold", "actor/selector/silenced_tokens", "token_entropy_mean"),
    *(f"token_entropy_q{q:02d}" for q in (5, 25, 50, 75, 80, 95, 99)),
    *(f"{of}/{name}/acc/mean@8" for of in ("val-core", "val-t0.7") for name in ("mini-add", "mini-add-hard")),
    "val-t0.7/aime24/acc/mean@32",
    *("response_tokens", "truncated_share", "grad_norm", "clip_fraction", "actor/kl_loss", "rollout_kl"),
)
"""Names that a record keeps of metrics.jsonl: what tables, figures, checks and tests read, and the paper's curves. No
seconds: metrics.jsonl holds no time, run.json and stages.json do."""
KEPT_CONFIG = re.compile(
    r"(run|actor_rollout_ref\.(selector|rollout\.n)|trainer\.(device|nnodes|n_gpus_per_node|test_freq)"
    r"|data\.(train_batch_size|max_response_length))\."
)
"""What labels and estimates read of a training's configuration. A record keeps it, and what is the training's own."""

_ABSOLUTE = re.compile(r'(?<=["= ])/[^\s/"]+/[^\s"]*')
_ANY_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+[^\s'\",:)]*")
_OWN_FILE = re.compile(r'(?<=")([\w.+]+=)/[^"]*/(?=[^/"]+\.(?:ya?ml|py:\w+)")')  # an overlay or a selector of the user
_HUB_CACHE = re.compile(r'(["= ])/[^\s"]*?/(?=models--[^\s/"]+/snapshots/)')
_OUTSIDE = {"data_dir": "BENCHMARKS", "judge_prompt": "PROMPT", "model": "", "judge": ""}
"""What may lie outside a run, since the record has its hash; "": a model, under its own name."""
_SAMPLED = ("benchmarks", "settings", "n", "limit", "max_tokens", "system", "template")
"""Of an evaluation's configuration, what its samples depend on beside what its revisions and seeds say."""
_OF_A_RUN = ("cells/*.json", f"{token_log.FOLDER}/**/*.*")
Files = dict[Path, str | bytes]
Shorten = Callable[[Path, str], tuple[Files, dict[str, Any]]]
"""Of a training's folder and run id, what is kept in the place of its token log, and what `Cut` then says of it."""


def without_paths(text: str) -> str:
    """A message in words with every absolute path in it written as (path)."""
    return _ANY_PATH.sub("(path)", text)


def _text(value: Any) -> str:
    """JSON in which equal configurations are equal texts."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def own_part(config: dict[str, Any], whole: dict[str, Any], above: str = "") -> dict[str, Any]:
    """What `KEPT_CONFIG` names of a configuration, and where it differs from another one, `whole`."""
    part: dict[str, Any] = {}
    for key, value in config.items():
        name, other = f"{above}{key}.", whole.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            inner = own_part(value, other, name)
            part |= {key: inner} if inner else {}
        elif KEPT_CONFIG.match(name) or key not in whole or _text(value) != _text(other):
            part[key] = value
    return part


def laid_over(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The configuration of which `part` is the `own_part`."""
    nested = {k for k, v in part.items() if isinstance(v, dict) and isinstance(whole.get(k), dict)}
    return whole | part | {k: laid_over(whole[k], part[k]) for k in nested}


def cut_run(folder: Path, record: Run, whole: dict[str, Any], shorten: Shorten | None = None) -> tuple[Files, Files]:
    """What is kept of a run folder beside its cells; run.json says what was left out (`Cut`).

    Args:
        record: its own, without paths.
        whole: the configuration from which a training's is written as a difference.
        shorten: a training's token log stays behind, and this in its place.

    Returns:
        Path below the folder -> content; path below the folder of records -> content that runs share.
    """
    files, shared, cut = Files(), Files(), dict[str, Any]()

    def share(kind: str, data: bytes) -> str:
        shared[Path(store.whole_name(kind, sha256 := hashlib.sha256(data).hexdigest()))] = data
        return sha256

    if record.kind == "train":
        steps = list(store.read(folder / "metrics.jsonl", StepMetrics))
        left = Counter(name.partition("/")[0] for s in steps for name in s.values if name not in KEPT)
        cut |= {"kept": list(KEPT), "metrics": dict(sorted(left.items()))}
        kept = [s.model_copy(update={"values": {k: v for k, v in s.values.items() if k in KEPT}}) for s in steps]
        files[Path("metrics.jsonl")] = "".join(store.to_line(s) + "\n" for s in kept)
        part, text = own_part(record.config, whole), _text(record.config)
        if _text(laid_over(whole, part)) == text:  # not where `whole` has a key more
            cut["config"] = hashlib.sha256(text.encode()).hexdigest()
            cut["config_from"] = share("config", _text(whole).encode())
            record = record.model_copy(update={"config": part})
    if record.kind == "train" and shorten:
        kept_of_log, log_cut = shorten(folder, record.run_id)
        files, cut = files | kept_of_log, cut | log_cut
    elif record.kind in ("train", "probe"):
        logged = token_log.join(folder)
        if tokenizer := logged.pop(f"{token_log.FOLDER}/{token_log.TOKENIZER}", None):
            cut["tokenizer"] = share("tokenizer", tokenizer)
        files |= {Path(name): data for name, data in logged.items()}
    plain = record.model_copy(update={"cut": Cut(**cut) if cut else None}).model_dump(mode="json")
    return files | {Path("run.json"): json.dumps(plain, ensure_ascii=False, indent=1) + "\n"}, shared


def collect(run: Path, out: Path, shorten: Shorten | None = None) -> list[Path]:
    """Copy what tables and figures need of a finished `run` to `out`, in the same tree.

    Taken are what `cut_run` keeps of base models, trainings, evaluations and probes, and their cells, each read as its
    record first, and of a run of the driver what each stage took (stages.json). What runs share is written once, in
    whole/. Responses, their times and checkpoints stay behind.

    Args:
        run: a folder that `stapo-repro run` wrote.
        out: a folder below results/records.
        shorten: of a study that keeps less than the token logs of its trainings.

    Returns:
        The files written.

    Raises:
        BadInput: for a folder without records, or one that is not of a finished run.
        RecordError: for a broken record, one that still names a path of this machine, one at `out` that is of another
            run, or that an earlier call took from a folder of this run and that is gone there: tables would count it.
    """
    check_roots([run])
    root = run.resolve()
    driver_file, records = root / "run.json", dict[Path, Run]()
    for path in below(root, "run.json"):
        record = store.read_json(path, Run)
        if record.kind in ("base", "train", "eval", "probe"):  # the driver's own record stays behind
            records[path.parent] = _plain(record, path, root)
    if not records:
        raise BadInput(f"{run}: no record found", expected="run.json files of trainings and evaluations",
                       next_step="stapo-repro collect runs/miniature --out DIR")  # fmt: skip
    earlier = [json.loads(p.read_bytes()) for p in sorted(out.glob(store.whole_name("config", "*")))]
    base_config = [*earlier, *(r.config for r in records.values() if r.kind == "train"), {}][0]
    places = {out / folder.relative_to(root): record for folder, record in records.items()}
    if others := [f"{p}" for p, record in places.items() if _other_run(p / "run.json", record)]:
        raise RecordError(f"{out} has records of other runs", found=", ".join(others[:5]), expected="those of this one",
                          next_step=f"another --out, or: {shlex.join(['rm', '-r', *others])}")  # fmt: skip
    written = Files()
    for folder, record in records.items():
        files, shared = cut_run(folder, record, base_config, shorten)
        for cell in sorted(folder.glob("cells/*.json")):
            store.read_json(cell, CellRecord)
            files[cell.relative_to(folder)] = cell.read_bytes()
        written |= shared | {folder.relative_to(root) / name: data for name, data in files.items()}
    if (root / FILE).exists() and (driver := store.read_json(driver_file, Run)).kind == "repro":
        taken = _times(root, driver.config, out, [r.hardware for r in records.values()])
        left_out = {"stages": {"__all__": {"command", "status"}}}
        written[Path(FILE)] = taken.model_dump_json(indent=1, exclude=left_out) + "\n"
    gone = list[Path]()
    for folder in records:
        for pattern in _OF_A_RUN:
            taken_before = sorted((out / folder.relative_to(root)).glob(pattern))
            gone += [p for p in taken_before if p.is_file() and p.relative_to(out) not in written]
    if gone:
        raise RecordError(f"{out} has records that {run} no longer has", found=", ".join(map(str, gone[:5])),
                          next_step=f"{shlex.join(['rm', *map(str, gone)])}   then run this command again")  # fmt: skip
    for name, data in written.items():
        store.write_atomic(out / name, data)
    return [out / name for name in written]


def _other_run(path: Path, record: Run) -> bool:
    """Whether another run's record stands there. Of an evaluation the samples count: it may have been judged again."""
    if not path.exists():
        return False
    there = store.read_json(path, Run)

    def samples(r: Run) -> tuple[object, ...]:
        of = {k: v for k, v in r.revisions.items() if not k.startswith(("judge", "source:"))}
        return r.seeds, of, [r.config.get(k) or None for k in _SAMPLED]

    if there.kind == record.kind == "eval":
        return samples(there) != samples(record)
    return (there.kind, there.run_id) != (record.kind, record.run_id)


def _plain(record: Run, path: Path, root: Path) -> Run:
    """A finished run's record without paths of this machine."""
    if record.status != "done" or record.cut is not None:
        raise BadInput(f"{path}: not a finished run", found="cut already" if record.cut else record.status,
                       expected="done", next_step="run the same command again, then collect what it wrote")  # fmt: skip
    changes = [(_folder(root), "RUN"), (_folder(Path(tempfile.gettempdir(), "ray")), "RAY")]  # a default of veRL's
    part = path.parent.relative_to(root)
    made = Path(str(record.config.get("out") or record.config.get("run", {}).get("out")))
    if made.is_absolute() and made.parts[len(made.parts) - len(part.parts) :] == part.parts:
        stood = Path(*made.parts[: len(made.parts) - len(part.parts)])  # before it was moved
        changes.append((_folder(stood), "RUN"))
    elif made.is_absolute() and not made.is_relative_to(root):  # moved alone
        changes.append((_folder(made), f"RUN/{part.as_posix()}"))
    changes += [(_HUB_CACHE, r"\1HUB/"), (_OWN_FILE, r"\1")]  # a model's id and commit follow; the run has its copy
    for key, name in _OUTSIDE.items():
        given = record.config.get(key)
        if isinstance(given, str) and len(Path(given).parts) > 2 and Path(given).is_absolute():
            changes.append((_folder(Path(given)), name or _model_name(Path(given))))
    text = record.model_dump_json()
    for pattern, name in changes:
        text = pattern.sub(name, text)
    plain = json.loads(text)
    plain["notes"] = [without_paths(note) for note in plain["notes"]]
    texts = json.dumps([plain[part] for part in ("command", "config", "revisions")], ensure_ascii=False)
    if left := sorted(set(_ABSOLUTE.findall(texts))):
        raise RecordError(f"{path}: the record names paths outside the run", found=", ".join(left[:5]),
                          expected=f"paths below {root} only",
                          next_step="keep the data and outputs of a run in one folder")  # fmt: skip
    return Run.model_validate(plain)


def _model_name(folder: Path) -> str:
    """A model's folder without those above it; `stapo-train fetch` writes NAME/model."""
    fetched = folder.name == "model" and folder.parent.name in REAL_SIZES
    return f"{folder.parent.name}/model" if fetched else folder.name


def _folder(path: Path) -> re.Pattern[str]:
    """What finds a folder in JSON, but not RUN.yaml beside RUN."""
    return re.compile(re.escape(json.dumps(str(path), ensure_ascii=False)[1:-1]) + r"(?![\w.-])")


class RunTimes(Record):
    """stages.json among committed records: what the stages of a driver's runs took, `seconds` in sum.

    kind: miniature, testbed or cells; quick: its short form; part: of the testbed. unfinished: names of stages
    that were begun and did not end. hardware: of the run records beside it, each once.
    """

    kind: str
    quick: bool
    part: str = ""
    seconds: float
    stages: list[StageState]
    unfinished: tuple[str, ...] = ()
    hardware: list[dict[str, Any]]


def _times(folder: Path, config: dict[str, Any], out: Path, hardware: list[dict[str, Any]]) -> RunTimes:
    """The times of a driver's folder, with those that `out` has of earlier runs.

    Raises:
        RecordError: `out` has the records of another kind of run.
    """
    kind = {"kind": config["experiment"], "quick": config["quick"], "part": config.get("part", "")}
    states = read_states(folder)
    stages = {s.name: s for s in states.values() if s.status == "done"}
    unfinished = {s.name for s in states.values()} - stages.keys()
    if (out / FILE).is_file():
        earlier = store.read_json(out / FILE, RunTimes)
        recorded = earlier.model_dump(include=set(kind))
        if recorded != kind:
            raise RecordError("the folder holds the records of another kind of run", found=recorded, expected=kind,
                              next_step="stapo-repro collect RUN --out DIR, a folder without records")  # fmt: skip
        kept = {s.name: s for s in earlier.stages if s.name not in stages}
        stages, hardware = kept | stages, (earlier.hardware if kept else []) + hardware
        unfinished |= set(earlier.unfinished)
    machines = [h for i, h in enumerate(hardware) if h not in hardware[:i]]
    seconds = round(sum(s.seconds for s in stages.values()), 2)
    left = tuple(sorted(unfinished - stages.keys()))
    return RunTimes(**kind, seconds=seconds, stages=list(stages.values()), unfinished=left, hardware=machines)
