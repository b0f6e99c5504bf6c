"""Files of problems that are made here: training rows in veRL's columns, benchmarks with their registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stapo_results import store
from stapo_results.benchmarks import registry_entry, write_registry
from stapo_training.data.rows import verl_row


class Made(Protocol):
    """A problem without instruction, and its answer, a whole number."""

    @property
    def text(self) -> str: ...
    @property
    def answer(self) -> int: ...


def verl_rows(problems: Sequence[Made], source: str, split: str) -> Iterator[dict[str, Any]]:
    """Rows in veRL's columns; the ground truth is the answer as decimal text.

    Args:
        source: under whose name validation metrics stand; a validation row has the id of the benchmark's row.
    """
    name = source if split == "val" else f"{source}-{split}"
    for i, p in enumerate(problems):
        problem_id = f"{name}-{i:04d}"
        yield verl_row(p.text, str(p.answer), data_source=source, split=split, index=i, problem_id=problem_id)


def write_benchmarks(folder: Path, parts: Mapping[str, tuple[str, Sequence[Made]]], samples: int, **known: Any) -> None:
    """NAME.jsonl of each benchmark, and registry.yaml.

    Args:
        parts: name -> title and problems.
        samples: N of avg@N.
        known: further fields of each entry.
    """
    entries = {}
    for name, (title, problems) in parts.items():
        rows = [{"id": f"{name}-{i:04d}", "problem": p.text, "answer": str(p.answer)} for i, p in enumerate(problems)]
        store.write_atomic(folder / f"{name}.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        entries[name] = registry_entry(
            folder / f"{name}.jsonl", name, samples=samples, title=title, answer_type="integer", **known
        )
    write_registry(folder / "registry.yaml", entries)
