"""The options of `stapo-train data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

DAPO = "BytedTsinghua-SIA/DAPO-Math-17k"


@dataclass(frozen=True)
class DataOptions:
    """Options with the help that the command line shows."""

    benchmarks: Path
    """Folder with the six benchmarks' files."""
    out: Path
    """Folder to make; the same preparation is left as it is, another one refused."""
    source: Annotated[str, tyro.conf.arg(metavar="ID|FILE")] = DAPO
    """A .jsonl or .parquet file, or a dataset's id on the hub."""
    revision: str | None = None
    """The hub's branch, tag or commit; the commit is recorded. Default: main, of MATH one commit."""
    language: Literal["all", "en"] = "all"
    """en leaves out prompts with Chinese, Japanese or Korean ideographs."""
    levels: tuple[int, ...] = ()
    """Levels of difficulty to take, where the source has such."""
    problems: Path | None = None
    """A file with a problem's id a line: take these alone."""
    exclude_contaminated: tyro.conf.FlagCreatePairsOff[bool] = False
    """Leave out prompts that match a benchmark problem."""
    validation: str = "aime24"
    """The benchmark to validate with, or NAME:N for N of its problems, evenly spread."""
    within_reach: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """A model's folder, or the name of a fetched one: sample with it, and keep the prompts that it answers rightly at
    times and wrongly at times. To resume, repeat the command."""
    draw: int = 500
    """Prompts that are sampled."""
    samples: int = 4
    """Responses to each."""
    max_tokens: int = 512
    """Tokens of a response."""
    seed: int = 0
    """Decides the draw and every sample."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Check, count the prompts, say how long sampling takes; write nothing."""
