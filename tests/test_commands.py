"""Every command that a shell block of a page names exists, with every option and setting that the page gives it."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_pages import ROOT, tracked_pages

from stapo_results.errors import BadInput
from stapo_training.start.configuration import compose

PROGRAMS = {"stapo-train": "stapo_training.cli", "stapo-eval": "stapo_eval.cli", "stapo-repro": "stapo_repro.cli"}
NOT_NOW = {"CHANGELOG.md"}  # of earlier versions too


def code_lines(text: str) -> str:
    """The lines of shell blocks, fenced or indented; a continued line is one."""
    found, fence = [], None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = line.removeprefix("```") if fence is None else None
        elif fence in ("", "bash") or (fence is None and line.startswith("    ")):
            found.append(line)
    return "\n".join(found).replace("\\\n", " ")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in the shell blocks of a page."""
    for line in code_lines(text).splitlines():
        for part in re.split(r"&&|\|(?!\|)|;", line):
            with contextlib.suppress(ValueError):  # Python, JSON, prose
                words = shlex.split(part, comments=True)
                while words and (re.fullmatch(r"[A-Z_]+=\S*", words[0]) or words[0] in ("sbatch", "time")):
                    words = words[1:]
                yield words


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
    for words in commands(page.read_text(encoding="utf-8")):
        if words[:2] == ["tox", "-e"] and f"[testenv:{words[2]}]" not in tox:
            found.append(f"no tox environment {words[2]}")
        if words[:2] == ["python", "-m"] and words[2].startswith("studies") and find_spec(words[2]) is None:
            found.append(f"no module {words[2]}")
        start = next((i for i, w in enumerate(words) if Path(w).name in PROGRAMS), None)
        if start is not None and len(words) > start + 1:
            found += wrong_words(Path(words[start]).name, words[start + 1], words[start + 2 :])
    return found


@pytest.mark.parametrize("page", sorted({p.relative_to(ROOT).as_posix() for p in tracked_pages()} - NOT_NOW))
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
