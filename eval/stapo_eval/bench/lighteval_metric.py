"""lighteval's metric over a file of responses, run by an interpreter that has lighteval: it needs other versions of
the parsers than this suite, so it runs as a script of its own, `PYTHON lighteval_metric.py IN OUT`.

IN: JSONL with answer (text) and response. OUT: JSON with seconds (imports left out) and verdicts (list of booleans).
"""

from __future__ import annotations

import json
import sys
import time


def main(source: str, target: str) -> None:
    from lighteval.metrics.dynamic_metrics import (  # type: ignore[import-not-found]
        ExprExtractionConfig,
        LatexExtractionConfig,
        MultilingualExtractiveMatchMetric,
    )
    from lighteval.models.model_output import ModelResponse  # type: ignore[import-not-found]
    from lighteval.tasks.requests import Doc  # type: ignore[import-not-found]

    # the metric of its mathematics tasks, which read golds as LaTeX
    metric = MultilingualExtractiveMatchMetric(
        gold_extraction_target=(LatexExtractionConfig(), ExprExtractionConfig()),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig(boxed_match_priority=0)),
        precision=5,
    )
    with open(source, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    verdicts = []
    began = time.perf_counter()
    for row in rows:
        doc = Doc(query="", choices=[f"${row['answer']}$"], gold_index=0)
        try:
            verdicts.append(bool(metric.compute(doc, ModelResponse(text=[row["response"]]))))
        except Exception:  # noqa: BLE001  it raises where it cannot read a gold: an answer that it does not accept
            verdicts.append(False)
    seconds = time.perf_counter() - began
    with open(target, "w", encoding="utf-8") as f:
        json.dump({"seconds": seconds, "verdicts": verdicts}, f)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
