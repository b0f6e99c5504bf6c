"""The selector inside veRL's worker, against the same mini-batch worked by hand (no Ray)."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("mini_batch_worker.py")


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _run(model: Path, ranks: int) -> dict[str, dict[str, float]]:
    shared = os.environ | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(model)],
            env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(ranks)
    ]
    ended = [p.communicate(timeout=300) for p in processes]
    for p, (_, err) in zip(processes, ended, strict=True):
        assert p.returncode == 0, err[-3000:]
    lines = [json.loads(x) for x in ended[0][0].splitlines() if x.startswith('{"case"')]
    return {line.pop("case"): line for line in lines}


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_mini_batch_equals_the_calculation_by_hand(tiny_base: Path, ranks: int) -> None:
    found = _run(tiny_base / "model", ranks)
    hand = found.pop("by hand")
    # the case is a real one: some candidates are silenced, some are kept
    assert 0 < hand["silenced"] < hand["candidates"]
    assert set(found) == {"micro 1", "micro 4", "dynamic", "reversed"}
    for name, case in found.items():
        for key in ("candidates", "kept", "silenced"):
            assert case[key] == hand[key], (name, key)
        for key in ("loss", "grad_norm", "threshold"):
            assert case[key] == pytest.approx(hand[key], rel=1e-5), (name, key)
        assert case["parameters"] == pytest.approx(found["micro 1"]["parameters"], rel=1e-6), name
