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
    to: Literal["lighteval"]
    """lighteval: results JSON and details parquet."""
    out: str
    """Folder to write into."""
    data_dir: str = ""
    """Directory with the benchmarks; if empty, that of the run, else $STAPO_DATA_DIR, else the hub."""
    benchmarks: str = ""
    """Files of benchmarks that the run was given by path, joined by commas."""

    def __call__(self) -> int:
        from stapo_eval.interop import finished, lighteval_log

        done = finished.read(Path(self.run), self.data_dir, self.benchmarks)
        for path in lighteval_log.write(done, Path(self.out)):
            print(path)
        return 0
