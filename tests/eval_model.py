"""The random model of the evaluation's tests, which is that of its bench, and small benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

from stapo_eval.bench.tiny import BOXES, TEMPLATE, build
from stapo_results.benchmarks import registry_entry, write_registry

__all__ = ["BOXES", "TEMPLATE", "benchmarks", "build"]


def benchmarks(folder: Path, problems: int = 6, samples: int = 4) -> Path:
    """Two benchmarks of a few problems whose golds are among the boxes."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for name, offset in (("sums", 0), ("longer-sums", 500)):
        rows = [
            {"id": f"{name}-{i}", "problem": f"What is {offset + i} + {i}?" + " Think." * (i % 3), "answer": str(i)}
            for i in range(problems)
        ]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        entries[name] = registry_entry(path, name, samples=samples)
    write_registry(folder / "registry.yaml", entries)
    return folder
