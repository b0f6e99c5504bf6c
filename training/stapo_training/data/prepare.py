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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results import benchmarks, provenance, runs, store
from stapo_results.errors import BadInput
from stapo_training.data import contamination, source
from stapo_training.data.rows import (
    RECORD,
    Counts,
    DataRecord,
    FileInfo,
    SourceInfo,
    content_sha256,
    to_json,
    verl_row,
    write_parquet,
)

DATA_SOURCE = "math_dapo"  # DAPO's own name for its rows
VALIDATION = "aime24"


@dataclass(frozen=True)
class DataOptions:
    """What is done to a prompt set.

    Attributes:
        language: `all`, or `en`: prompts without an ideograph (`source.has_cjk`).
        validation: the benchmark that becomes val.parquet.
    """

    language: str = "all"
    exclude_contaminated: bool = False
    validation: str = VALIDATION


def prepare(
    given: str,
    benchmark_dir: Path,
    out: Path,
    options: DataOptions = DataOptions(),
    *,
    revision: str = "main",
    names: Sequence[str] | None = None,
) -> DataRecord:
    """Prepare a prompt set into `out`.

    The same source, benchmarks and options give the same content hashes and the same bytes of data.json,
    conflicts.jsonl and the contamination report. A finished folder is left as it is, an interrupted one made anew.

    Args:
        given: a .jsonl or .parquet file, or a dataset's id on the hub.
        benchmark_dir: folder with the benchmarks' files.
        out: new or empty folder, or one of the same preparation.
        revision: of the hub's dataset.
        names: the benchmarks to compare; by default every registered one, also those of a registry.yaml in the folder.

    Raises:
        BadInput: for a source or benchmark that is missing or damaged, or another preparation in `out`.
    """
    out = Path(out)
    if options.language not in ("en", "all"):
        raise BadInput("unknown --language", found=options.language, expected="en | all", next_step="--language all")
    loaded = _benchmarks(Path(benchmark_dir), names)
    found = source.find(given, revision)
    run = provenance.new_run(
        "data",
        {"source": found.name, "revision": found.revision, **vars(options)},
        seeds={},
        deterministic=True,
        revisions={found.name: found.sha256} | {n: b.identity.golds_sha256 for n, b in loaded.items()},
    )
    runs.previous_of(out, run, "--out", resumes=False)  # another run is refused before the work
    record, files = _prepared(found, loaded, options)  # a damaged source leaves no folder
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished and all((out / name).exists() for name in files):
            print(f"{out} is finished already")
        else:
            with folder.working("the start", resume="the same command makes it anew"):
                for name, content in files.items():
                    if isinstance(content, str):
                        store.write_atomic(out / name, content)
                    else:
                        write_parquet(out / name, content)
    print(f"{out}: content {record.train.content_sha256[:16]}")
    print(f"next: stapo-train run task=dapo-math-17k run.data={out} ...")
    return record


def _prepared(
    found: source.Source, loaded: Mapping[str, benchmarks.Benchmark], options: DataOptions
) -> tuple[DataRecord, dict[str, str | list[dict[str, Any]]]]:
    """The record, and the content of each file: text, or rows of a Parquet file."""
    prompts = source.distinct(source.read(found))
    agreeing = [p for p in prompts if not p.conflicting]
    kept = [p for p in agreeing if options.language == "all" or not source.has_cjk(p.problem)]
    report = contamination.find(kept, loaded, excluded=options.exclude_contaminated)
    matched = contamination.matched_ids(report)
    train = [p for p in kept if not (options.exclude_contaminated and p.problem_id in matched)]
    total = sum(p.copies for p in prompts)
    counts = Counts(
        distinct=len(prompts),
        copies_dropped=total - len(prompts),
        conflicts_dropped=len(prompts) - len(agreeing),
        language_dropped=len(agreeing) - len(kept),
        contaminated=len(matched),
        contaminated_dropped=len(kept) - len(train),
    )
    if not train:
        raise BadInput("no prompt is left", found=counts, next_step="check the options")
    rows = [
        verl_row(p.problem, p.gold, data_source=DATA_SOURCE, split="train", index=i, problem_id=p.problem_id)
        for i, p in enumerate(train)
    ]
    validation = _validation_rows(loaded[options.validation])
    record = DataRecord(
        source=SourceInfo(name=found.name, revision=found.revision, sha256=found.sha256, rows=total),
        language=options.language,
        exclude_contaminated=options.exclude_contaminated,
        counts=counts,
        contamination={name: b.contaminated for name, b in report.benchmarks.items()},
        train=_file_info("train.parquet", rows),
        validation=_file_info("val.parquet", validation),
    )
    _show(record, report)
    return record, {
        "train.parquet": rows,
        "val.parquet": validation,
        "conflicts.jsonl": "".join(_conflict(p) for p in prompts if p.conflicting),
        "contamination.json": to_json(report),
        RECORD: to_json(record),
    }


def _benchmarks(folder: Path, names: Sequence[str] | None) -> dict[str, benchmarks.Benchmark]:
    """Every registered benchmark; one that is missing would look like one without contamination."""
    specs = {n: spec for n, spec in benchmarks.registry(folder).items() if names is None or n in names}
    missing = [n for n, spec in specs.items() if not (folder / (spec.file or f"{n}.jsonl")).is_file()]
    if missing:
        raise BadInput(
            f"{folder} lacks benchmarks",
            found=f"no {', '.join(f'{n}.jsonl' for n in missing)}",
            expected=", ".join(specs),
            next_step=f"stapo-eval benchmarks --write {folder} fetches them; docs/evaluation.md says which are right",
        )
    return {name: benchmarks.load(name, folder) for name in specs}


def _validation_rows(benchmark: benchmarks.Benchmark) -> list[dict[str, Any]]:
    several = [p.id for p in benchmark.problems if not isinstance(p.answer, str)]
    if several:
        raise BadInput(
            f"{benchmark.name} has problems with several answers, which the reward cannot read", found=several
        )
    return [
        verl_row(p.problem, str(p.answer), data_source=benchmark.name, split="val", index=i, problem_id=p.id)
        for i, p in enumerate(benchmark.problems)
    ]


def _file_info(name: str, rows: Sequence[dict[str, Any]]) -> FileInfo:
    return FileInfo(
        file=name, data_source=rows[0]["data_source"], prompts=len(rows), content_sha256=content_sha256(rows)
    )


def _conflict(p: source.Prompt) -> str:
    golds = [{"gold": gold, "row": row} for gold, row in p.golds.items()]
    line = {"problem_id": p.problem_id, "source_id": p.source_id, "golds": golds, "problem": p.problem}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _show(record: DataRecord, report: contamination.Contamination) -> None:
    counts = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in record.counts.model_dump().items())
    print(f"{record.source.rows} rows, {record.train.prompts} training prompts ({counts})")
    fate = "left out" if record.exclude_contaminated else "kept; --exclude-contaminated leaves them out"
    found = ", ".join(f"{b.title} {b.contaminated} of {b.problems}" for b in report.benchmarks.values())
    print(f"benchmark problems among the prompts: {found} ({report.matched_prompts} prompts, {fate})")
