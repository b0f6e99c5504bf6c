"""lighteval's metric on anybody's responses, in the form of `stapo-eval grade`: to compare verdicts and time.

    python -m stapo_eval.interop.lighteval_grade --input IN.jsonl --output OUT.jsonl

One line out per line in, same order: id, grader (its name and version), rule, seconds. The whole response is given to
the metric, as lighteval does; it has no worker processes, so a hostile answer can hold it up for good.
"""

# pyright: reportMissingImports=false
# lighteval is in an environment of its own

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from importlib.metadata import version

import tyro
from lighteval.metrics.metrics import Metrics
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

from stapo_eval.interop.lighteval_log import gold_text
from stapo_results import store
from stapo_results.benchmarks import read_jsonl
from stapo_results.terminal import run_main


@dataclass(frozen=True)
class LightevalGrade:
    """Grade responses from a JSONL file by lighteval's avg@n metric for mathematics."""

    input: str
    """JSONL with the fields id, answer (text or list of texts), response."""
    output: str
    """JSONL with the fields id, grader, rule, seconds."""

    def __call__(self) -> int:
        grader = f"lighteval {version('lighteval')}"
        metric = Metrics.avg_at_n_math(sample_params={"n": 1})
        lines, began = [], time.perf_counter()
        for row in read_jsonl(self.input):
            answer = row["answer"]
            gold = gold_text(tuple(map(str, answer)) if isinstance(answer, list) else str(answer))
            doc = Doc(query="", choices=[gold], gold_index=0)
            start = time.perf_counter()
            scores = metric.compute_sample(doc=doc, model_response=ModelResponse(text=[row["response"]]))
            seconds = round(time.perf_counter() - start, 6)
            rule = bool(scores[metric.metric_name] == 1)
            lines.append({"id": row["id"], "grader": grader, "rule": rule, "seconds": seconds})
        spent = time.perf_counter() - began
        store.write_atomic(self.output, "".join(json.dumps(x) + "\n" for x in lines))
        correct = sum(x["rule"] for x in lines)
        print(f"{correct} of {len(lines)} correct by lighteval's metric, {spent:.2f} s: {self.output}")
        return 0


if __name__ == "__main__":
    raise SystemExit(run_main(tyro.cli(LightevalGrade)))
