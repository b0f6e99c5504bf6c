"""A run that lighteval generated and scored by itself, as a run folder of ours: to be compared problem by problem.

    python -m stapo_eval.interop.lighteval_import --output-dir OUT --model MODEL --data-dir BENCHMARKS --out RUN

OUT is lighteval's `--output-dir`, with `--save-details`, of the suite's tasks (`lighteval_main`). lighteval keeps one
number a problem, so its metric is asked again about each response, and has to give the number that was kept. The
prompts have to be the suite's, token by token.
"""

# pyright: reportMissingImports=false
# lighteval is in an environment of its own

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import tyro
from lighteval.metrics.metrics import Metrics
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

from stapo_eval.decoding import encode_chat, prompt
from stapo_eval.engines.base import load_tokenizer
from stapo_eval.grading.rules import grader_version
from stapo_eval.interop.lighteval_log import gold_text
from stapo_eval.models import find_model
from stapo_eval.options import RunOptions
from stapo_eval.plan import EvaluationPlan, identity, make_plan
from stapo_eval.scores import cell_record
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import SETTINGS, Sample, Verdict
from stapo_results.terminal import run_main

NAME = f"lighteval {version('lighteval')}"


@dataclass(frozen=True)
class LightevalImport:
    """Make a run folder of what lighteval generated with the suite's tasks."""

    output_dir: str
    """lighteval's --output-dir, with the results and details of one run."""
    model: str
    """Folder of the model that lighteval was given."""
    data_dir: str
    """Directory with the benchmarks' JSONL files."""
    out: str
    """Run folder to write."""

    def __call__(self) -> int:
        results = sorted(Path(self.output_dir).glob("results/**/results_*.json"))
        tables = sorted(Path(self.output_dir).glob("details/**/details_stapo_*.parquet"))
        if len(results) != 1 or not tables:
            raise BadInput(
                f"{self.output_dir} does not hold one run of lighteval",
                found=f"{len(results)} results and {len(tables)} details of the suite's tasks",
                expected="one results_*.json, and a details_stapo_*.parquet for each task",
                next_step="run lighteval_main with --save-details and an --output-dir of its own",
            )
        rows = {t.name.removeprefix("details_stapo_").split("|")[0]: pq.read_table(t).to_pylist() for t in tables}
        plan = self._plan(json.loads(results[0].read_text())["config_general"], rows)
        samples, verdicts = zip(*_lines(plan, rows), strict=True)
        for name, lines in (("samples", samples), ("verdicts", verdicts)):
            text = "".join(f"{x.model_dump_json()}\n" for x in lines)
            store.write_atomic(plan.out / f"{name}.jsonl", text)
        for where in plan.cells():
            mine = [x for x in zip(samples, verdicts, strict=True) if x[0].cell == where.cell.id]
            record = cell_record(plan, plan.run, where, [s for s, _ in mine], [v for _, v in mine])
            store.write_json(plan.out / "cells" / f"{where.cell.slug}.json", record)
        store.write_json(plan.out / "run.json", plan.run)
        print(f"{sum(v.correct for v in verdicts)} of {len(verdicts)} correct by {NAME}: {plan.out}")
        return 0

    def _plan(self, told: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> EvaluationPlan:
        """The evaluation that this was: what lighteval was told, in our words."""
        model = told["model_config"]
        asked = model["generation_parameters"]
        decoding = asked["temperature"], asked["top_p"]
        named = next((k for k, v in SETTINGS.items() if v == decoding), "t{:g}-p{:g}".format(*decoding))
        limits = {(r["doc"]["num_samples"], r["doc"]["generation_size"]) for task in rows.values() for r in task}
        if len(limits) != 1 or asked["max_new_tokens"]:
            raise BadInput(
                "the tasks have no length or number of samples in common",
                found=f"(samples, tokens) {sorted(limits)}, max_new_tokens {asked['max_new_tokens']}",
                expected="one of each, and no max_new_tokens, which lighteval applies to the prompts",
                next_step="run lighteval_main again, with STAPO_MAX_TOKENS for the length",
            )
        n, max_tokens = limits.pop()
        plan = make_plan(
            RunOptions(
                model=self.model,
                benchmarks=",".join(sorted(rows)),
                settings=named,
                data_dir=self.data_dir,
                n=n,
                max_tokens=max_tokens,
                eval_seed=asked["seed"] or 0,
                dtype=model["dtype"],
                out=self.out,
            )
        )
        config = plan.run.config | {"engine": NAME, "preset": NAME}
        known = {"config": config, "run_id": identity(config, plan.run.revisions), "status": "done",
                 "wall_seconds": float(told["total_evaluation_time_secondes"])}  # fmt: skip
        run = plan.run.model_copy(update=known)
        return replace(plan, run=run, options=replace(plan.options, preset=NAME))


def _lines(plan: EvaluationPlan, rows: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[Sample, Verdict]]:
    """Each response with its verdict, in the order of the plan.

    Raises:
        BadInput: a problem is missing, or was asked in other tokens.
    """
    tokenizer = load_tokenizer(find_model(plan.options.model))
    padding = {tokenizer.pad_token_id, tokenizer.eos_token_id}
    metric = Metrics.avg_at_n_math(sample_params={"n": 1})
    graded_by = {"preset": NAME, "grader_version": grader_version(), "judge": "not_asked", "judge_model": "",
                 "judge_revision": ""}  # fmt: skip
    for cell, benchmark, decoding in plan.cells():
        of = {r["doc"]["specific"]["problem_id"]: r for r in rows[benchmark.name]}
        for problem in plan.problems(benchmark):
            row, ours = of.get(problem.id), encode_chat(tokenizer, prompt(problem.problem))
            theirs = row["model_response"]["input_tokens"] if row else []
            same = theirs[-len(ours) :] == ours and set(theirs[: -len(ours)]) <= padding
            if row is None or not same or row["doc"]["choices"] != [gold_text(problem.answer)]:
                raise BadInput(
                    f"{problem.id}: lighteval was not asked what the suite asks",
                    found=f"{len(theirs)} tokens, gold {row['doc']['choices']}" if row else "it was not asked",
                    expected=f"{len(ours)} tokens behind padding, gold {gold_text(problem.answer)}",
                    next_step="run lighteval_main on the whole benchmark, without max_new_tokens and --max-samples",
                )
            doc, n = Doc(**row["doc"]), plan.samples_of(benchmark)
            right = []
            for i, (text, ids) in enumerate(
                zip(row["model_response"]["text"], row["model_response"]["output_tokens"], strict=True)
            ):
                there = {"cell": cell.id, "problem_id": problem.id, "sample_index": i}
                ended = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else 0
                right.append(bool(metric.compute_sample(doc=doc, model_response=ModelResponse(text=[text]))
                                  [metric.metric_name] == 1))  # fmt: skip
                sample = Sample(
                    **there, seed=plan.options.eval_seed, response=text, finish_reason="stop" if ended else "length",
                    prompt_tokens=len(ours), response_tokens=ended or min(len(ids), decoding.max_tokens),
                    logprob_sum=None, engine=f"{NAME}, transformers {version('transformers')}",
                )  # fmt: skip
                reason = "match" if right[-1] else "mismatch"
                verdict = Verdict(
                    **there, extracted=None, rule=right[-1], reason=reason, correct=right[-1], **graded_by
                )
                yield sample, verdict
            kept = row["metric"][f"avg@n:n={n}"]
            if len(right) != n or abs(sum(right) / n - kept) > 1e-9:
                raise BadInput(
                    f"{problem.id}: lighteval's metric says something else about its responses now",
                    found=f"{sum(right)} of {len(right)} right",
                    expected=f"{kept:g} of {n}",
                    next_step="use the environment in which it was run",
                )


if __name__ == "__main__":
    raise SystemExit(run_main(tyro.cli(LightevalImport)))
