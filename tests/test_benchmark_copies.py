"""Copies of benchmarks: from files, Parquet and data sets, and benchmarks of a user's own by path or by entry.

Most data sets here are folders, which `datasets` loads as it loads the hub's; one comes from a server of our own that
answers as the hub does.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from row_files import jsonl, parquet

from stapo_eval.benchmarks import register
from stapo_eval.cli import main
from stapo_results import benchmarks
from stapo_results.errors import BadInput

ROWS = [
    {"id": "a", "problem": "One plus one?", "answer": "2"},
    {"id": "b", "problem": "Roots of $x^2 = 4$?", "answer": ["2", "-2"], "unit": "m"},
    {"id": "c", "problem": "A third?", "answer": r"\frac{1}{3}", "tolerance": "1e-1"},
]
# the form of veRL's parquet files, as JustRL's evaluation reads them
NESTED = [
    {
        "prompt": [{"role": "user", "content": r["problem"]}],
        "reward_model": {"ground_truth": r["answer"] if isinstance(r["answer"], str) else ",".join(r["answer"])},
    }
    for r in ROWS
]
NESTED_COLUMNS = "problem=prompt.0.content,answer=reward_model.ground_truth"


def data_set(folder: Path, rows: list[dict[str, Any]]) -> str:
    parquet(folder / "data" / "test-00000-of-00001.parquet", rows)
    return str(folder)


@pytest.fixture
def registered(tmp_path: Path) -> Path:
    """A data directory whose registry knows `toy`, with a hub id, but which holds no problem."""
    folder = tmp_path / "data"
    folder.mkdir()
    hub = data_set(tmp_path / "hub", [{"question": r["problem"], "final": str(r["answer"])} for r in ROWS[::2]])
    register("toy", hub, folder, {"problem": "question", "answer": "final"}, "main", "test", samples=5)
    return folder


def test_a_file_by_its_path(tmp_path: Path) -> None:
    b = benchmarks.load(str(jsonl(tmp_path / "My own_1.jsonl", ROWS)))
    assert b.name == "my-own-1"
    assert [p.id for p in b.problems] == ["a", "b", "c"]
    assert [p.answer for p in b.problems] == ["2", ("2", "-2"), r"\frac{1}{3}"]
    assert [p.unit for p in b.problems] == ["", "m", ""]
    assert [p.tolerance for p in b.problems] == [None, None, 0.1]
    assert (b.spec.samples, b.spec.answer_type, len(b.problems), b.variant) == (32, "math", 3, "")


@pytest.mark.parametrize("changed", [{"samples": -4}, {"tolerance": -1.0}, {"tolerance": float("inf")}])
def test_an_entry_that_cannot_be_is_refused(tmp_path: Path, changed: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"no benchmark has such a {next(iter(changed))}"):
        benchmarks.registry_entry(jsonl(tmp_path / "toy.jsonl", ROWS), "mine", **changed)


def test_a_file_with_the_name_or_the_entry_of_a_benchmark_is_checked_as_that_one(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "toy.jsonl", ROWS)
    entry = benchmarks.registry_entry(path, "mine", samples=3, answer_type="math")
    benchmarks.write_registry(tmp_path / "registry.yaml", {"mine": entry})
    assert benchmarks.load(str(path)).spec.samples == 3
    for changed in (jsonl(path, ROWS[:2]), jsonl(tmp_path / "aime24.jsonl", ROWS[:2])):
        with pytest.raises(BadInput) as e:
            benchmarks.load(str(changed))
        assert "rows 2" in str(e.value.found)


def test_other_columns_are_refused_with_those_found_and_what_to_write(registered: Path, tmp_path: Path) -> None:
    (registered / "toy.jsonl").unlink()
    data_set(tmp_path / "hub", [{"prompt": "x", "gold": "1"}])
    with pytest.raises(BadInput, match="'question'") as e:
        benchmarks.load("toy", registered)
    assert str(e.value.found).endswith("gold, prompt")
    # and nothing of them is written
    assert main(["benchmarks", "--write", str(registered), "--names", "toy"]) == 2
    assert [p.name for p in registered.iterdir()] == ["registry.yaml"]


def test_writing_fetches_what_is_missing_and_checks_it(
    registered: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    monkeypatch.setenv("STAPO_DATA_DIR", str(tmp_path / "not there"))  # --write names its own folder
    target.mkdir()
    (target / "registry.yaml").write_bytes((registered / "registry.yaml").read_bytes())
    assert main(["benchmarks", "--write", str(target), "--names", "toy"]) == 0
    assert "toy.jsonl: 2 rows, from " in capsys.readouterr().out
    once = (target / "toy.jsonl").read_bytes()
    assert [json.loads(x)["answer"] for x in once.decode().splitlines()] == ["2", r"\frac{1}{3}"]
    assert main(["benchmarks", "--write", str(target), "--names", "toy"]) == 0
    assert "was there" in capsys.readouterr().out
    assert (target / "toy.jsonl").read_bytes() == once
    assert benchmarks.load("toy", target).problems == benchmarks.load("toy", registered).problems


def test_adding_a_parquet_file_with_nested_columns(tmp_path: Path, capsys: Any) -> None:
    data = tmp_path / "data"
    data.mkdir()
    path = parquet(tmp_path / "HMMT25" / "test.parquet", NESTED)
    command = ["benchmarks", "--add", str(path), "--names", "hmmt25", "--data-dir", str(data), "--columns",
               NESTED_COLUMNS, "--n", "32", "--unordered", "--license", "CC BY-NC-SA 4.0"]  # fmt: skip
    assert main(command) == 0
    first = {p.name: p.read_bytes() for p in data.iterdir()}
    assert set(first) == {"hmmt25.jsonl", "registry.yaml"}
    b = benchmarks.load("hmmt25", data)
    assert [(p.id, p.answer) for p in b.problems] == [
        ("hmmt25-0000", "2"), ("hmmt25-0001", "2,-2"), ("hmmt25-0002", r"\frac{1}{3}")]  # fmt: skip
    assert (b.spec.unordered, b.spec.samples, b.spec.license) == (True, 32, "CC BY-NC-SA 4.0")
    assert main(command) == 0
    assert {p.name: p.read_bytes() for p in data.iterdir()} == first
    capsys.readouterr()
    assert main(["benchmarks", "--data-dir", str(data)]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "hmmt25" in x)
    assert line.split() == ["hmmt25", "3", "32", "math,", "any", "order", "CC", "BY-NC-SA", "4.0", "none", "ok"]


@pytest.mark.parametrize(
    ("name", "rows"),
    [("aime24", ROWS), ("toy", ROWS), ("new", [{"id": "a", "problem": "x", "answer": []}]), ("new", [])],
)
def test_what_is_no_benchmark_is_not_added(registered: Path, tmp_path: Path, name: str, rows: list) -> None:
    before = (registered / "registry.yaml").read_bytes()
    path = jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(BadInput):
        register(name, str(path), registered, {}, "", "")
    assert (registered / "registry.yaml").read_bytes() == before
    assert not (registered / "new.jsonl").exists()


HUB_NAME, HUB_COMMIT = "owner/name", "c0ffee" + "0" * 34


@contextmanager
def hub(data: bytes) -> Iterator[tuple[str, list[str]]]:
    """A hub whose one data set is `test.jsonl`; gives its address and the paths that were asked for, which grow."""
    paths, oid = [], hashlib.sha1(data).hexdigest()
    tree = [{"type": "file", "path": "test.jsonl", "size": len(data), "oid": oid}]
    info = {"id": HUB_NAME, "sha": HUB_COMMIT, "siblings": [{"rfilename": "test.jsonl"}], "private": False}
    info |= {"tags": [], "downloads": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(path := self.path.partition("?")[0])
            body, headers = b"", {"X-Error-Code": "EntryNotFound"}
            for part, found in (("/revision/", info), ("/tree/", tree)):
                if path.startswith(f"/api/datasets/{HUB_NAME}{part}"):
                    body, headers = json.dumps(found).encode(), {"Content-Type": "application/json"}
            if path.startswith(f"/datasets/{HUB_NAME}/resolve/") and path.endswith("/test.jsonl"):
                body, headers = data, {"X-Repo-Commit": HUB_COMMIT, "ETag": f'"{oid}"'}
            self.send_response(200 if body else 404)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def command(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """`stapo-eval benchmarks` as a process: the hub's address is read when its library is imported."""
    return subprocess.run(
        [sys.executable, "-m", "stapo_eval.cli", "benchmarks", *map(str, arguments)],
        env=os.environ | env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_hub_is_asked_for_the_commit_and_its_cache_serves_without_one(tmp_path: Path) -> None:
    data, target, cache = tmp_path / "data", tmp_path / "target", str(tmp_path / "cache")
    data.mkdir()
    rows = "".join(json.dumps({"question": r["problem"], "final": str(r["answer"])}) + "\n" for r in ROWS)
    with hub(rows.encode()) as (address, paths):
        added = command(
            "--add", HUB_NAME, "--names", "toy", "--data-dir", data,
            "--columns", "problem=question,answer=final", HF_ENDPOINT=address, HF_HUB_OFFLINE="0", HF_HOME=cache,
        )  # fmt: skip
    assert added.returncode == 0, added.stderr
    assert any(p.endswith(f"/resolve/{HUB_COMMIT}/test.jsonl") for p in paths)
    first = json.loads((data / "toy.jsonl").read_text().splitlines()[0])
    assert (first["id"], first["source"]) == ("toy-0000", f"{HUB_NAME}@{HUB_COMMIT}")
    target.mkdir()
    (target / "registry.yaml").write_bytes((data / "registry.yaml").read_bytes())
    again = command("--write", target, "--names", "toy", HF_HUB_OFFLINE="1", HF_HOME=cache)
    assert again.returncode == 0, again.stdout
    assert (target / "toy.jsonl").read_bytes() == (data / "toy.jsonl").read_bytes()
