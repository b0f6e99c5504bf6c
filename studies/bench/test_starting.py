"""Where the bench of starts and ends cuts a training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stapo_results.errors import RunFailed
from studies.bench.starting import PARTS, parts_of

TRAINING = """
import pathlib, sys, time
out = pathlib.Path(sys.argv[1])
for wait, name in ((0.0, "run.json"), (0.5, "STATUS.md"), (1.0, "metrics.jsonl"), (0.5, "metrics.jsonl")):
    time.sleep(wait)
    with open(out / name, "a") as f:
        f.write("{}\\n")
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_each_part_ends_where_its_file_says_so(code: int, tmp_path: Path) -> None:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", TRAINING, str(tmp_path), str(code)])

    if code:
        with pytest.raises(RunFailed):
            parts_of(tmp_path, 2, start)
    else:
        parts = parts_of(tmp_path, 2, start)
        assert list(parts) == list(PARTS)
        # the first is Python's start; a busy machine makes each longer
        least = [0.5, 1.0, 0.5, 0.0]
        assert all(low - 0.1 < found < low + 2 for found, low in zip(list(parts.values())[1:], least, strict=True))
