"""`stapo-train data`: a prompt set as veRL's training file, the validation file, and what was done to it.

What it leaves in its folder:

    train.parquet        the prompts, in order of first occurrence
    val.parquet          AIME24, or another benchmark, in the same columns
    conflicts.jsonl      prompts that were dropped because their golds differ
    contamination.json   benchmark problems among the prompts (see `contamination`)
    data.json            counts, source and content hashes
    run.json             the run record
    samples.jsonl, reach.json   with --within-reach (see `reach`)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from stapo_results import benchmarks, provenance, runs, store
from stapo_results.errors import BadInput
from stapo_training import reach
from stapo_training.data import contamination, source
from stapo_training.data.options import DataOptions
from stapo_training.data.rows import (
    RECORD,
    DataRecord,
    FileInfo,
    SourceInfo,
    content_sha256,
    parquet_content_sha256,
    plain_gold,
    verl_rows,
    write_parquet,
)

DATA_SOURCE = "math_dapo"  # DAPO's own name for its rows
Chosen = tuple[list[source.Prompt], list[source.Prompt], dict[str, int], dict[str, dict[str, Any]]]
Asked = tuple[str, list[tuple[str, str, str]]]
"""A benchmark, and of its problems text, gold and id."""
FILES = ("train.parquet", "val.parquet", "conflicts.jsonl", "contamination.json", RECORD)


def prepare(o: DataOptions) -> DataRecord | None:
    """Prepare a prompt set into `o.out`, and a benchmark as its validation.

    The same source, benchmarks and options give the same content hashes and the same bytes of data.json,
    conflicts.jsonl and the contamination report. A finished folder is left as it is; an interrupted one is made anew,
    but for the samples of `o.within_reach`. The benchmarks of a registry.yaml are compared with the prompts too.

    Returns:
        The record; None in a dry run, which prints what would be done and writes nothing.

    Raises:
        BadInput: for a source or benchmark that is missing or damaged, or another preparation in `o.out`.
    """
    out = o.out
    _check_options(o)
    runs.check_folder(out, "--out")  # before a source is fetched, or weights are hashed
    options: dict[str, Any] = {"language": o.language, "exclude_contaminated": o.exclude_contaminated}
    options |= {"levels": sorted(o.levels)} if o.levels else {}  # records of earlier versions have no such keys
    listed = _ids(o.problems) if o.problems else None
    if listed:
        options["problems_sha256"] = hashlib.sha256("\n".join(listed).encode()).hexdigest()
    within = reach.Asked(o.within_reach, o.draw, o.samples, o.max_tokens, o.seed) if o.within_reach else None
    models = within.folder.revisions if within else {}
    loaded = _benchmarks(o.benchmarks)
    validated = _validation(o.validation, loaded)
    prompts = source.find(o.source, o.revision)
    run = provenance.new_run(
        "data",
        {"source": prompts.name, "revision": prompts.revision, **options, "validation": o.validation}
        | ({"within_reach": within.config} if within else {}),
        seeds={"within_reach": within.seed} if within else {},
        deterministic=True,  # of samples known when the model is loaded
        revisions={prompts.name: prompts.sha256} | _contents(loaded) | models,
    )
    how: dict[str, Any] = {"resumes": within is not None or (out / reach.SAMPLES).exists()}
    if runs.lacks(out, "settings"):
        how["may_differ"] = "revision settings".__eq__
    chosen = partial(_candidates, o, listed, prompts, loaded)
    if o.dry_run:
        runs.previous_of(out, run, "--out", **how)
        kept = chosen()[1]
        print(f"{len(kept)} prompts", within.plan(kept) if within else "", sep="\n  ")
        return None
    with runs.opened(out, run, **how) as folder:
        record = _finished(out, within is not None) if folder.finished else None
        if record:
            print(f"{out} is finished already")
        else:
            again = "makes the samples that are missing" if within else "makes it anew"
            samples_file = out / reach.SAMPLES
            lines = len(samples_file.read_bytes().splitlines()) if within and samples_file.exists() else 0
            found = chosen()  # before there is a record: what is wrong leaves none
            if within:
                within.encoded(found[1])
            with folder.working(f"{lines} samples" if lines else "the start", resume=f"the same command {again}"):
                record = _written(o, prompts, validated, found, within, loaded, folder)
    _show(record, loaded, o.validation.partition(":")[0])
    print(f"{out}: content {record.train.content_sha256[:16]}")
    print(f"next: stapo-train run task=... run.data={out} ...")
    return record


def _check_options(o: DataOptions) -> None:
    """Raises BadInput for options that nothing would read."""
    of_samples = [f"--{n.replace('_', '-')}" for n in ("draw", "samples", "max_tokens", "seed")
                  if not o.within_reach and getattr(o, n) != getattr(DataOptions, n)]  # fmt: skip
    if of_samples:
        raise BadInput("nothing is sampled", found=", ".join(of_samples), expected="--within-reach MODEL with them",
                       next_step="add it, or leave them out")  # fmt: skip
    if o.revision and Path(o.source).is_file():
        raise BadInput("a file has no revision", found=f"--revision {o.revision}", next_step="leave it out")


def _contents(loaded: Mapping[str, benchmarks.Benchmark]) -> dict[str, str]:
    """What of the benchmarks decides the folder: their golds, and texts where they are not the registered ones."""
    texts = {f"texts of {n}": b.content for n, b in loaded.items() if b.text_variants}
    return {n: b.golds_sha256 for n, b in loaded.items()} | texts


def _finished(out: Path, within: bool) -> DataRecord | None:
    """The record of a folder that is whole; None where a file is gone or cut off."""
    if not all((out / name).exists() for name in (*FILES, *[reach.RECORD] * within)):
        return None
    record = store.read_json(out / RECORD, DataRecord)
    try:
        whole = all(parquet_content_sha256(out / x.file) == x.content_sha256 for x in (record.train, record.validation))
    except (pa.ArrowInvalid, OSError):
        return None
    return record if whole else None


def _candidates(
    o: DataOptions, ids: Sequence[str] | None, given: source.SourceFile, loaded: Mapping[str, benchmarks.Benchmark]
) -> Chosen:
    """The distinct prompts; those that may be trained; how many each step took away; the report of contamination."""
    prompts = source.distinct(source.read(given))
    agreeing = [p for p in prompts if not p.conflicting]
    of_level = [p for p in agreeing if not o.levels or p.level in map(str, o.levels)]
    if o.levels and not of_level:
        levels = sorted({p.level for p in agreeing} - {""})
        raise BadInput("no problem of such a level", found=f"--levels {' '.join(map(str, o.levels))}",
                       expected=", ".join(levels) or "a source with levels", next_step="leave it out")  # fmt: skip
    listed = of_level if ids is None else _listed(ids, of_level)
    kept = [p for p in listed if o.language == "all" or not source.has_cjk(p.problem)]
    reports = contamination.find(kept, loaded)
    matched = contamination.matched_ids(reports)
    train = [p for p in kept if not (o.exclude_contaminated and p.problem_id in matched)]
    counts = {
        "distinct": len(prompts),
        "copies_dropped": sum(p.copies for p in prompts) - len(prompts),
        "conflicts_dropped": len(prompts) - len(agreeing),
        **({"level_dropped": len(agreeing) - len(of_level)} if o.levels else {}),
        **({"not_listed": len(of_level) - len(listed)} if ids else {}),
        "language_dropped": len(listed) - len(kept),
        "contaminated": len(matched),
        "contaminated_dropped": len(kept) - len(train),
    }
    return prompts, _some(train, counts), counts, reports


def _ids(path: Path) -> list[str]:
    """The problems' ids in a file, each once, sorted: their order and what is between them decide nothing."""
    try:
        ids, error = sorted({*path.read_text("utf-8-sig").split()}), "nothing"
    except (OSError, UnicodeDecodeError) as e:
        ids, error = [], str(e)
    if not ids:
        what, cure = f"{path} lists no problems", "--problems FILE"
        raise BadInput(what, found=error, expected="a problem's id a line", next_step=cure)
    return ids


