"""The responses of a run graded again by the evaluation wing's own command: other presets, shorter limits."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from stapo_repro.read import Loaded
from stapo_repro.run.request import console_script
from stapo_results.benchmarks import Benchmark, find_data_dir, load
from stapo_results.errors import BadInput, RunFailed, short_hashes
from stapo_results.schema import CellRecord, Run, Sample
from stapo_results.store import read, read_json

FILE = "responses.jsonl"
NO_RESPONSES = "the folder holds no responses (samples.jsonl)"


@dataclass(frozen=True)
class Means:
    """What a run folder may not name: folders of the benchmarks and of the model's tokenizer, and the environment whose
    stapo-eval grades. None is the run's own, and this environment."""

    data_dir: Path | None = None
    tokenizer: Path | None = None
    eval_env: Path | None = None


@dataclass
class Responses:
    """One cell's responses in a file for `stapo-eval grade`, in a folder that goes with them.

    Attributes:
        why: why they cannot be graded again; "" where they can.
        lengths: (problem id, sample index) -> tokens, in the order of the file.
        tokenizer: folder with tokenizer.json; None where it is not at hand.
    """

    record: CellRecord
    eval_env: Path | None
    folder: Path
    why: str = ""
    lengths: dict[tuple[str, int], int] = field(default_factory=dict)
    tokenizer: Path | None = None
    _graded: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Samples with a verdict, but without their response."""
        verdicts = sum(len(p.verdicts) - p.verdicts.count("-") for p in self.record.problems)
        return verdicts - len(self.lengths)

    def graded(self, preset: str, limit: int = 0) -> list[list[float]]:
        """(Q, N) by the rule alone; NaN where a sample or its response is missing.

        Args:
            limit: grade only the first so many tokens; a response that is no longer is graded whole, and by the record
                where `preset` graded it.

        Raises:
            RunFailed: the command failed, with its last words.
        """
        if limit and preset == self.record.grader.split(",")[0]:
            rule = {
                (p.problem_id, i): x == "1" for p in self.record.problems for i, x in enumerate(p.rule or p.verdicts)
            }
            verdicts = {k: rule[k] for k in self.lengths}
        else:
            verdicts = dict(
                zip(self.lengths, (x["rule"] for x in self._grade(self.folder / FILE, preset)), strict=True)
            )
        longer = [k for k, tokens in self.lengths.items() if tokens > limit]
        if limit and longer:
            some = self.folder / "longer.jsonl"
            with (self.folder / FILE).open("rb") as lines, some.open("wb") as out:
                out.writelines(x for x, tokens in zip(lines, self.lengths.values(), strict=True) if tokens > limit)
            cut = self._grade(some, preset, "--max-tokens", str(limit), "--tokenizer", str(self.tokenizer))
            verdicts |= dict(zip(longer, (x["rule"] for x in cut), strict=True))
        return [[float(verdicts.get((p.problem_id, i), math.nan)) for i in range(self.record.n)]
                for p in self.record.problems]  # fmt: skip

    def _grade(self, source: Path, preset: str, *more: str) -> list[dict[str, Any]]:
        key = " ".join((preset, *more))
        if key not in self._graded:
            self._graded[key] = grade(source, preset, *more, eval_env=self.eval_env)
        return self._graded[key]


def grade(source: Path, preset: str, *more: str, eval_env: Path | None = None) -> list[dict[str, Any]]:
    """What `stapo-eval grade` writes of each line of `source`, in its order.

    Raises:
        RunFailed: the command failed, with its last words.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "verdicts.jsonl"
        files = "--input", str(source), "--output", str(target)
        command = [console_script("stapo-eval", eval_env), "grade", *files, "--preset", preset, *more]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RunFailed("the responses could not be graded again",
                            found=" ".join(done.stderr.split())[-600:], expected="verdicts of stapo-eval grade",
                            next_step="mend what it names, then the same command")  # fmt: skip
        with target.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


@contextmanager
def responses(cell: Loaded, means: Means) -> Iterator[Responses]:
    """The responses of one cell, read once.

    Raises:
        BadInput: the benchmark at hand is another copy than the run's.
    """
    run = cell.file.parent.parent
    with tempfile.TemporaryDirectory() as scratch:
        found = Responses(cell.record, means.eval_env, Path(scratch))
        if not (run / "samples.jsonl").exists() or not (run / "run.json").exists():
            found.why = NO_RESPONSES if (run / "run.json").exists() else "the folder holds no run.json"
        else:
            config = read_json(run / "run.json", Run).config
            found.tokenizer = means.tokenizer or _tokenizer(config, cell.record)
            try:
                benchmark = _benchmark(cell.record, str(means.data_dir or ""), str(config.get("data_dir") or ""))
            except BadInput as e:
                found.why = f"the benchmark is not at hand ({e.what}): --data-dir DIR"
            else:
                _check_copy(benchmark, cell.record)
                _write(found, benchmark, run / "samples.jsonl")
        yield found


def _benchmark(r: CellRecord, asked: str, of_run: str) -> Benchmark:
    return load(
        r.cell.benchmark, find_data_dir(asked or (of_run if Path(of_run).is_dir() else "")), accept_variant=True
    )


def _check_copy(benchmark: Benchmark, r: CellRecord) -> None:
    now, then = benchmark.content, r.revisions.get(f"data:{r.cell.benchmark}")
    if now != then:
        raise BadInput(f"{r.cell.benchmark} is not the copy that was evaluated", found=short_hashes(now),
                       expected=short_hashes(then or "not recorded"),
                       next_step="--data-dir with the files of the run")  # fmt: skip


def _write(found: Responses, benchmark: Benchmark, samples: Path) -> None:
    """One line a response of this cell, but for those that the engine failed on."""
    golds = {}
    for p in benchmark.problems:
        more = {"unit": p.unit or None, "tolerance": p.tolerance, "unordered": benchmark.spec.unordered or None}
        golds[p.id] = {"answer": p.answer, **{k: v for k, v in more.items() if v is not None}}
    with (found.folder / FILE).open("w", encoding="utf-8") as out:
        for s in read(samples, Sample):
            key = s.problem_id, s.sample_index
            if s.cell == found.record.cell.id and s.finish_reason != "error" and key not in found.lengths:
                out.write(json.dumps({"id": len(found.lengths), **golds[s.problem_id], "response": s.response}) + "\n")
                found.lengths[key] = s.response_tokens


def _tokenizer(config: dict, r: CellRecord) -> Path | None:
    """Of a folder, or of a hub's model in the cache at the commit that was evaluated."""
    model, commit = str(config.get("model") or ""), r.revisions.get("model", "").rpartition("weights ")[0].strip()
    if (Path(model) / "tokenizer.json").is_file():
        return Path(model)
    try:
        file = try_to_load_from_cache(model, "tokenizer.json", revision=commit or config.get("revision") or None)
    except ValueError:  # a path is no hub id
        return None
    return Path(file).parent if isinstance(file, str) else None
