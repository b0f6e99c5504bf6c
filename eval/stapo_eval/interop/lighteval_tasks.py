"""The registered benchmarks as lighteval tasks: a custom-tasks module, with avg@N, pass@N and maj@N.

    STAPO_DATA_DIR=BENCHMARKS lighteval accelerate MODEL_ARGS "stapo_aime24|0" \
        --custom-tasks stapo_eval.interop.lighteval_tasks

There is a task for each benchmark that the directory holds, its copy checked against the registry. Responses have up to
$STAPO_MAX_TOKENS tokens, else 20,480: on its transformers path lighteval cuts the prompts to its own `max_new_tokens`,
and leaves the responses' length to the task (`_padded_greedy_until` of 0.13.0). lighteval loads a data set by a
folder's path, so each is laid out as Parquet in the hub's cache. Scores are lighteval's own metrics: its extraction and
comparison, no judge. Needs lighteval 0.13.0 (`tox -e lighteval`).
"""

# pyright: reportMissingImports=false
# lighteval is in an environment of its own

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from datasets import config as datasets_config
from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric
from lighteval.metrics.metrics import Metrics
from lighteval.metrics.metrics_sample import MajAtN
from lighteval.metrics.utils.extractive_match_utils import ExprExtractionConfig, LatexExtractionConfig
from lighteval.metrics.utils.metric_utils import Metric, SampleLevelMetric
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc, SamplingMethod

from stapo_eval.decoding import MAX_TOKENS, prompt
from stapo_eval.interop.lighteval_log import gold_text
from stapo_results.answers import last_boxed
from stapo_results.benchmarks import DATA_DIR_VARIABLE, Benchmark, find_data_dir, load, registry
from stapo_results.errors import BadInput
from stapo_results.store import replacing

_SUBSET, _SPLIT = "default", "test"


def doc(line: dict[str, Any], task_name: str) -> Doc:
    """One row as lighteval's problem: the evaluation's prompt, the gold answer in a box."""
    return Doc(
        query=prompt(line["problem"]),
        choices=[gold_text(line["gold"])],
        gold_index=0,
        task_name=task_name,
        original_query=line["problem"],
        specific={"problem_id": line["id"]},
    )


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
    """The folder of a benchmark's Parquet copy in the hub's cache, named by what it holds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"id": p.id, "problem": p.problem, "gold": p.answer if isinstance(p.answer, str) else ", ".join(p.answer)}
        for p in benchmark.problems
    ]
    content = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    folder = Path(datasets_config.HF_CACHE_HOME) / "stapo" / f"{benchmark.name}-{content}"
    file = folder / f"{_SPLIT}.parquet"
    if not file.exists():
        with replacing(file) as whole:
            pq.write_table(pa.Table.from_pylist(rows), whole)
    return folder


def tasks(data_dir: Path | None) -> list[LightevalTaskConfig]:
    """A task for each registered benchmark that the directory holds.

    Raises:
        BadInput: without a directory, for one without a benchmark, or for a copy that is not the registered one.
    """
    here = {n: s for n, s in registry(data_dir).items() if data_dir and (data_dir / (s.file or f"{n}.jsonl")).exists()}
    if not here:
        raise BadInput(
            "there is no benchmark to make tasks of",
            found=f"{DATA_DIR_VARIABLE}={data_dir or ''}",
            expected="a directory with the benchmarks' JSONL files",
            next_step=f"stapo-eval benchmarks --write DIR, then {DATA_DIR_VARIABLE}=DIR",
        )
    given = os.environ.get("STAPO_MAX_TOKENS") or str(MAX_TOKENS)
    if not given.isdecimal() or not (limit := int(given)):
        raise BadInput("STAPO_MAX_TOKENS is no length", found=given, expected="a whole number of tokens, from 1",
                       next_step="leave it out for 20,480")  # fmt: skip
    return [
        LightevalTaskConfig(
            name=f"stapo_{name}",
            prompt_function=doc,
            hf_repo=str(lay_out(load(name, data_dir))),
            hf_subset=_SUBSET,
            hf_avail_splits=[_SPLIT],
            evaluation_splits=[_SPLIT],
            metrics=metrics(spec.samples),
            generation_size=limit,
        )
        for name, spec in here.items()
    ]


TASKS_TABLE = tasks(find_data_dir(None))
