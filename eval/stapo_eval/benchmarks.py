"""`stapo-eval benchmarks`: list, check, fetch and register benchmarks; copies are written into a data directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stapo_eval.options import listed
from stapo_eval.show import print_table
from stapo_results.benchmarks import (
    FIELDS,
    REGISTRY_FILE,
    Benchmark,
    Rows,
    Spec,
    check_name,
    checked,
    describe,
    find_data_dir,
    from_file,
    from_hub,
    is_file_name,
    load,
    own_entries,
    packaged,
    problems_of,
    registry,
    shown,
    write_registry,
)
from stapo_results.errors import BadInput, meant
from stapo_results.runs import check_folder
from stapo_results.store import write_atomic


def benchmarks(
    data_dir: str = "",
    names: str = "",
    write: str = "",
    add: str = "",
    source: str = "",
    columns: str = "",
    split: str = "",
    revision: str = "",
    n: int = 0,
    license: str = "",
    unordered: bool = False,
    tolerance: float | None = None,
) -> int:
    """List the benchmarks and check the copies of a data directory; fetch copies; register your own.

    Args:
        data_dir: Directory with JSONL files and a registry.yaml; if empty, $STAPO_DATA_DIR.
        names: Names joined by commas; if empty, all; with --add the new benchmark's name.
        write: Fetch the hub's copies and write them as JSONL into this directory, each once it is known to be right.
        add: Register this .jsonl or .parquet file, or this data set of the hub, as a benchmark of --data-dir.
        source: With --write and one name: a .jsonl or .parquet file, or another data set, instead of the registered
            hub copy.
        columns: Columns of the source, for example problem=question,answer=reward_model.ground_truth.
        split: Split of the hub's data set; if empty, the entry's, else test.
        revision: Commit or branch of the hub's data set; if empty, the entry's, else main.
        n: With --add: samples a problem; if 0, 32 up to 100 problems, else 4.
        license: With --add: the licence of the problems.
        unordered: With --add: answers with commas are lists in any order (JSON lists always are).
        tolerance: With --add: the largest absolute error that counts as right; a row's own tolerance takes precedence.
    """
    if write and add:
        raise BadInput("--write and --add are two commands", next_step="give one of them")
    fields = parse_columns(columns)
    if write:
        known = registry(find_data_dir(data_dir) if data_dir else Path(write))
        chosen = {k: spec for k, spec in _chosen(names, known).items() if spec.hub or names}
        _write(chosen, Path(write), source, fields, revision, split)
        return 0
    folder = Path(data_dir) if add and data_dir else find_data_dir(data_dir)
    if not add:
        return _list(_chosen(names, registry(folder)), folder)
    names = names.lower()
    if folder is None or not names or "," in names:
        raise BadInput(
            "--add needs --data-dir DIR and one name as --names NAME",
            next_step=f"stapo-eval benchmarks --add {add} --data-dir DIR --names NAME",
        )
    entry = {"samples": n or None, "unordered": unordered, "tolerance": tolerance, "license": license}
    spec = register(names, add, folder, fields, revision or "main", split or "test", **entry)
    print(f"{folder / spec.file}: {spec.rows} rows, N {spec.samples}, answers {_answers(spec)}")
    print(f"next: stapo-eval run --benchmarks {names} --data-dir {folder} --model ...")
    return 0


def _chosen(names: str, specs: dict[str, Spec]) -> dict[str, Spec]:
    known = [meant("benchmark", n, specs, "stapo-eval benchmarks lists them") for n in listed(names)]
    return {n: specs[n] for n in known or specs}


def _write(
    chosen: dict[str, Spec], folder: Path, source: str, columns: dict[str, str], revision: str, split: str
) -> None:
    """Write what a folder lacks. Raises BadInput, once all were tried, for copies that are not the benchmark."""
    if (source or columns) and len(chosen) != 1:
        raise BadInput("--source and --columns are for one benchmark", next_step="name it with --names")
    check_folder(folder, "--write")
    refused = []
    for name, spec in chosen.items():
        path = folder / (spec.file or f"{name}.jsonl")
        try:
            if path.exists():
                benchmark, how = load(name, folder), "was there"
            elif not (source or spec.hub):
                raise BadInput(f"the benchmark {name} has no hub copy", next_step="give --source FILE")
            else:
                known = {} if is_file_name(source) else spec.columns
                place = source or spec.hub, revision or spec.revision, split or spec.split
                benchmark = checked(name, spec, find_rows(*place, {**known, **columns}))
                write_atomic(path, to_jsonl(benchmark))
                how = f"from {benchmark.source}"
        except BadInput as e:
            refused.append(name)
            print(f"{name}: REFUSED\n{e}")
            continue
        print(f"{path}: {len(benchmark.problems)} rows, {how}")
        if benchmark.text_variants:
            print(_variants(name, benchmark.text_variants))
    if refused:
        raise BadInput(
            f"{len(refused)} of {len(chosen)} benchmarks were not written",
            found=", ".join(refused),
            next_step="see above; repeat the command for these",
        )


def _list(specs: dict[str, Spec], folder: Path | None) -> int:
    rows, notes, bad = [], [], 0
    for name, spec in specs.items():
        state = "not checked"
        if folder is not None and not (folder / (spec.file or f"{name}.jsonl")).exists():
            state = "no file"
        elif folder is not None:
            try:
                variants = load(name, folder).text_variants
                state = f"ok, {len(variants)} texts differ" if variants else "ok"
                notes += [_variants(name, variants)] if variants else []
            except BadInput as e:
                state, bad = "REFUSED", bad + 1
                notes.append(str(e))
        short = spec.revision[:8] if len(spec.revision) == 40 else spec.revision
        hub = f"{spec.hub}@{short} ({spec.split})" if spec.hub else "none"
        known = str(spec.rows), str(spec.samples), _answers(spec), spec.license or "not stated"
        rows.append((name, *known, hub, state))
    columns = ("benchmark", "rows", "N", "answers", "licence", "hub copy", "local copy")
    print_table("", columns, rows, text_columns=len(columns))
    for note in notes:
        print(note)
    print(f"local copies: {folder or 'none: without --data-dir a run loads and checks those of the hub'}")
    return 2 if bad else 0


def _answers(spec: Spec) -> str:
    parts = [spec.answer_type, "any order" if spec.unordered else ""]
    return ", ".join(filter(None, [*parts, "" if spec.tolerance is None else f"within {spec.tolerance:g}"]))


def _variants(name: str, ids: tuple[str, ...]) -> str:
    return f"{name}: {len(ids)} problem texts differ from the registered copy: {shown(ids)}"


def find_rows(source: str, revision: str, split: str, columns: Mapping[str, str]) -> Rows:
    """Rows of a .jsonl or .parquet file, else of a data set on the hub; `columns`: those that have not our names."""
    if is_file_name(source):
        return from_file(source, columns)
    hint = "give the path of a .jsonl or .parquet file, or check the id, --split and --revision"
    return from_hub(source, revision=revision, split=split, columns=columns, next_step=hint)


def to_jsonl(benchmark: Benchmark) -> str:
    """The benchmark as a data directory holds it: our fields, then source and licence."""
    known = {"source": benchmark.source, "license": benchmark.spec.license}
    rows = [p.model_dump(mode="json", exclude_defaults=True) | known for p in benchmark.problems]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def parse_columns(text: str) -> dict[str, str]:
    """`problem=question,answer=final_answer` as a mapping from our fields to columns.

    Raises:
        BadInput: for another form or a field that does not exist.
    """
    columns = {}
    for part in listed(text):
        field, _, column = (x.strip() for x in part.partition("="))
        if not column or field not in FIELDS:
            raise BadInput(
                "--columns does not name a field and its column",
                found=part,
                expected=f"FIELD=COLUMN joined by commas, with the fields {', '.join(FIELDS)}",
                next_step="for example --columns problem=question,answer=final_answer",
            )
        columns[field] = column
    return columns


def register(
    name: str, source: str, folder: Path, columns: Mapping[str, str], revision: str, split: str, **known: Any
) -> Spec:
    """Register a file or a data set of the hub as a benchmark of a data directory, under a new name.

    Writes `<name>.jsonl` (unless it is the source) and the entry in registry.yaml, into a folder that it makes.

    Args:
        columns: our fields to the rows' columns, where they are called otherwise.
        revision, split: of a data set.
        known: fields of the entry that are not read off the problems: samples, unordered, tolerance, license.

    Raises:
        BadInput: for a name that is taken by something else, or rows that are no benchmark.
    """
    check_name(name, "--names")
    entries, path = own_entries(folder), folder / f"{name}.jsonl"
    if name in packaged():
        raise BadInput(f"{name} is a benchmark of the paper", next_step="choose another name")
    rows, local = find_rows(source, revision, split, columns), is_file_name(source)
    hub = {} if local else {"hub": source, "revision": revision, "split": split, "columns": dict(columns)}
    spec = describe(problems_of(name, None, rows), title=name, file=path.name, **known, **hub)
    if name in entries and entries[name] != spec:
        raise BadInput(
            f"{folder / REGISTRY_FILE} has another benchmark {name}",
            found=f"{spec.rows} rows, golds {spec.golds_sha256[:16]}, N {spec.samples}",
            expected=f"{entries[name].rows} rows, golds {entries[name].golds_sha256[:16]}, N {entries[name].samples}",
            next_step="choose another name, or delete the entry",
        )
    text, exists = to_jsonl(checked(name, spec, rows)), path.exists()
    if local and exists and path.samefile(source):
        if columns:
            raise BadInput(f"{path} is the source itself", next_step="rename its columns, or keep it in another folder")
    elif exists and path.read_text(encoding="utf-8") != text:
        raise BadInput(f"{path} exists and is another file", next_step="choose another name, or delete it")
    else:
        check_folder(folder, "--data-dir")
        write_atomic(path, text)
    # read anew: a download takes minutes, and others register too
    write_registry(folder / REGISTRY_FILE, own_entries(folder) | {name: spec})
    return spec
