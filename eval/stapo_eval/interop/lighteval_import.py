"""A run that lighteval generated and scored by itself, as a run folder of ours: to be compared problem by problem.

    python -m stapo_eval.interop.lighteval_import --output-dir OUT --model MODEL --data-dir BENCHMARKS --out RUN

OUT is lighteval's `--output-dir`, with `--save-details`, of the suite's tasks under `lighteval_main accelerate`,
without continuous batching. lighteval keeps one number a problem, so its metric is asked again about each response, and
has to give the number that was kept. What would make the run another measurement than ours is refused: a prompt that is
not the suite's token by token, a decoding that the record cannot name, a response that was cut off before its limit.

Code, packages and hardware in run.json are those of the import: make it where lighteval ran. lighteval draws without a
seed, which is written as -1. It keeps responses by a model's path: other weights in the same folder get the old ones.
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
_GRADER = f"{NAME}, latex2sympy2_extended {version('latex2sympy2_extended')}"
_ENGINE = f"{NAME}, transformers {version('transformers')}"
_AGAIN = "run lighteval_main again: docs/evaluation.md has the command"
# what lighteval has to have been told, or the model's generation_config.json to say; transformers' own top_k is 50
_DECODING = {"do_sample": True, "top_k": 0, "min_p": None, "repetition_penalty": None, "max_new_tokens": None}
Rows = dict[str, list[dict[str, Any]]]  # benchmark -> rows of lighteval's details


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
    """Run folder to write; it must not exist."""

    def __call__(self) -> int:
        results = sorted(Path(self.output_dir).glob("results/**/results_*.json"))
        tables = sorted(Path(self.output_dir).glob("details/**/details_stapo_*.parquet"))
        _same("runs of lighteval in --output-dir", len(results), 1)
        if Path(self.out).exists():
            raise BadInput("--out exists", found=self.out, expected="a new folder", next_step="give another --out")
        rows = {t.name.removeprefix("details_stapo_").split("|")[0]: pq.read_table(t).to_pylist() for t in tables}
        _same("details of the suite's tasks", "some" if rows else "none", "some")
        plan = self._plan(json.loads(results[0].read_text())["config_general"], rows)
        samples, verdicts = zip(*_lines(plan, rows), strict=True)
        for name, lines in (("samples", samples), ("verdicts", verdicts)):
            store.write_atomic(plan.out / f"{name}.jsonl", "".join(f"{x.model_dump_json()}\n" for x in lines))
        for where in plan.cells():
            mine = [x for x in zip(samples, verdicts, strict=True) if x[0].cell == where.cell.id]
            record = cell_record(plan, plan.run, where, [s for s, _ in mine], [v for _, v in mine])
            named = record.model_copy(update={"grader": _GRADER})
            store.write_json(plan.out / "cells" / f"{where.cell.slug}.json", named)
        store.write_json(plan.out / "run.json", plan.run)
        print(f"{sum(v.correct for v in verdicts)} of {len(verdicts)} correct by {NAME}: {plan.out}")
        return 0

    def _plan(self, told: dict[str, Any], rows: Rows) -> EvaluationPlan:
        """The evaluation that this was: what lighteval was told, in our words."""
        model, folder = told["model_config"], Path(self.model)
        own = folder / "generation_config.json"
        said = json.loads(own.read_text()) if own.exists() else {}
        said |= {k: v for k, v in model["generation_parameters"].items() if v is not None}
        _same("the model", str(Path(model["model_name"]).resolve()), str(folder.resolve()), "name that one as --model")
        _same("continuous_batching", model.get("continuous_batching"), False)
        for key, value in _DECODING.items():
            _same(key, said.get(key), value)
        decoding = said.get("temperature"), said.get("top_p")
        given = {"temperature": decoding[0], "top_p": decoding[1], "dtype": model.get("dtype")}
        _same("temperature, top_p and dtype, left out", [k for k, v in given.items() if v is None], [])
        limits = {r["doc"]["generation_size"] for task in rows.values() for r in task}
        _same("lengths of responses", len(limits), 1)
        config = json.loads((folder / "config.json").read_text())
        context = model.get("max_length") or config.get("max_position_embeddings", 0)
        longest = max(len(r["model_response"]["input_tokens"]) for task in rows.values() for r in task)
        limit = limits.pop()
        _same("room for the longest prompt and response", min(context, longest + limit), longest + limit)
        plan = make_plan(
            RunOptions(
                model=self.model,
                benchmarks=",".join(sorted(rows)),
                settings=next((k for k, v in SETTINGS.items() if v == decoding), "t{:g}-p{:g}".format(*decoding)),
                data_dir=self.data_dir,
                max_tokens=limit,
                eval_seed=-1,
                dtype=model["dtype"],
                out=self.out,
            )
        )
        config = plan.run.config | {"engine": NAME, "preset": NAME}
        done = {"config": config, "run_id": identity(config, plan.run.revisions), "status": "done",
                "wall_seconds": float(told["total_evaluation_time_secondes"])}  # fmt: skip
        return replace(plan, run=plan.run.model_copy(update=done), options=replace(plan.options, preset=NAME))


def _same(what: str, found: Any, expected: Any, next_step: str = _AGAIN) -> None:
    if found != expected:
        raise BadInput(
            f"lighteval's run is no evaluation of ours: {what}", found=found, expected=expected, next_step=next_step
        )


def _lines(plan: EvaluationPlan, rows: Rows) -> Iterator[tuple[Sample, Verdict]]:
    """Each response with its verdict, in the order of the plan. Raises BadInput for what is not as we ask or as the
    module says."""
    tokenizer = load_tokenizer(find_model(plan.options.model))
    metric = Metrics.avg_at_n_math(sample_params={"n": 1})
    graded_by: dict[str, Any] = {"preset": NAME, "grader_version": _GRADER, "judge": "not_asked", "judge_model": "",
                 "judge_revision": ""}  # fmt: skip
    for cell, benchmark, decoding in plan.cells():
        of = {r["doc"]["specific"]["problem_id"]: r for r in rows[benchmark.name]}
        for problem in plan.problems(benchmark):
            _same(f"{problem.id} was asked", "yes" if problem.id in of else "no", "yes")
            doc, given = Doc(**of[problem.id]["doc"]), of[problem.id]["model_response"]
            ours, n = encode_chat(tokenizer, prompt(problem.problem)), plan.samples_of(benchmark)
            # what stands before it may be padding alone
            _same(f"tokens of the prompt of {problem.id}", given["input_tokens"][given["padded_tokens_count"] :], ours)
            _same(f"gold answer of {problem.id}", doc.choices, [gold_text(problem.answer)])
            _same(f"samples of {problem.id}", len(given["text"]), n)
            right = 0
            for i, (text, ids) in enumerate(zip(given["text"], given["output_tokens"], strict=True)):
                ended = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else 0
                _same(f"tokens of {problem.id}, sample {i}, which did not end", ended or len(ids),
                      ended or decoding.max_tokens)  # fmt: skip
                score = metric.compute_sample(doc=doc, model_response=ModelResponse(text=[text]))
                correct, found = bool(score[metric.metric_name] == 1), doc.specific["extracted_predictions"]
                right += correct
                there = {"cell": cell.id, "problem_id": problem.id, "sample_index": i}
                sample = Sample(
                    **there, seed=plan.options.eval_seed, response=text, finish_reason="stop" if ended else "length",
                    prompt_tokens=len(ours), response_tokens=ended or len(ids), logprob_sum=None, engine=_ENGINE,
                )  # fmt: skip
                reason = "match" if correct else "mismatch" if found else "no_answer"
                verdict = Verdict(
                    **there, extracted=found[0] if found else None, rule=correct, reason=reason, correct=correct,
                    **graded_by,
                )  # fmt: skip
                yield sample, verdict
            _same(f"right answers of {problem.id} by its metric, now and then", right / n,
                  of[problem.id]["metric"][f"avg@n:n={n}"], "make the import where lighteval ran")  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run_main(tyro.cli(LightevalImport)))
