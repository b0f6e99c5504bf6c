"""Every command that a shell block of a page names exists, with every option and setting that the page gives it."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import runpy
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from page_commands import ROOT, commands, pages_with_commands, without_settings

from stapo_results.errors import BadInput
from stapo_training.start.configuration import compose

PROGRAMS = {"stapo-train": "stapo_training.cli", "stapo-eval": "stapo_eval.cli", "stapo-repro": "stapo_repro.cli"}


@cache
def help_of(module: str, *words: str) -> str:
    """What a command's --help prints; "" where there is no such command."""
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        patched.setattr("sys.argv", [module, *words, "--help"])
        patched.setenv("COLUMNS", "200")  # no name is broken at a line's end
        importlib.import_module(module).main()
    return out.getvalue()


def wrong_words(program: str, command: str, rest: list[str]) -> list[str]:
    """What is wrong with a command of the suite."""
    text = help_of(PROGRAMS[program], command)
    if not text or command.startswith("-"):
        return [f"{program} has no command {command}"]
    flags = sorted({w.partition("=")[0] for w in rest if w.startswith("--")})
    found = [f"{program} {command} has no {flag}" for flag in flags if not re.search(rf"{flag}(?![\w-])", text)]
    settings = [w for w in rest if not w.startswith("--")]
    if (program, command) == ("stapo-train", "run") and not any(w == "..." or w.endswith(".yaml") for w in settings):
        try:
            compose(settings)
        except BadInput as e:
            found.append(f"{program} {command} {shlex.join(settings)}: {e.what}")
    return found


def faults(page: Path) -> list[str]:
    tox, found = (ROOT / "tox.ini").read_text(), []
    for words in map(without_settings, commands(page.read_text(encoding="utf-8"))):
        if words[:2] == ["tox", "-e"] and f"[testenv:{words[2]}]" not in tox:
            found.append(f"no tox environment {words[2]}")
        if words[:2] == ["python", "-m"] and words[2].startswith("studies") and find_spec(words[2]) is None:
            found.append(f"no module {words[2]}")
        start = next((i for i, w in enumerate(words) if Path(w).name in PROGRAMS), None)
        if start is not None and len(words) > start + 1:
            found += wrong_words(Path(words[start]).name, words[start + 1], words[start + 2 :])
    return found


@pytest.mark.parametrize("page", pages_with_commands())
def test_the_commands_of_a_page_exist(page: str) -> None:
    assert faults(ROOT / page) == []


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\nX=1 stapo-eval run --modle M --data D --out O && stapo-repro tabels\ntox -e nothing\n"
        "python -m studies.nope\n```\n\n    bin/stapo-train run method=stapo size=mini run.stepz=2\n"
    )
    *first, last = faults(page)
    assert first == [
        "stapo-eval run has no --data", "stapo-eval run has no --modle", "stapo-repro has no command tabels",
        "no tox environment nothing", "no module studies.nope",
    ]  # fmt: skip
    assert "stepz" in last


@pytest.mark.parametrize(("words", "code"), [
    ("run --model /none --n 1 --n=2", "twice"), ("tables --records a --records b", "twice"),
    ("run --model /none --vllm a=1 --vllm b=2", "--vllm is for the engine vllm"),
])  # fmt: skip
def test_a_flag_given_twice_is_refused_where_the_last_would_win(words: str, code: str, capsys) -> None:
    main = importlib.import_module("stapo_repro.cli" if words.startswith("tables") else "stapo_eval.cli").main
    with contextlib.suppress(SystemExit):
        assert main(words.split()) == 2
    assert code in capsys.readouterr().err


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / name))


def test_every_command_of_every_page_has_a_class() -> None:
    assert [(c.page, c.text) for c in script("pages")["classed"](pages_with_commands()) if not c.kind] == []


def test_every_environment_of_tox_is_among_those_that_run_each_night() -> None:
    listed = re.findall(r"^\[testenv:(.+)\]$", (ROOT / "tox.ini").read_text(), re.MULTILINE)
    listed.remove("train-{1.7b,8b,14b}")
    assert {*listed, "train-1.7b", "train-8b", "train-14b"} == {*script("environments")["SHORT"]}
