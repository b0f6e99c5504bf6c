"""The judge's prompt: read out of published files, taken by its hash alone. The texts here are made up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import eval_model
import pytest
from huggingface_hub import constants

from stapo_eval import plan
from stapo_eval.cli import main
from stapo_eval.judge import published
from stapo_eval.judge.published import PUBLISHED, STAND_IN, JudgePrompt, PublishedPrompt, find_prompt
from stapo_eval.options import RunOptions
from stapo_results.errors import BadInput

TEXT = "\n{question}|{gold_answer}|{llm_response}|\\boxed{{}}\n"
OTHER = "why? " + TEXT
FILE = f"raise SystemExit  # never run\nV = {TEXT!r}\nW: int = 3\nX = {OTHER!r}\nY = V + X\n"
COMMIT = "c0ffee" + "0" * 34


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PublishedPrompt:
    """The made-up text in the place of the published ones; a cache that is empty."""
    source = PublishedPrompt("owner/name", COMMIT, "src/prompts.py", "V", JudgePrompt(TEXT).sha256)
    monkeypatch.setattr(published, "PUBLISHED", dict.fromkeys(PUBLISHED, (source,)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STAPO_JUDGE_PROMPT", raising=False)
    return source


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the repositories are served from."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    path = tmp_path / "host" / "owner" / "name" / COMMIT / "src" / "prompts.py"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "host")))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setattr(published, "HOST", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield path
    server.shutdown()
    server.server_close()


def test_it_is_read_from_a_file_and_named_by_its_source(
    registered: PublishedPrompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = tmp_path / "prompts.py", tmp_path / "prompt.txt"
    code.write_text(FILE)
    text.write_text(TEXT)
    for given in (code, f"{code}:V", text):
        assert find_prompt(str(given), "compass") == JudgePrompt(TEXT, str(registered))
    monkeypatch.setenv("STAPO_JUDGE_PROMPT", str(text))
    assert str(find_prompt("", "compass")) == f"sha256:{registered.sha256} V of owner/name@c0ffee00:src/prompts.py"


def test_it_is_fetched_once_and_never_taken_changed(
    registered: PublishedPrompt, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_prompt("", "compass")
    assert found == JudgePrompt(TEXT, str(registered))
    host.write_text(FILE.replace("V =", "V = 'changed' or"))
    assert find_prompt("", "compass") == found  # the cache
    (cache,) = Path(host.parents[5] / "cache" / "stapo").iterdir()
    cache.write_bytes(b"\xff")
    host.write_text(FILE)
    assert find_prompt("", "compass") == found
    cache.unlink()
    host.write_text(f"V = {OTHER!r}")
    with pytest.raises(BadInput, match=JudgePrompt(OTHER).sha256) as refused:
        find_prompt("", "compass", unpublished=True)
    assert registered.sha256 in str(refused.value)
    host.write_text("V = '''" + "#" * published.MOST_BYTES)  # what is endless is no prompt
    with pytest.raises(BadInput, match=r"prompts\.py"):
        find_prompt("", "compass")
    host.unlink()
    with pytest.raises(BadInput, match="404"):
        find_prompt("", "compass")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=r"curl -O \S+/owner/name/c0ffee0\S+/src/prompts\.py .*--judge-prompt"):
        find_prompt("", "compass")


def test_another_text_is_taken_only_on_demand_and_never_for_justrls_script(
    registered: PublishedPrompt, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    with pytest.raises(BadInput, match="--judge-prompt-unpublished"):
        find_prompt(f"{path}:X", "compass")
    assert find_prompt(f"{path}:X", "compass", unpublished=True) == JudgePrompt(OTHER)
    assert find_prompt(f"{path}:V", "compass", unpublished=True).source
    with pytest.raises(BadInput, match="--judge-mode compass"):
        find_prompt(f"{path}:X", "justrl-exact", unpublished=True)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.txt", b"{question} {gold_answer}", "llm_response"),
        ("a.txt", TEXT.encode() + b"{question}", "question"),
        ("a.txt", TEXT.encode() + b"{more}", "question"),
        ("a.txt", TEXT.encode() + b"{", "question"),
        ("a.py", b"V = " + b"(" * 300, "a.py"),
        ("a.py", b"V = V", "V"),
        ("a.txt", b"\xff", "a.txt"),
    ],
)
def test_what_is_no_prompt_is_refused(
    registered: PublishedPrompt, tmp_path: Path, name: str, text: bytes, named: str
) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(BadInput, match=named):
        find_prompt(str(tmp_path / name), "compass", unpublished=True)


def test_a_run_without_the_prompt_is_refused_before_any_work(
    registered: PublishedPrompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Before a model of the hub is fetched, too; a judge of the miniature needs none."""
    asked = []
    monkeypatch.setattr(plan, "find_model", lambda given, revision="": asked.append((given, revision)))
    eval_model.benchmarks(tmp_path / "data")
    known = ["run", "--model", "m", "--data-dir", str(tmp_path / "data"), "--benchmarks", "sums", "--out"]
    assert main([*known, str(tmp_path / "out"), "--judge", "opencompass/CompassVerifier-3B"]) == 2
    assert "--judge-prompt" in capsys.readouterr().err
    assert asked == []
    assert not (tmp_path / "out").exists()
    path = tmp_path / "prompt.txt"
    path.write_text(TEXT)
    plan.find_judge(RunOptions("m", judge="opencompass/CompassVerifier-3B", judge_prompt=str(path)))
    assert asked == list(published.REVISIONS.items())
    monkeypatch.undo()
    eval_model.build(tmp_path / "judge", labels={"step": "base"})
    assert plan.find_judge(RunOptions("m", judge=str(tmp_path / "judge")))[1] == STAND_IN


def test_where_the_pinned_revision_cannot_be_had_another_is_named(registered: PublishedPrompt, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(TEXT)
    known = RunOptions("m", judge="opencompass/CompassVerifier-3B", judge_prompt=str(tmp_path / "prompt.txt"))
    with pytest.raises(BadInput, match="--judge-revision"):
        plan.find_judge(known)
    with pytest.raises(BadInput) as refused:
        plan.find_judge(replace(known, judge_revision="main"))
    assert "--judge-revision" not in str(refused.value)