def _listed(ids: Sequence[str], prompts: Sequence[source.Prompt]) -> list[source.Prompt]:
    """The prompts whose ids are listed, in their own order."""
    asked = {*ids}
    if missing := sorted(asked - {p.problem_id for p in prompts}):
        raise BadInput(
            "--problems lists problems that are not there",
            found=f"{len(missing)} of {len(ids)}, the first: {missing[0]}",
            expected="ids of problems of the source, of the levels asked for, whose golds agree",
            next_step="take the --source and --levels of the list; drop what has several golds (conflicts.jsonl)",
        )
    return [p for p in prompts if p.problem_id in asked]


def _some(prompts: list[source.Prompt], counts: Mapping[str, int]) -> list[source.Prompt]:
    """Raises BadInput where no prompt is left."""
    if not prompts:
        cure = "another --source, fewer filters, or another model for --within-reach (stapo-train data --help)"
        raise BadInput("no prompt is left", found=counts, expected="at least one", next_step=cure)
    return prompts


def _written(
    o: DataOptions, given: source.SourceFile, validated: Asked, chosen: Chosen, within: reach.Asked | None,
    loaded: Mapping[str, benchmarks.Benchmark], folder: runs.OpenRun,
) -> DataRecord:  # fmt: skip
    """Make the files; the record is the last one."""
    out, (prompts, train, counts, reports) = o.out, chosen
    if within:
        rights = within.rights(train, folder)
        counts["not_drawn"] = len(train) - len(rights)
        counts["never_right_dropped"] = sum(not n for n in rights.values())
        counts["always_right_dropped"] = sum(n == within.samples for n in rights.values())
        train = _some([p for p in train if 0 < rights.get(p.problem_id, 0) < within.samples], counts)
        if not o.exclude_contaminated:  # else the report is of what was left out
            reports = contamination.find(train, loaded)
            counts["contaminated"] = len(contamination.matched_ids(reports))
    store.write_atomic(out / "conflicts.jsonl", "".join(_conflict(p) for p in prompts if p.conflicting))
    store.write_json(out / "contamination.json", {"schema_version": 1, "benchmarks": reports})
    asked, rows = [(p.problem, p.gold, p.problem_id) for p in train], sum(p.copies for p in prompts)
    record = DataRecord(
        source=SourceInfo(name=given.name, revision=given.revision, sha256=given.sha256, rows=rows),
        language=o.language,
        exclude_contaminated=o.exclude_contaminated,
        counts=counts,
        contamination={name: b["contaminated"] for name, b in reports.items()},
        train=_file(out / "train.parquet", asked, DATA_SOURCE, "train"),
        validation=_file(out / "val.parquet", validated[1], validated[0], "val"),
    )
    store.write_json(out / RECORD, record)
    return record


