"""`stapo-eval export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stapo_eval.interop import finished, inspect_log, lighteval_log, lm_eval_log
from stapo_results.benchmarks.loader import name_of_file
from stapo_results.benchmarks.sources import is_file_name
from stapo_results.errors import BadInput

_WRITERS = {"lighteval": lighteval_log.write, "lm-eval": lm_eval_log.write, "inspect": inspect_log.write}


@dataclass(frozen=True)
class ExportCommand:
    """Write a finished run in another harness's format, for its viewers and comparisons."""

    run: str
    """Folder of a finished `stapo-eval run`."""
    to: Literal["lighteval", "lm-eval", "inspect"]
    """lighteval: results JSON and details parquet. lm-eval: results JSON and samples JSONL. inspect: JSON logs."""
    out: str
    """Folder to write into."""
    data_dir: str = ""
    """Directory with the benchmarks; if empty, that of the run, else $STAPO_DATA_DIR, else the hub."""
    benchmarks: str = ""
    """Files of benchmarks that the run was given by path, joined by commas."""

    def __call__(self) -> int:
        files = [x.strip() for x in self.benchmarks.split(",") if x.strip()]
        if wrong := [x for x in files if not is_file_name(x)]:
            raise BadInput("--benchmarks takes .jsonl and .parquet files here", found=", ".join(wrong))
        paths = {name_of_file(Path(x)): x for x in files}
        done = finished.read(Path(self.run), self.data_dir, paths)
        for path in _WRITERS[self.to](done, Path(self.out)):
            print(path)
        return 0
