"""Replicas on a local Ray: the same samples whatever their number, and whichever of them dies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import eval_model
import hostile_folder
import psutil
import pytest

from stapo_eval.decoding import Decoding
from stapo_eval.engines import EngineOptions, Finished, Request, make_engine
from stapo_eval.engines.hf import HfEngine
from stapo_eval.engines.ray import RayEngine
from stapo_eval.models import find_model
from stapo_eval.options import RunOptions
from stapo_eval.run import run
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_model.build(tmp_path_factory.mktemp("model"), labels={"step": 1})


def _engine(folder: Path, replicas: int) -> RayEngine:
    options = EngineOptions(replicas=replicas)
    engine = make_engine("hf", find_model(str(folder)), threads=1, rows=4, options=options)
    assert isinstance(engine, RayEngine)
    return engine


def _requests(engine: RayEngine | HfEngine, n: int = 60) -> list[Request]:
    d = Decoding(1.0, 1.0, 24)
    return [Request("c", f"p{i % 7}", i // 7, i, tuple(engine.encode("word " * (i % 7))), d) for i in range(n)]


def _texts(finished: list[Finished]) -> dict:
    found = {f.request.key: f.text for f in finished}
    assert len(found) == len(finished)
    return found


def _listening_beyond_loopback() -> list[str]:
    """Sockets of this process and its children that other machines can reach."""
    found = []
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for c in process.net_connections(kind="inet"):
            if c.status == psutil.CONN_LISTEN and c.laddr.ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1"):
                found.append(f"{process.name()} {c.laddr.ip}:{c.laddr.port}")
    return found


def test_replicas_can_be_reached_from_this_machine_alone(folder: Path) -> None:
    """In a process of its own: Ray reads where it listens as it is imported, which earlier tests may have done."""
    code = (
        "import sys; from pathlib import Path; import test_replicas as t; engine = t._engine(Path(sys.argv[1]), 2); "
        "found = t._listening_beyond_loopback(), len(t._replicas()); engine.close(); print(*found)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 2"


def _replicas() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "Replica" in " ".join(p.cmdline())]


def test_a_killed_replicas_work_is_done_by_the_others(folder: Path, capsys) -> None:
    alone = HfEngine(find_model(str(folder)), threads=1, rows=4)
    expected = _texts([f for piece in alone.stream(_requests(alone), ()) for f in piece])
    engine = _engine(folder, 2)
    try:
        first, second = _replicas()
        assert (engine.name, engine.deterministic, engine.context) == ("hf", True, 512)
        finished: list[Finished] = []
        told = []
        for number, piece in enumerate(engine.stream(_requests(engine), ())):
            finished += piece
            told.append(engine.under_way)
            if number == 3:
                first.kill()
        assert _texts(finished) == expected
        assert (max(told) > 0, told[-1]) == (True, 0)
        assert len(engine.replicas) == len(engine.notes) == 1
        assert engine.notes[0] in capsys.readouterr().err
        # the last one as well: the run ends
        pieces = engine.stream(_requests(engine), ())
        next(pieces)
        second.kill()
        with pytest.raises(RunFailed, match="every replica was lost"):
            list(pieces)
    finally:
        engine.close()


def test_two_replicas_give_the_files_of_one_engine(folder: Path, tmp_path: Path) -> None:
    eval_model.benchmarks(tmp_path / "data")
    options = {
        "model": str(folder),
        "data_dir": str(tmp_path / "data"),
        "benchmarks": "sums,longer-sums",
        "max_tokens": 24,
        "batch_rows": 5,
        "threads": 1,
    }
    run(RunOptions(**options, out=str(tmp_path / "one")))
    run(RunOptions(**options, out=str(tmp_path / "two"), replicas=2))
    for name in ("samples.jsonl", "verdicts.jsonl", "summary.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert store.read_json(tmp_path / "two" / "run.json", Run).config["replicas"] == 2


def test_no_module_of_the_current_folder_runs_in_a_replica(folder: Path, tmp_path: Path) -> None:
    eval_model.benchmarks(tmp_path / "data")
    here, out = hostile_folder.build(tmp_path / "here"), tmp_path / "run"
    words = ["--model", folder, "--data-dir", tmp_path / "data", "--benchmarks", "sums", "--max-tokens", 8]
    hostile_folder.run(here, "stapo-eval", "run", *words, "--threads", 1, "--replicas", 2, "--out", out)
    assert store.read_json(out / "run.json", Run).status == "done"


def test_more_replicas_than_there_is_room_for_are_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match="no room for 999 replicas"):
        _engine(folder, 999)


def test_a_replica_that_cannot_load_says_what_the_library_said(folder: Path, tmp_path: Path) -> None:
    """transformers names the tensors on stderr, which Ray keeps, and not in its error."""
    shutil.copytree(folder, other := tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(BadInput) as e:
        _engine(other, 2)
    assert "MISMATCH" in str(e.value.found)


def test_a_cluster_without_gpus_starts_no_vllm_unless_a_number_is_given(folder: Path) -> None:
    with pytest.raises(BadInput, match="no GPU"):
        make_engine("vllm", find_model(str(folder)), options=EngineOptions(ray_address="local"))
