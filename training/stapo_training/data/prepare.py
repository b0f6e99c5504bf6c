"""`stapo-train data`: a prompt set as veRL's training file, the validation file, and what was done to it.

What it leaves in its folder:

    train.parquet        the prompts, in order of first occurrence
    val.parquet          AIME24 in the same columns
    conflicts.jsonl      prompts that were dropped because their golds differ
    contamination.json   benchmark problems among the prompts (see `contamination`)
    data.json            counts, source and content hashes
    run.json             the run record
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from stapo_results import benchmarks, provenance, runs, store
from stapo_results.errors import BadInput
from stapo_training.data import contamination, source
from stapo_training.data.rows import RECORD, DataRecord, FileInfo, SourceInfo, content_sha256, verl_rows, write_parquet

DATA_SOURCE = "math_dapo"  # DAPO's own name for its rows
VALIDATION = "aime24"
FILES = ("train.parquet", "val.parquet", "conflicts.jsonl", "contamination.json", RECORD)


def prepare(
    given: str,
    benchmark_dir: Path,
    out: Path,
    *,
    language: Literal["all", "en"] = "all",
    exclude_contaminated: bool = False,
    revision: str = "main",
) -> DataRecord:
    """Prepare a prompt set into `out`, and AIME24 as its validation.

    The same source, benchmarks and options give the same content hashes and the same bytes of data.json,
    conflicts.jsonl and the contamination report. A finished folder is left as it is, an interrupted one made anew.

    Args:
        given: a .jsonl or .parquet file, or a dataset's id on the hub.
        benchmark_dir: folder with the benchmarks' files; those of its registry.yaml are compared with the prompts too.
        out: new or empty folder, or one of the same preparation.
        language: `en` takes prompts without an ideograph (`source.has_cjk`).
        exclude_contaminated: leave out the prompts that match a benchmark problem.
        revision: of the hub's dataset.

    Raises:
        BadInput: for a source or benchmark that is missing or damaged, or another preparation in `out`.
    """
    options: dict[str, Any] = {"language": language, "exclude_contaminated": exclude_contaminated}
    loaded = _benchmarks(benchmark_dir)
    found = source.find(given, revision)
    run = provenance.new_run(
        "data",
        {"source": found.name, "revision": found.revision, **options, "validation": VALIDATION},
        seeds={},
        deterministic=True,
        revisions={found.name: found.sha256} | {n: b.golds_sha256 for n, b in loaded.items()},
    )
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished and all((out / name).exists() for name in FILES):
            record = store.read_json(out / RECORD, DataRecord)
            print(f"{out} is finished already")
        else:
            with folder.working("the start", resume="the same command makes it anew"):
                record = _written(out, found, loaded, **options)
    _show(record, loaded)
    print(f"{out}: content {record.train.content_sha256[:16]}")
    print(f"next: stapo-train run task=dapo-math-17k run.data={out} ...")
    return record


def _written(
    out: Path,
    given: source.Source,
    loaded: Mapping[str, benchmarks.Benchmark],
    *,
    language: str,
    exclude_contaminated: bool,
) -> DataRecord:
    """Make the files; the record is the last one."""
    prompts = source.distinct(source.read(given))
    agreeing = [p for p in prompts if not p.conflicting]
    kept = [p for p in agreeing if language == "all" or not source.has_cjk(p.problem)]
    reports = contamination.find(kept, loaded)
    matched = contamination.matched_ids(reports)
    train = [p for p in kept if not (exclude_contaminated and p.problem_id in matched)]
    total = sum(p.copies for p in prompts)
    counts = {
        "distinct": len(prompts),
        "copies_dropped": total - len(prompts),
        "conflicts_dropped": len(prompts) - len(agreeing),
        "language_dropped": len(agreeing) - len(kept),
        "contaminated": len(matched),
        "contaminated_dropped": len(kept) - len(train),
    }
    if not train:
        raise BadInput("no prompt is left", found=counts, next_step="check the options")
    store.write_atomic(out / "conflicts.jsonl", "".join(_conflict(p) for p in prompts if p.conflicting))
    store.write_json(out / "contamination.json", {"schema_version": 1, "benchmarks": reports})
    asked = [(p.problem, p.gold, p.problem_id) for p in train]
    validated = [(p.problem, str(p.answer), p.id) for p in loaded[VALIDATION].problems]
    record = DataRecord(
        source=SourceInfo(name=given.name, revision=given.revision, sha256=given.sha256, rows=total),
        language=language,
        exclude_contaminated=exclude_contaminated,
        counts=counts,
        contamination={name: b["contaminated"] for name, b in reports.items()},
        train=_file(out / "train.parquet", asked, DATA_SOURCE, "train"),
        validation=_file(out / "val.parquet", validated, VALIDATION, "val"),
    )
    store.write_json(out / RECORD, record)
    return record


def _file(path: Path, problems: Sequence[tuple[str, str, str]], data_source: str, split: str) -> FileInfo:
    rows = verl_rows(problems, data_source=data_source, split=split)
    write_parquet(path, rows)
    return FileInfo(file=path.name, data_source=data_source, prompts=len(rows), content_sha256=content_sha256(rows))


def _benchmarks(folder: Path) -> dict[str, benchmarks.Benchmark]:
    """Every registered benchmark; one that is missing would look like one without contamination."""
    specs = benchmarks.registry(folder)
    files = [spec.file or f"{n}.jsonl" for n, spec in specs.items()]
    missing = [f for f in files if not (folder / f).is_file()]
    if missing:
        raise BadInput(
            f"{folder} lacks benchmarks",
            found=f"no {', '.join(missing)}",
            expected=", ".join(specs),
            next_step=f"stapo-eval benchmarks --write {folder} fetches them; docs/evaluation.md says which are right",
        )
    return {name: benchmarks.load(name, folder) for name in specs}


def _conflict(p: source.Prompt) -> str:
    golds = [{"gold": gold, "row": row} for gold, row in p.golds.items()]
    line = {"problem_id": p.problem_id, "source_id": p.source_id, "golds": golds, "problem": p.problem}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _show(record: DataRecord, loaded: Mapping[str, benchmarks.Benchmark]) -> None:
    counts = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in record.counts.items())
    print(f"{record.source.rows} rows, {record.train.prompts} training prompts ({counts})")
    fate = "left out" if record.exclude_contaminated else "kept; --exclude-contaminated leaves them out"
    found = ", ".join(
        f"{loaded[name].spec.title} {n} of {len(loaded[name].problems)}" for name, n in record.contamination.items()
    )
    print(f"benchmark problems among the prompts: {found} ({record.counts['contaminated']} prompts, {fate})")
