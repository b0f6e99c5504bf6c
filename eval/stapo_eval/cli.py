"""The console command `stapo-eval`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import tyro

from stapo_results import store
from stapo_results.benchmarks import find_data_dir, load, read_jsonl, registry
from stapo_results.console import run_main
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class RunCommand:
    """Sample, grade and judge: avg@N of one model over benchmarks and decoding settings.

    The same command again goes on where it was stopped, or returns at once if it had finished.
    """

    model: str
    """Folder with config.json and safetensors weights, or a hub id."""
    benchmarks: str = "all"
    """Names joined by commas; `all` is the paper's six."""
    settings: str = "both"
    """both, t1.0 (temperature 1.0, top-p 1.0) or t0.7 (0.7, 0.9)."""
    data_dir: str = ""
    """Directory with the benchmarks' JSONL files and a registry.yaml (default: $STAPO_DATA_DIR, else the hub)."""
    out: str = ""
    """Run folder (default: runs/eval/<model's labels>)."""
    engine: Literal["hf", "vllm"] = "hf"
    """hf: transformers, deterministic on a CPU. vllm: an environment of its own."""
    n: int = 0
    """Samples a problem (default: the benchmark's own N)."""
    limit: int = 0
    """Only the first so many problems of each benchmark; records say so."""
    max_tokens: int = 20_480
    """Longest response in tokens; the model's positions may allow less."""
    eval_seed: int = 0
    """Seed of this evaluation; every sample's own seed derives from it."""
    judge: str = "none"
    """none, or a verifier model (folder or hub id) that is asked where the rule says no."""
    judge_scope: Literal["rule-negatives"] = "rule-negatives"
    """Which samples the judge sees."""
    preset: Literal["ours"] = "ours"
    """Rule grader."""
    accept_variant: bool = False
    """Run a copy of a benchmark with other rows or golds; every record says so."""
    strict: bool = False
    """Refuse a copy whose problem texts differ."""
    revision: str = ""
    """The hub model's revision."""
    method: str = ""
    """Label of the method (default: the model's stapo.json, else external)."""
    size: str = ""
    """Label of the size (default: stapo.json, else the model's name)."""
    train_seed: int = -1
    """Label of the training seed (default: stapo.json, else 0)."""
    step: str = ""
    """Label of the training step, or base (default: stapo.json, else base)."""
    threads: int = 0
    """CPU threads of the engine (default: all cores; 1 for a tiny model). Part of what makes a run repeatable."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights' type (auto: float32 on a CPU, bfloat16 on a GPU)."""
    batch_rows: int = 0
    """Rows of a batch of the engine hf (default: 64 on a CPU, 512 on a GPU, fewer as memory demands)."""
    grade_seconds: float = 5.0
    """Wall time that grading one answer may take."""
    grade_memory_mib: int = 1024
    """Memory that grading one answer may take."""
    resume: bool = True
    """Go on with an unfinished run folder; --no-resume refuses one."""

    def __call__(self) -> int:
        from pathlib import Path

        from stapo_eval.run import RunOptions, run

        if not self.resume and self.out and (Path(self.out) / "run.json").exists():
            raise BadInput(f"{self.out} already holds a run", next_step="leave out --no-resume, or give another --out")
        run(RunOptions(**{f.name: getattr(self, f.name) for f in fields(RunOptions)}))
        return 0


@dataclass(frozen=True)
class GradeCommand:
    """Grade responses from a JSONL file by rule: one verdict a line, in the same order."""

    input: str
    """JSONL with the fields id, problem, answer (text or list of texts), response."""
    output: str
    """JSONL with the fields id, extracted, rule, reason, seconds."""
    preset: Literal["ours"] = "ours"
    """Rule grader."""
    unordered: bool = False
    """Golds that are one text with commas are lists whose order does not count (lists always are)."""
    seconds: float = 5.0
    """Wall time that one answer may take."""
    memory_mib: int = 1024
    """Memory that one answer may take."""
    workers: int = 0
    """Grading processes (default: one a core)."""

    def __call__(self) -> int:
        from stapo_eval.grading_pool import Limits, grade_responses
        from stapo_eval.rules import Options

        golds, responses = [], []
        rows = read_jsonl(self.input)
        for number, row in enumerate(rows, 1):
            answer, response = row.get("answer"), row.get("response")
            if "id" not in row or not isinstance(response, str) or not isinstance(answer, (str, int, float, list)):
                raise BadInput(
                    f"{self.input}:{number} lacks a field or has one of another type",
                    found=f"fields {', '.join(sorted(row))}",
                    expected="id, answer (text or list of texts), response (text)",
                    next_step="correct the line",
                )
            golds.append(tuple(map(str, answer)) if isinstance(answer, list) else str(answer))
            responses.append(response)
            if golds[-1] == ():
                raise BadInput(f"{self.input}:{number}: the list of answers is empty")
        began = time.perf_counter()
        options = [Options(unordered=self.unordered)] * len(rows)
        graded = grade_responses(golds, responses, options, Limits(self.seconds, self.memory_mib, self.workers))
        lines = [
            {"id": row["id"], "extracted": answer, "rule": o.rule, "reason": o.reason, "seconds": round(o.seconds, 6)}
            for row, (answer, o) in zip(rows, graded, strict=True)
        ]
        store.write_atomic(self.output, "".join(json.dumps(x, ensure_ascii=True) + "\n" for x in lines))
        correct = sum(x["rule"] for x in lines)
        print(f"{correct} of {len(lines)} correct by rule, {time.perf_counter() - began:.1f} s: {self.output}")
        return 0


@dataclass(frozen=True)
class BenchmarksCommand:
    """List the benchmarks, and check the copies of a data directory."""

    data_dir: str = ""
    """Directory with JSONL files (default: $STAPO_DATA_DIR)."""

    def __call__(self) -> int:
        data_dir = find_data_dir(self.data_dir)
        bad = 0
        for name, spec in registry(data_dir).items():
            where = spec.hub or spec.file
            state = ""
            if data_dir is not None:
                try:
                    b = load(name, data_dir)
                    state = f"ok, {len(b.identity.text_variants)} text variants"
                except BadInput as e:
                    absent = not (data_dir / (spec.file or f"{name}.jsonl")).exists()
                    bad += not absent
                    state = "no file here" if absent else f"REFUSED: {e.found}, expected {e.expected}"
            print(f"{name:<16}{spec.rows:>5} rows  N {spec.samples:<4}{spec.answer_type:<9}{where:<28}{state}".rstrip())
        return 2 if bad else 0


Command = (
    Annotated[RunCommand, tyro.conf.subcommand("run")]
    | Annotated[GradeCommand, tyro.conf.subcommand("grade")]
    | Annotated[BenchmarksCommand, tyro.conf.subcommand("benchmarks")]
)


def main(args: list[str] | None = None) -> int:
    """Entry point; returns the exit code (see `stapo_results.errors`)."""
    command = tyro.cli(
        Command,  # type: ignore[arg-type]
        args=args,
        prog="stapo-eval",
        description="Evaluate models: samples, rule, judge, records.",
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )
    return run_main(command)  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main())
