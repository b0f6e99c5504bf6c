"""The registered benchmarks as lighteval tasks, and its metric on any responses. Needs lighteval 0.13.0.

    STAPO_DATA_DIR=BENCHMARKS python -m studies.harness accelerate MODEL_ARGS "stapo_aime24|0"
    python -m studies.harness grade --input IN.jsonl --output OUT.jsonl

The first is lighteval's command line with these tasks alone: it imports every task that it ships, and one of them
downloads a pickle when it is imported. Its transformers path cuts prompts to its own `max_new_tokens`, and leaves the
responses' length to the task ($STAPO_MAX_TOKENS, else 20,480). There it ends a batch of P problems with N samples when
the first P of the P x N responses have ended (`MultiTokenEOSCriteria`); here each ends by itself.
"""

# pyright: reportMissingImports=false
# lighteval is in an environment of its own (tox -e lighteval)

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from datasets import config as datasets_config
from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric
from lighteval.metrics.metrics import Metrics
from lighteval.metrics.metrics_sample import MajAtN
from lighteval.metrics.utils.extractive_match_utils import ExprExtractionConfig, LatexExtractionConfig
from lighteval.metrics.utils.metric_utils import Metric, SampleLevelMetric
from lighteval.models.model_output import ModelResponse
from lighteval.models.transformers import transformers_model
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.registry import Registry
from lighteval.tasks.requests import Doc, SamplingMethod
from transformers import StoppingCriteriaList

from stapo_eval.decoding import prompt
from stapo_results import store
from stapo_results.answers import last_boxed
from stapo_results.benchmarks import DATA_DIR_VARIABLE, Benchmark, find_data_dir, load, read_jsonl, registry
from stapo_results.errors import BadInput
from stapo_results.schema import MAX_TOKENS
from stapo_results.terminal import run_main


def gold_text(answer: str | tuple[str, ...]) -> str:
    """A gold answer as lighteval's extraction finds it whole; several are joined by commas."""
    return rf"\boxed{{{answer if isinstance(answer, str) else ', '.join(answer)}}}"


def doc(line: dict[str, Any], task_name: str) -> Doc:
    """One row as lighteval's problem: the evaluation's prompt, the gold answer in a box."""
    given = {"task_name": task_name, "original_query": line["problem"], "specific": {"problem_id": line["id"]}}
    return Doc(query=prompt(line["problem"]), choices=[line["gold"]], gold_index=0, **given)


def boxed_only(response: str) -> str:
    """A response reduced to its last box, so that equal answers count as one vote."""
    answer = last_boxed(response)
    return "" if answer is None else gold_text(answer)


def metrics(n: int) -> list[Metric]:
    """lighteval's avg@n and pass@k (k = n) for mathematics, and its maj@n over boxed answers."""
    targets = [ExprExtractionConfig(), LatexExtractionConfig()]
    match = MultilingualExtractiveMatchMetric(gold_extraction_target=targets, pred_extraction_target=targets)
    majority = SampleLevelMetric(
        metric_name="maj@n",
        sample_level_fn=MajAtN(normalize=boxed_only, sample_scoring_function=match),
        category=SamplingMethod.GENERATIVE,
        corpus_level_fn=np.mean,
        higher_is_better=True,
    )
    return [
        Metrics.avg_at_n_math(sample_params={"n": n}),
        Metrics.pass_at_k_math(sample_params={"k": n, "n": n}),
        majority(sample_params={"n": n}),
    ]


def lay_out(benchmark: Benchmark) -> Path:
    """The folder of a benchmark's Parquet copy in the hub's cache, from which lighteval loads it, named by its rows."""
    rows = [{"id": p.id, "problem": p.problem, "gold": gold_text(p.answer)} for p in benchmark.problems]
    content = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    folder = Path(datasets_config.HF_CACHE_HOME) / "stapo" / f"{benchmark.name}-{content}"
    if not (folder / "test.parquet").exists():
        with store.replacing(folder / "test.parquet") as whole:
            pq.write_table(pa.Table.from_pylist(rows), whole)
    return folder


def tasks() -> list[LightevalTaskConfig]:
    """A task for each registered benchmark that $STAPO_DATA_DIR holds, its copy checked against the registry.

    Raises:
        BadInput: without a directory, for one without a benchmark, or for a copy that is not the registered one.
    """
    folder = find_data_dir(None)
    here = {n: s for n, s in registry(folder).items() if folder and (folder / (s.file or f"{n}.jsonl")).exists()}
    if not here:
        raise BadInput(
            "there is no benchmark to make tasks of",
            found=f"{DATA_DIR_VARIABLE}={folder or ''}",
            next_step=f"stapo-eval benchmarks --write DIR, then {DATA_DIR_VARIABLE}=DIR",
        )
    given = os.environ.get("STAPO_MAX_TOKENS") or str(MAX_TOKENS)
    if not given.isdecimal() or not int(given):
        raise BadInput("STAPO_MAX_TOKENS is no length", found=given, expected="a whole number of tokens, from 1")
    how = {"prompt_function": doc, "hf_subset": "default", "hf_avail_splits": ["test"], "evaluation_splits": ["test"]}
    return [
        LightevalTaskConfig(
            name=f"stapo_{name}",
            hf_repo=str(lay_out(load(name, folder))),
            metrics=metrics(spec.samples),
            generation_size=int(given),
            **how,
        )
        for name, spec in here.items()
    ]


def grade(input: Path, output: Path) -> None:
    """Grade whole responses by lighteval's avg@n metric for mathematics; a hostile answer can hold it up for good.

    Args:
        input: JSONL with the fields id, answer (text or list of texts), response.
        output: JSONL with the fields id, grader (lighteval and its version), rule; one line per line of the input.
    """
    metric, lines = Metrics.avg_at_n_math(sample_params={"n": 1}), []
    for row in read_jsonl(input):
        answer, reply = row["answer"], ModelResponse(text=[row["response"]])
        gold = gold_text(tuple(map(str, answer)) if isinstance(answer, list) else str(answer))
        scores = metric.compute_sample(doc=Doc(query="", choices=[gold], gold_index=0), model_response=reply)
        rule = bool(scores[metric.metric_name] == 1)
        lines.append({"id": row["id"], "grader": f"lighteval {version('lighteval')}", "rule": rule})
    store.write_atomic(output, "".join(json.dumps(x) + "\n" for x in lines))
    print(f"{sum(x['rule'] for x in lines)} of {len(lines)} correct by lighteval's metric: {output}")


def main() -> None:
    """Grade, or lighteval's command line with the suite's tasks."""
    if sys.argv[1:2] == ["grade"]:
        return tyro.cli(grade, args=sys.argv[2:])
    Registry.load_all_task_configs = staticmethod(lambda **_: {t.name: t for t in tasks()})  # type: ignore[method-assign]
    transformers_model.stop_sequences_criteria = lambda *a, **k: StoppingCriteriaList()
    from lighteval.__main__ import app

    return app()


if __name__ == "__main__":
    raise SystemExit(run_main(main))
