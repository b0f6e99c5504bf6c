"""Prompt sets of our own in the forms that `stapo-train data` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stapo_training.data import source

PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
LONG = (
    "Let $a_n$ be the sequence of positive integers that are neither squares nor cubes " + "and grow without end " * 3
)


def flat(problem: object, answer: object = "1", **more: object) -> dict:
    return {"problem": problem, "answer": answer, **more}


def hub(content: object, gold: object = "1", index: str = "u") -> dict:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": content}],
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"index": index},
    }


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def parquet(path: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def read(path: Path) -> list[source.SourceRow]:
    return list(source.read(source.find(str(path))))
