"""`stapo-eval export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ExportCommand:
    """Write a finished run in another harness's format, for its viewers and comparisons."""

    run: str
    """Folder of a finished `stapo-eval run`."""
    to: Literal["lighteval", "inspect"]
    """lighteval: results JSON and details parquet. inspect: JSON logs."""
    out: str
    """Folder to write into."""
    data_dir: str = ""
    """Directory with the benchmarks; if empty, that of the run, else $STAPO_DATA_DIR, else the hub."""
    benchmarks: str = ""
    """Files of benchmarks that the run was given by path, joined by commas."""

    def __call__(self) -> int:
        from stapo_eval.interop import finished, inspect_log, lighteval_log

        done = finished.read(Path(self.run), self.data_dir, self.benchmarks)
        writers = {"lighteval": lighteval_log.write, "inspect": inspect_log.write}
        for path in writers[self.to](done, Path(self.out)):
            print(path)
        return 0
