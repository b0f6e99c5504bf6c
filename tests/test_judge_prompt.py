"""The judge's prompt: read out of published files, taken by its hash alone. The texts here are made up."""

from __future__ import annotations

import socket
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
from stapo_eval.judge.published import PUBLISHED, STAND_IN, Prompt, Source, find_prompt
from stapo_eval.options import RunOptions
from stapo_results.errors import BadInput

TEXT = "\n{question}|{gold_answer}|{llm_response}|\\boxed{{}}\n"
OTHER = "why? " + TEXT
FILE = f"raise SystemExit  # never run\nV = {TEXT!r}\nW: int = 3\nX = {OTHER!r}\nY = V + X\n"
COMMIT = "c0ffee" + "0" * 34


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Source:
    """The made-up text in the place of the published ones; a cache that is empty."""
    source = Source("owner/name", COMMIT, "src/prompts.py", "V", Prompt(TEXT).sha256)
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


def test_the_registered_commits_and_hashes_are_whole() -> None:
    sources = [s for of_mode in PUBLISHED.values() for s in of_mode]
    assert {len(s.commit) for s in sources} == {40}
    assert {len(s.sha256) for s in sources} == {64}
    assert {len(r) for r in published.REVISIONS.values()} == {40}
    # JustRL's copy is CompassVerifier's text
    assert PUBLISHED["justrl-exact"][0].sha256 == PUBLISHED["compass"][0].sha256


@pytest.mark.parametrize("mode", ["compass", "justrl-exact"])
def test_it_is_found_in_a_file_a_checkout_and_the_judges_folder(
    registered: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode
) -> None:
    checkout, judge, plain = tmp_path / "checkout", tmp_path / "judge", tmp_path / "prompt.txt"
    for folder in (checkout / "src", judge):
        folder.mkdir(parents=True)
        (folder / "prompts.py").write_text(FILE)
    plain.write_text(TEXT)
    for given in (checkout, judge, checkout / "src" / "prompts.py", f"{judge / 'prompts.py'}:V", plain):
        assert find_prompt(str(given), mode) == Prompt(TEXT, str(registered))
    assert find_prompt("", mode, judge) == Prompt(TEXT, str(registered))
    monkeypatch.setenv("STAPO_JUDGE_PROMPT", str(plain))
    assert find_prompt("", mode) == Prompt(TEXT, str(registered))
    assert str(Prompt(TEXT, str(registered))) == f"sha256:{registered.sha256} V of owner/name@c0ffee00:src/prompts.py"


def test_it_is_fetched_once_and_never_taken_changed(registered: Source, host: Path) -> None:
    found = find_prompt("", "compass")
    assert found == Prompt(TEXT, str(registered))
    host.write_text(FILE.replace("V =", "V = 'changed' or"))
    assert find_prompt("", "compass") == found  # the cache
    (cache,) = Path(host.parents[5] / "cache" / "stapo").iterdir()
    cache.write_text(OTHER)
    host.write_text(f"V = {OTHER!r}")
    with pytest.raises(BadInput, match=Prompt(OTHER).sha256) as refused:
        find_prompt("", "compass", unpublished=True)
    assert registered.sha256 in str(refused.value)
    host.unlink()
    with pytest.raises(BadInput, match="404"):
        find_prompt("", "compass")


def test_a_cache_that_cannot_be_read_or_placed_does_no_harm(
    registered: Source, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache := tmp_path / "cache" / "stapo" / f"{registered.sha256}.txt").parent.mkdir(parents=True)
    cache.write_bytes(b"\xff")
    assert find_prompt("", "compass").text == TEXT
    cache.unlink()
    cache.mkdir()
    assert find_prompt("", "compass").text == TEXT
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("~no such user").expanduser())
    assert find_prompt("", "compass").text == TEXT


