"""`tox -e eval` without a GPU stops before anything is installed, and names the command that works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from driving import nvidia_smi

ROOT = Path(__file__).resolve().parents[1]
CHECK = ROOT / ".ci" / "needs-gpu"
_LISTS = "[ $1 = -L ] && echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)' || echo '{}'"


def _check(path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(CHECK), "tox", "-e", "eval-cpu", "--", "--model", "ORG/A B"]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": path}, timeout=60)


def test_without_a_driver_it_names_the_command_that_works(tmp_path: Path) -> None:
    done = _check(str(tmp_path))
    assert (done.returncode, "tox -e eval-cpu -- --model 'ORG/A B'" in done.stderr) == (2, True)


@pytest.mark.parametrize(("version", "code"), [("580.65.06", 0), ("570.86.10", 2), ("[N/A]", 2)])
def test_a_gpu_with_a_driver_that_is_new_enough(tmp_path: Path, version: str, code: int) -> None:
    done = _check(nvidia_smi(tmp_path / "bin", _LISTS.format(version)))
    assert (done.returncode, version in done.stderr) == (code, code == 2)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU's driver")
def test_tox_stops_before_it_installs_anything(tmp_path: Path) -> None:
    pytest.importorskip("tox")
    command = [sys.executable, "-m", "tox", "-e", "eval", "--workdir", str(tmp_path), "--", "--model", "ORG/NAME"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TOX_", "PYTHONPATH"))}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode != 0
    assert "tox -e eval-cpu -- --model ORG/NAME" in done.stdout + done.stderr
    installed = {p.name for p in tmp_path.glob("eval/lib/python*/site-packages/*")}
    assert installed
    assert not {n for n in installed if n.startswith(("torch", "vllm", "numpy", "stapo"))}
