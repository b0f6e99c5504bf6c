"""Every command that a page names exists, with every option that the page gives it."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from test_pages import ROOT, tracked_pages

from stapo_results.errors import BadInput
from stapo_training.start.configuration import compose

PROGRAMS = {"stapo-train": "stapo_training.cli", "stapo-eval": "stapo_eval.cli", "stapo-repro": "stapo_repro.cli"}
NOT_NOW = {"CHANGELOG.md", "results/records/README.md", "results/records/labels/README.md"}  # of earlier versions too
BLOCK = re.compile(r"^```(?:bash)?\n(.*?)^```$|((?:^ {4}\S.*\n)+)", re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in the blocks of a page; what is no shell is left out."""
    for fenced, indented in BLOCK.findall(text):
        for line in (fenced or indented).replace("\\\n", " ").splitlines():
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


def faults(page: Path) -> list[str]:
    tox = (ROOT / "tox.ini").read_text()
    found = []
    for words in commands(page.read_text(encoding="utf-8")):
        start = next((i for i, w in enumerate(words) if Path(w).name in PROGRAMS), None)
        if words[:2] == ["tox", "-e"] and f"[testenv:{words[2]}]" not in tox:
            found.append(f"no tox environment {words[2]}")
        if start is None or len(words) < start + 2:
            continue
        program, command, rest = Path(words[start]).name, words[start + 1], words[start + 2 :]
        text = help_of(PROGRAMS[program], command)
        if not text or command.startswith("-"):
            found.append(f"{program} has no command {command}")
        if words[start : start + 2] == ["stapo-train", "run"] and not any(
            w == "..." or w.endswith(".yaml") for w in rest
        ):
            try:
                compose([w for w in rest if not w.startswith("--")])
            except BadInput as e:
                found.append(f"{shlex.join(words)}: {e.what}")
        given = {w.partition("=")[0] for w in rest[: rest.index("--") if "--" in rest else None] if w.startswith("--")}
        found += [f"{program} {command} has no {flag}" for flag in given if not re.search(rf"{flag}\b", text)]
    return found


@pytest.mark.parametrize("page", sorted({p.relative_to(ROOT).as_posix() for p in tracked_pages()} - NOT_NOW))
def test_the_commands_of_a_page_exist(page: str) -> None:
    assert faults(ROOT / page) == []


def test_a_command_and_an_option_that_are_not_there_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\nX=1 stapo-eval run --modle M --out O && stapo-repro tabels\ntox -e nothing\n```\n")
    assert faults(page) == [
        "stapo-eval run has no --modle",
        "stapo-repro has no command tabels",
        "no tox environment nothing",
    ]
