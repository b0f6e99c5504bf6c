"""`stapo-train data`: a prompt set as veRL's training file, the validation file, and what was done to it.

What it leaves in its folder:

    train.parquet        the prompts, in order of first occurrence
    val.parquet          AIME24 in the same columns
    conflicts.jsonl      prompts that were dropped because their golds differ
    contamination.json, contamination.md   benchmark problems among the prompts (see `contamination`)
    run.json             the run record
    data.json            counts, source and content hashes, written last: a folder without it is not finished
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stapo_results import benchmarks, provenance, store
from stapo_results.errors import BadInput
from stapo_training.data import clean, contamination, source
from stapo_training.data.clean import Distinct, Prompt
from stapo_training.data.folder import (
    LAST,
    Counts,
    DataRecord,
    FileInfo,
    SourceInfo,
    refuse_foreign,
    require_same,
    to_json,
)
from stapo_training.data.rows import content_sha256, verl_row, write_parquet

DATA_SOURCE = "math_dapo"  # DAPO's own name for its rows
VALIDATION = "aime24"


def prepare(
    given: str,
    benchmark_dir: Path,
    out: Path,
    *,
    exclude_contaminated: bool = False,
    language: str = "all",
    revision: str = "main",
    names: Sequence[str] | None = None,
    validation: str = VALIDATION,
) -> DataRecord:
    """Prepare a prompt set into `out`.

    The same source, benchmarks and options give the same content hashes and the same bytes of data.json,
    conflicts.jsonl and the contamination report. A finished folder is left as it is, an interrupted one made anew.

    Args:
        given: a .jsonl or .parquet file, or a dataset's id on the hub.
        benchmark_dir: folder with the benchmarks' files.
        out: new or empty folder, or one of the same preparation.
        language: `all`, or `en`: prompts without an ideograph (`clean.has_cjk`).
        revision: of the hub's dataset.
        names: the benchmarks to compare; by default every registered one, also those of a registry.yaml in the folder.
        validation: the one of them that becomes val.parquet.

    Raises:
        BadInput: for a source or benchmark that is missing or damaged, or another content in `out`.
    """
    began, out = time.monotonic(), Path(out)
    if language not in ("en", "all"):
        raise BadInput("unknown --language", found=language, expected="en | all", next_step="--language all")
    refuse_foreign(out)
    loaded = _benchmarks(Path(benchmark_dir), names)
    found = source.find(given, revision)
    options = {"language": language, "exclude_contaminated": exclude_contaminated, "validation": validation}
    run = provenance.new_run(
        "data",
        {"source": found.name, "revision": found.revision, **options},
        seeds={},
        deterministic=True,
        revisions={found.name: found.sha256} | {n: b.identity.golds_sha256 for n, b in loaded.items()},
    )
    merged = clean.distinct(source.read(found))
    agreeing = [p for p in merged.prompts if not p.conflicting]
    kept = [p for p in agreeing if language == "all" or not clean.has_cjk(p.problem)]
    report = contamination.find(kept, loaded, excluded=exclude_contaminated)
    matched = contamination.matched_ids(report)
    train = [p for p in kept if not (exclude_contaminated and p.problem_id in matched)]
    if not train:
        raise BadInput("no prompt is left", found=_steps(merged, agreeing, kept, train), next_step="check the options")
    tables = {"train": _train_rows(train), "val": _validation_rows(loaded[validation])}
    record = DataRecord(
        source=SourceInfo(
            name=found.name,
            revision=found.revision,
            sha256=found.sha256,
            rows=merged.rows,
            wrappers=merged.wrappers,
        ),
        language=language,
        exclude_contaminated=exclude_contaminated,
        counts=Counts(
            distinct=len(merged.prompts),
            copies_dropped=merged.rows - len(merged.prompts),
            conflicts_dropped=len(merged.prompts) - len(agreeing),
            language_dropped=len(agreeing) - len(kept),
            contaminated=len(matched),
            contaminated_dropped=len(kept) - len(train),
            answer_line=sum("Answer:" in p.problem for p in train),
        ),
        contamination={name: b.contaminated for name, b in report.benchmarks.items()},
        train=_file_info("train.parquet", tables["train"]),
        validation=_file_info("val.parquet", tables["val"]),
    )
    texts = {
        "conflicts.jsonl": "".join(_conflict(p) for p in merged.prompts if p.conflicting),
        "contamination.json": to_json(report),
        "contamination.md": contamination.markdown(report, found.name),
        LAST: to_json(record),
    }
    if (out / LAST).exists():
        require_same(out, texts, record)
        print(f"{out} is finished already: the same content")
    else:
        for name, rows in (("train.parquet", tables["train"]), ("val.parquet", tables["val"])):
            write_parquet(out / name, rows)
        for name in sorted(texts.keys() - {LAST}):
            store.write_atomic(out / name, texts[name])
        provenance.close_run(run, out / "run.json", "done", time.monotonic() - began)
        store.write_atomic(out / LAST, texts[LAST])
    _show(record, report, _steps(merged, agreeing, kept, train), out)
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


def _train_rows(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    return [
        verl_row(p.problem, p.gold, data_source=DATA_SOURCE, split="train", index=i, problem_id=p.problem_id)
        for i, p in enumerate(prompts)
    ]


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


def _conflict(p: Prompt) -> str:
    golds = [{"gold": gold, "row": row} for gold, row in p.golds.items()]
    line = {"problem_id": p.problem_id, "source_id": p.source_id, "golds": golds, "problem": p.problem}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _steps(merged: Distinct, agreeing: Sequence[Prompt], kept: Sequence[Prompt], train: Sequence[Prompt]) -> str:
    return (
        f"{merged.rows} rows, {len(merged.prompts)} distinct prompts, {len(agreeing)} without conflicting golds, "
        f"{len(kept)} in the language, {len(train)} training prompts"
    )


def _show(record: DataRecord, report: contamination.Report, steps: str, out: Path) -> None:
    fate = "left out" if record.exclude_contaminated else "kept; --exclude-contaminated leaves them out"
    table = Table(title=f"benchmark problems among the prompts ({report.matched_prompts} prompts, {fate})")
    table.add_column("benchmark")
    for name in ("problems", "contaminated", "whole", "prefix"):
        table.add_column(name, justify="right")
    for b in report.benchmarks.values():
        table.add_row(b.title, *(str(n) for n in (b.problems, b.contaminated, b.whole, b.prefix)))
    Console().print(table)
    print(steps)
    if record.counts.answer_line:
        print(f'{record.counts.answer_line} prompts ask for an "Answer:" line in their own text; they are kept')
    print(f"{out}: content {record.train.content_sha256[:16]}")
    print(f"next: stapo-train run task=dapo-math-17k run.data={out} ...")