def _validation(asked: str, loaded: Mapping[str, benchmarks.Benchmark]) -> Asked:
    """The benchmark of `NAME` or `NAME:N`, and the problems to validate with: those whose gold a box can equal."""
    name, _, count = asked.partition(":")
    golds = [(p, plain_gold(p.answer)) for p in loaded[name].problems] if name in loaded else []
    problems = [(p.problem, gold, p.id) for p, gold in golds if gold is not None]
    n = int(count) if count.isdecimal() else 0 if count else len(problems)
    if not 1 <= n <= len(problems):
        expected = f"{' | '.join(loaded)}, or one of them and :N with 1 to {len(problems) or 'all'} problems"
        raise BadInput("no such validation", found=asked, expected=expected, next_step="--validation math500:32")
    return name, [problems[i * len(problems) // n] for i in range(n)]


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


def _show(record: DataRecord, loaded: Mapping[str, benchmarks.Benchmark], validation: str) -> None:
    counts = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in record.counts.items())
    print(f"{record.source.rows} rows, {record.train.prompts} training prompts ({counts})")
    fate = "left out" if record.exclude_contaminated else "kept; --exclude-contaminated leaves them out"
    filters = ", ".join(
        f"{loaded[name].spec.title} {n} of {len(loaded[name].problems)}" for name, n in record.contamination.items()
    )
    print(f"benchmark problems among the prompts: {filters} ({record.counts['contaminated']} prompts, {fate})")
    problems = loaded[validation].problems
    lacking = sum(plain_gold(p.answer) is None for p in problems)
    less = f"; {lacking} of {len(problems)} are left out, whose answer no box can equal" if lacking else ""
    print(f"validation: {record.validation.prompts} problems of {validation}{less}")
    for b in (b for b in loaded.values() if b.text_variants):
        print(f"note: {b.source}: {len(b.text_variants)} problem texts differ from the registered copy of {b.name}")
