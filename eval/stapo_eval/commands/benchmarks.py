"""`stapo-eval benchmarks`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stapo_eval.benchmark_files import add, parse_columns, write_copy
from stapo_eval.show import make_console, print_table
from stapo_results.benchmarks import Spec, find_data_dir, load, registry
from stapo_results.benchmarks.spec import shown
from stapo_results.errors import BadInput, meant


@dataclass(frozen=True)
class BenchmarksCommand:
    """List the benchmarks and check the copies of a data directory; fetch copies; register your own."""

    data_dir: str = ""
    """Directory with JSONL files and a registry.yaml; if empty, $STAPO_DATA_DIR."""
    names: str = ""
    """Names joined by commas; if empty, all; with --add the new benchmark's name."""
    write: str = ""
    """Fetch the hub's copies and write them as JSONL into this directory, each once it is known to be right."""
    add: str = ""
    """Register this .jsonl or .parquet file, or this data set of the hub, as a benchmark of --data-dir."""
    source: str = ""
    """With --write and one name: a .jsonl or .parquet file, or another data set, instead of the registered hub copy."""
    columns: str = ""
    """Columns of the source, for example problem=question,answer=reward_model.ground_truth."""
    split: str = ""
    """Split of the hub's data set; if empty, the entry's, else test."""
    revision: str = ""
    """Commit or branch of the hub's data set; if empty, the entry's, else main."""
    n: int = 0
    """With --add: samples a problem; if 0, 32 up to 100 problems, else 4."""
    title: str = ""
    """With --add: the name in tables."""
    license: str = ""
    """With --add: the licence of the problems."""
    answer_type: Literal["", "integer", "math"] = ""
    """With --add: what answers are; if empty, integer where all are."""
    unordered: bool = False
    """With --add: answers with commas are lists in any order (JSON lists always are)."""
    tolerance: float = -1.0
    """With --add: the largest absolute error that counts as right, -1 for none; a row's own field goes first."""

    def __call__(self) -> int:
        if self.write and self.add:
            raise BadInput("--write and --add are two commands", next_step="give one of them")
        if self.add:
            return self._add()
        return self._write() if self.write else self._list()

    def _chosen(self, specs: dict[str, Spec]) -> dict[str, Spec]:
        given = [n.strip() for n in self.names.split(",") if n.strip()]
        names = [meant("benchmark", n, specs, "stapo-eval benchmarks lists them") for n in given]
        return {n: specs[n] for n in names} if names else specs

    def _add(self) -> int:
        folder = find_data_dir(self.data_dir)
        if folder is None or not self.names or "," in self.names:
            raise BadInput(
                "--add needs --data-dir DIR and one name as --names NAME",
                next_step=f"stapo-eval benchmarks --add {self.add} --data-dir DIR --names NAME",
            )
        path, spec = add(
            self.names,
            self.add,
            folder,
            columns=parse_columns(self.columns),
            revision=self.revision or "main",
            split=self.split or "test",
            title=self.title,
            samples=self.n or None,
            answer_type=self.answer_type,
            unordered=self.unordered,
            tolerance=None if self.tolerance < 0 else self.tolerance,
            license=self.license,
        )
        print(f"{path}: {spec.rows} rows, N {spec.samples}, answers {_answers(spec)}")
        print(f"next: stapo-eval run --benchmarks {self.names} --data-dir {folder} --model ...")
        return 0

    def _write(self) -> int:
        folder, given = Path(self.write), Path(self.data_dir) if self.data_dir else None
        chosen = {n: s for n, s in self._chosen(registry(given or folder)).items() if s.hub or self.names}
        if (self.source or self.columns) and len(chosen) != 1:
            raise BadInput("--source and --columns are for one benchmark", next_step="name it with --names")
        refused = []
        for name, spec in chosen.items():
            try:
                path, benchmark, written = write_copy(
                    name,
                    spec,
                    folder,
                    source=self.source,
                    columns=parse_columns(self.columns),
                    revision=self.revision,
                    split=self.split,
                )
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
                next_step="see above; the same command goes on with these",
            )
        return 0

    def _list(self) -> int:
        folder = find_data_dir(self.data_dir)
        rows, notes, bad = [], [], 0
        for name, spec in self._chosen(registry(folder)).items():
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
        print_table(make_console(), "", columns, rows, text_columns=len(columns))
        for note in notes:
            print(note)
        print(f"local copies: {folder or 'none: without --data-dir a run loads and checks those of the hub'}")
        return 2 if bad else 0


def _answers(spec: Spec) -> str:
    parts = [spec.answer_type, "any order" if spec.unordered else ""]
    return ", ".join(filter(None, [*parts, "" if spec.tolerance is None else f"within {spec.tolerance:g}"]))


def _variants(name: str, ids: tuple[str, ...]) -> str:
    return f"{name}: {len(ids)} problem texts differ from the registered copy: {shown(ids)}"
