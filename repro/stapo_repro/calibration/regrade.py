"""The responses of a run graded again by the evaluation wing's own command: other presets, shorter limits."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from stapo_repro.driver.request import console_script
from stapo_repro.records.reading import Loaded
from stapo_results.benchmarks import find_data_dir, load
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import CellRecord, Run, Sample
from stapo_results.store import read, read_json

Key = tuple[str, str, int]  # cell id, problem id, sample index
_MORE = ("unit", "tolerance")


class Responses:
    """The responses of cells whose run folders still hold samples.jsonl.

    Args:
        data_dir: folder of the benchmarks; None is that of each run, then $STAPO_DATA_DIR, then the hub.
        tokenizer: folder of the model; None is that of each run.
        eval_env: the environment whose stapo-eval grades; None is this one.
    """

    def __init__(
        self,
        cells: Sequence[Loaded],
        data_dir: Path | None = None,
        tokenizer: Path | None = None,
        eval_env: Path | None = None,
    ):
        self.data_dir, self.tokenizer, self.eval_env = data_dir, tokenizer, eval_env
        self.folders: dict[Path, list[CellRecord]] = {}
        for c in cells:
            folder = c.file.parent.parent
            if (folder / "samples.jsonl").exists():
                self.folders.setdefault(folder, []).append(c.record)

    def has(self, record: CellRecord) -> bool:
        return any(r is record for records in self.folders.values() for r in records)

    def tokenizer_of(self, record: CellRecord) -> Path | None:
        """Folder with the tokenizer of the model that made this cell; None where it is not at hand."""
        folder = next(f for f, records in self.folders.items() if any(r is record for r in records))
        known = self.tokenizer or Path(str(self._run(folder).config.get("model") or ""))
        return known if (known / "tokenizer.json").is_file() else None

    @cached_property
    def _kept(self) -> dict[Key, Sample]:
        """Every response of these cells by its key; what the engine failed on is left out."""
        return {
            (s.cell, s.problem_id, s.sample_index): s
            for folder, records in self.folders.items()
            for ids in [{r.cell.id for r in records}]
            for s in read(folder / "samples.jsonl", Sample)
            if s.cell in ids and s.finish_reason != "error"
        }

    def _run(self, folder: Path) -> Run:
        return read_json(folder / "run.json", Run)

    @cached_property
    def _golds(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(cell id, problem id) -> the fields of a line for `stapo-eval grade`, without id and response."""
        found = {}
        for folder, records in self.folders.items():
            given = str(self._run(folder).config.get("data_dir") or "")
            where = find_data_dir(str(self.data_dir or "") or (given if Path(given).is_dir() else ""))
            for r in records:
                benchmark = load(r.cell.benchmark, where, accept_variant=True)
                if benchmark.identity.golds_sha256 != r.benchmark_sha256:
                    raise BadInput(f"{r.cell.benchmark}: another copy than the run's",
                                   found=f"answers {benchmark.identity.golds_sha256[:12]}",
                                   expected=r.benchmark_sha256[:12],
                                   next_step="--data-dir DIR names the folder of the run's benchmarks")  # fmt: skip
                for p in benchmark.problems:
                    line = {k: v for k in _MORE if (v := getattr(p, k)) not in ("", None)}
                    line |= {"unordered": True} if benchmark.spec.unordered else {}
                    found[r.cell.id, p.id] = {"answer": p.answer, **line}
        return found

    def graded(self, record: CellRecord, preset: str, limit: int = 0) -> list[list[float]]:
        """(Q, N) by the rule alone; NaN where a sample is missing.

        Args:
            limit: grade only the first so many tokens; responses that are no longer keep the verdict of their record.

        Raises:
            RunFailed: the command failed, with its last words.
        """
        ids, keys = [p.problem_id for p in record.problems], range(record.n)
        mine = {(q, i): self._kept.get((record.cell.id, q, i)) for q in ids for i in keys}
        asked = {k: s for k, s in mine.items() if s is not None and (not limit or s.response_tokens > limit)}
        lines = [
            json.dumps({"id": n, **self._golds[record.cell.id, q], "response": s.response})
            for n, ((q, _), s) in enumerate(asked.items())
        ]
        more = ("--max-tokens", str(limit), "--tokenizer", str(self.tokenizer_of(record))) if limit else ()
        verdicts = dict(zip(asked, self._grade(lines, preset, more), strict=True))
        return [[self._score(verdicts, mine, p.problem_id, i, p.rule or p.verdicts) for i in keys]
                for p in record.problems]  # fmt: skip

    @staticmethod
    def _score(
        verdicts: Mapping[tuple[str, int], bool], mine: Mapping[tuple[str, int], Sample | None], q: str, i: int,
        was: str,
    ) -> float:  # fmt: skip
        if mine[q, i] is None or was[i] == "-":
            return math.nan
        return float(verdicts[q, i]) if (q, i) in verdicts else float(was[i])

    def _grade(self, lines: Sequence[str], preset: str, more: Sequence[str]) -> list[bool]:
        if not lines:
            return []
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "responses.jsonl", Path(folder) / "verdicts.jsonl"
            source.write_text("\n".join(lines) + "\n", encoding="utf-8")
            files = "--input", str(source), "--output", str(target)
            command = [console_script("stapo-eval", self.eval_env), "grade", *files, "--preset", preset, *more]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise RunFailed("the responses could not be graded again",
                                found=" ".join(done.stderr.split())[-600:], expected="verdicts of stapo-eval grade",
                                next_step="stapo-eval grade --help")  # fmt: skip
            return [json.loads(line)["rule"] for line in target.read_text(encoding="utf-8").splitlines()]