def test_a_download_is_bounded_in_size_and_time(
    registered: Source, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write_text(FILE + "#" * 1_000_000)
    with pytest.raises(BadInput, match="1,000,000 bytes"):
        find_prompt("", "compass")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(published, "HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(published, "MOST_SECONDS", 0.2)
        with pytest.raises(BadInput, match=r"TimeoutError: .*0\.2 s"):
            find_prompt("", "compass")


def test_justrls_mode_takes_the_same_text_from_another_checkout_and_no_other_text(
    registered: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    justrl = replace(registered, repository="other/name", path="evals/grade.py")
    monkeypatch.setitem(published.PUBLISHED, "justrl-exact", (justrl,))
    path = tmp_path / "src" / "prompts.py"
    path.parent.mkdir()
    path.write_text(FILE)
    for given in (tmp_path, path.parent):
        assert find_prompt(str(given), "justrl-exact") == Prompt(TEXT, str(justrl))
    with pytest.raises(BadInput, match="--judge-mode compass"):
        find_prompt(f"{path}:X", "justrl-exact", unpublished=True)


def test_without_it_the_next_command_is_named(registered: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=r"curl -O \S+/owner/name/c0ffee0\S+/src/prompts\.py .*--judge-prompt"):
        published.find_prompt("", "compass")


def test_another_text_is_taken_only_on_demand(registered: Source, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    with pytest.raises(BadInput, match="--judge-prompt-unpublished"):
        find_prompt(f"{path}:X", "compass")
    assert find_prompt(f"{path}:X", "compass", unpublished=True) == Prompt(OTHER)
    assert find_prompt(f"{path}:V", "compass", unpublished=True).source


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.txt", "{question} {gold_answer}", "llm_response"),
        ("a.txt", TEXT + "{question.__class__}", "question"),
        ("a.txt", TEXT + "{question}", "once each"),
        ("a.txt", TEXT + "{more}", "question"),
        ("a.txt", TEXT + "{", "question"),
        ("a.txt", "{question!r} {gold_answer} {llm_response:>9}", "question"),
        ("a.py", "V = 3", "V"),
        ("a.py", "V = " + "(" * 300, "a.py"),
        ("a.py", "V = V", "V"),
        ("a.txt", b"\xff", "a.txt"),
        ("a.txt", None, "a.txt"),
    ],
)
def test_what_is_no_prompt_is_refused(registered: Source, tmp_path: Path, name: str, text, named: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BadInput, match=named):
        find_prompt(str(path), "compass", unpublished=True)


def test_a_run_without_the_prompt_is_refused_before_any_work(
    registered: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
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
    assert main(["prompt", "--judge-prompt", str(path)]) == 0
    assert asked == []
    plan.find_judge(RunOptions("m", judge="opencompass/CompassVerifier-3B", judge_prompt=str(path)))
    assert asked == list(published.REVISIONS.items())
    monkeypatch.undo()
    eval_model.build(tmp_path / "judge", labels={"step": "base"})
    assert plan.find_judge(RunOptions("m", judge=str(tmp_path / "judge")))[1] == STAND_IN
    capsys.readouterr()
    assert main(["prompt", "--judge", str(tmp_path / "judge")]) == 0
    assert capsys.readouterr().out == f"{STAND_IN}\n"


def test_the_prompt_that_is_told_is_the_one_in_the_judges_folder(
    registered: Source, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    eval_model.build(tmp_path / "judge")
    (tmp_path / "judge" / "prompts.py").write_text(FILE)
    assert main(["prompt", "--judge", str(tmp_path / "judge")]) == 0
    assert capsys.readouterr().out == f"{Prompt(TEXT, str(registered))}\n"


def test_where_the_pinned_revision_cannot_be_had_another_is_named(registered: Source, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(TEXT)
    known = RunOptions("m", judge="opencompass/CompassVerifier-3B", judge_prompt=str(path))
    with pytest.raises(BadInput, match="--judge-revision"):
        plan.find_judge(known)
    with pytest.raises(BadInput) as refused:
        plan.find_judge(replace(known, judge_revision="main"))
    assert "--judge-revision" not in str(refused.value)
