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
from typing import Any

from stapo_results import benchmarks, provenance, runs, store
from stapo_results.errors import BadInput
from stapo_training.data import contamination, source
from stapo_training.data.rows import RECORD, DataRecord, FileInfo, SourceInfo, content_sha256, verl_rows, write_parquet

DATA_SOURCE = "math_dapo"  # DAPO's own name for its rows
FILES = ("train.parquet", "val.parquet", "conflicts.jsonl", "contamination.json", RECORD)


def prepare(
    given: str,
    benchmark_dir: Path,
    out: Path,
    *,
    language: str = "all",
    exclude_contaminated: bool = False,
    revision: str = "main",
    validation: str = "aime24",
    names: Sequence[str] | None = None,
) -> DataRecord:
    """Prepare a prompt set into `out`.

    The same source, benchmarks and options give the same content hashes and the same bytes of data.json,
    conflicts.jsonl and the contamination report. A finished folder is left as it is, an interrupted one made anew.

    Args:
        given: a .jsonl or .parquet file, or a dataset's id on the hub.
        benchmark_dir: folder with the benchmarks' files.
        out: new or empty folder, or one of the same preparation.
        language: `all`, or `en`: prompts without an ideograph (`source.has_cjk`).
        exclude_contaminated: leave out the prompts that match a benchmark problem.
        revision: of the hub's dataset.
        validation: the benchmark that becomes val.parquet.
        names: the benchmarks to compare; by default every registered one, also those of a registry.yaml in the folder.

    Raises:
        BadInput: for a source or benchmark that is missing or damaged, or another preparation in `out`.
    """
    if language not in ("en", "all"):
        raise BadInput("unknown --language", found=language, expected="en | all", next_step="--language all")
    options = {"language": language, "exclude_contaminated": exclude_contaminated, "validation": validation}
    loaded = _benchmarks(Path(benchmark_dir), names)
    found = source.find(given, revision)
    run = provenance.new_run(
        "data",
        {"source": found.name, "revision": found.revision, **options},
        seeds={},
        deterministic=True,
        revisions={found.name: found.sha256} | {n: b.golds_sha256 for n, b in loaded.items()},
    )
    runs.previous_of(out, run, "--out", resumes=False)  # another run is refused before the work

    # a damaged source leaves no folder: all is made before it is opened
    prompts = source.distinct(source.read(found))
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
    asked = [(p.problem, p.gold, p.problem_id) for p in train]
    rows = {
        "train.parquet": verl_rows(asked, data_source=DATA_SOURCE, split="train"),
        "val.parquet": verl_rows(_validation(loaded[validation]), data_source=validation, split="val"),
    }
    files = {
        name: FileInfo(file=name, data_source=r[0]["data_source"], prompts=len(r), content_sha256=content_sha256(r))
        for name, r in rows.items()
    }
    record = DataRecord(
        source=SourceInfo(name=found.name, revision=found.revision, sha256=found.sha256, rows=total),
        language=language,
        exclude_contaminated=exclude_contaminated,
        counts=counts,
        contamination={name: b["contaminated"] for name, b in reports.items()},
        train=files["train.parquet"],
        validation=files["val.parquet"],
    )
    contaminated = {
        "schema_version": 1,
        "training_prompts": len(kept),
        "matched_prompts": len(matched),
        "excluded": exclude_contaminated,
        "benchmarks": reports,
    }
    conflicts = "".join(_conflict(p) for p in prompts if p.conflicting)
    _show(record, reports)

    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished and all((out / name).exists() for name in FILES):
            print(f"{out} is finished already")
        else:
            with folder.working("the start", resume="the same command makes it anew"):
                for name, content in rows.items():
                    write_parquet(out / name, content)
                store.write_atomic(out / "conflicts.jsonl", conflicts)
                store.write_json(out / "contamination.json", contaminated)
                store.write_json(out / RECORD, record)
    print(f"{out}: content {record.train.content_sha256[:16]}")
    print(f"next: stapo-train run task=dapo-math-17k run.data={out} ...")
    return record


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


def _validation(benchmark: benchmarks.Benchmark) -> list[tuple[str, str, str]]:
    several = [p.id for p in benchmark.problems if not isinstance(p.answer, str)]
    if several:
        raise BadInput(
            f"{benchmark.name} has problems with several answers, which the reward cannot read", found=several
        )
    return [(p.problem, str(p.answer), p.id) for p in benchmark.problems]


def _conflict(p: source.Prompt) -> str:
    golds = [{"gold": gold, "row": row} for gold, row in p.golds.items()]
    line = {"problem_id": p.problem_id, "source_id": p.source_id, "golds": golds, "problem": p.problem}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _show(record: DataRecord, reports: Mapping[str, Mapping[str, Any]]) -> None:
    counts = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in record.counts.items())
    print(f"{record.source.rows} rows, {record.train.prompts} training prompts ({counts})")
    fate = "left out" if record.exclude_contaminated else "kept; --exclude-contaminated leaves them out"
    found = ", ".join(f"{b['title']} {b['contaminated']} of {b['problems']}" for b in reports.values())
    print(f"benchmark problems among the prompts: {found} ({record.counts['contaminated']} prompts, {fate})")
