"""Where the bench of starts and ends cuts a training."""

from __future__ import annotations

import subprocess
import sys
from itertools import accumulate
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
        # the first is Python's start, and what is seen of it may be late: the others end later than they would, by a
        # busy machine's delay
        ends = list(accumulate(list(parts.values())[1:]))
        assert all(end - 0.3 < found < end + 5 for found, end in zip(ends, (0.5, 1.5, 2.0, 2.0), strict=True))
