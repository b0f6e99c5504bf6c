"""`stapo-eval benchmarks`: list, check, fetch and register benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stapo_eval.benchmark_files import add as register
from stapo_eval.benchmark_files import parse_columns, write_copy
from stapo_eval.show import print_table
from stapo_results.benchmarks import Spec, find_data_dir, load, registry
from stapo_results.benchmarks.spec import shown
from stapo_results.errors import BadInput, meant


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
    tolerance: float = -1.0,
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
        tolerance: With --add: the largest absolute error that counts as right, -1 for none; a row's own field goes
            first.
    """
    if write and add:
        raise BadInput("--write and --add are two commands", next_step="give one of them")
    of_source = {"columns": parse_columns(columns), "revision": revision, "split": split}
    folder = find_data_dir(data_dir)
    if write:
        known = registry(Path(data_dir or write))
        chosen = {k: spec for k, spec in _chosen(names, known).items() if spec.hub or names}
        return _write(chosen, Path(write), source=source, **of_source)
    if not add:
        return _list(_chosen(names, registry(folder)), folder)
    if folder is None or not names or "," in names:
        raise BadInput(
            "--add needs --data-dir DIR and one name as --names NAME",
            next_step=f"stapo-eval benchmarks --add {add} --data-dir DIR --names NAME",
        )
    path, spec = register(
        names,
        add,
        folder,
        columns=of_source["columns"],
        revision=revision or "main",
        split=split or "test",
        samples=n or None,
        unordered=unordered,
        tolerance=None if tolerance < 0 else tolerance,
        license=license,
    )
    print(f"{path}: {spec.rows} rows, N {spec.samples}, answers {_answers(spec)}")
    print(f"next: stapo-eval run --benchmarks {names} --data-dir {folder} --model ...")
    return 0


def _chosen(names: str, specs: dict[str, Spec]) -> dict[str, Spec]:
    given = [n.strip() for n in names.split(",") if n.strip()]
    known = [meant("benchmark", n, specs, "stapo-eval benchmarks lists them") for n in given]
    return {n: specs[n] for n in known or specs}


def _write(chosen: dict[str, Spec], folder: Path, **of_source: Any) -> int:
    """Write copies into a folder. Raises BadInput, once all were tried, for those that are not the benchmark."""
    if (of_source["source"] or of_source["columns"]) and len(chosen) != 1:
        raise BadInput("--source and --columns are for one benchmark", next_step="name it with --names")
    refused = []
    for name, spec in chosen.items():
        try:
            path, benchmark, written = write_copy(name, spec, folder, **of_source)
        except BadInput as e:
            refused.append(name)
            print(f"{name}: REFUSED\n{e}")
            continue
        print(f"{path}: {benchmark.identity.rows} rows, {'from ' + benchmark.source if written else 'was there'}")
        if benchmark.identity.text_variants:
            print(_variants(name, benchmark.identity.text_variants))
    if refused:
        raise BadInput(
            f"{len(refused)} of {len(chosen)} benchmarks were not written",
            found=", ".join(refused),
            next_step="see above; repeat the command for these",
        )
    return 0


def _list(specs: dict[str, Spec], folder: Path | None) -> int:
    rows, notes, bad = [], [], 0
    for name, spec in specs.items():
        state = "not checked"
        if folder is not None and not (folder / (spec.file or f"{name}.jsonl")).exists():
            state = "no file"
        elif folder is not None:
            try:
                variants = load(name, folder).identity.text_variants
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
