"""The one display of long commands, the one format of durations, and commands where packages are not installed."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys

import pytest

from stapo_results import terminal
from stapo_results.terminal import Display, duration, run_main


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (4.56, "4.6 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (3 * 3600 + 20 * 60, "3 h 20 min"),
        (24 * 3600 - 20, "1 d 0 h"),
        (52 * 3600, "2 d 4 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_than_on_a_terminal_whole_lines_at_most_one_a_minute(clock: list[float]) -> None:
    stream, made = io.StringIO(), []

    def line() -> str:
        made.append(clock[0])
        return f"at {clock[0]:.0f}"

    with Display(stream) as display:
        assert display.live is None
        for seconds in (1, 59, 60, 61, 119, 121):
            clock[0] = 1000.0 + seconds
            display.show(line, share=0.5)
        display.say("a line that stays")
    assert stream.getvalue() == "at 1060\nat 1121\na line that stays\n"
    assert made == [1060.0, 1121.0], "a line is made only when it is shown"


def test_a_line_beside_a_bar_is_whole_and_what_looks_like_markup_is_shown_as_it_is(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # not by setenv: datasets' map leaves a copy of os.environ in its place, and rich goes on to read the former one
    monkeypatch.setattr("rich.console.Console._environ", {"TERM": "xterm", "COLUMNS": "80"})
    stream, line = io.StringIO(), f"[red]model[/red] :smile: {'x' * 40}"
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with Display(stream) as display:
        clock[0] += 1
        display.show(line, share=0.5)
        display.say("[bold]x[/bold]", "bold red")
    assert line in stream.getvalue()
    assert "[bold]x[/bold]" in stream.getvalue()


HEAVY = ["torch", "transformers", "verl", "ray", "vllm", "matplotlib", "pandas", "sympy"]
COMMANDS = """
import contextlib, importlib, io, json, sys

refused, module, commands = json.loads(sys.argv[1])
asked, ends = [], []

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name in refused:
            asked.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def end(words):
    sys.argv, said = ["PROGRAM", *words], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main()
        except SystemExit as e:
            code = e.code
    ends.append([*words, code])
    return said.getvalue()

sys.meta_path.insert(0, Refuses())
main = importlib.import_module(module).main
if commands:
    said = "".join(map(end, commands))
else:  # every one that the program names where it refuses a word
    said = end(["no-such-command"])
    listed = said.partition("expected: ")[2].splitlines()[0]
    for name in listed.split(", "):
        end([name, "--help"])
print(json.dumps([ends, asked, said]))
"""


def ends_of(module: str, refused: list[str], *commands: list[str]) -> tuple[list[list], list[str], str]:
    """([words, exit code] of each command, packages that were asked for and refused, what the commands said)."""
    given = json.dumps([refused, module, commands])
    done = subprocess.run([sys.executable, "-c", COMMANDS, given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("module", "some"),
    [
        ("stapo_training.cli", {"run", "methods", "check", "probe"}),
        ("stapo_eval.cli", {"run", "grade", "judge", "compare"}),
        ("stapo_repro.cli", {"run", "tables", "figures", "collect"}),
    ],
)
def test_help_of_every_command_asks_for_no_large_package(module: str, some: set[str]) -> None:
    (unknown, *helps), asked, _ = ends_of(module, HEAVY)
    assert unknown == ["no-such-command", 2]
    assert some <= {name for name, _, _ in helps}
    assert [h for h in helps if h[1:] != ["--help", 0]] == []
    assert asked == []


@pytest.mark.parametrize(
    ("module", "package", "extra", "command"),
    [
        ("stapo_training.cli", "hydra", "train", ["run", "method=stapo", "run.out=unused"]),
        ("stapo_eval.cli", "math_verify", "grade", ["grade", "--input", "unused", "--output", "unused"]),
        ("stapo_repro.cli", "matplotlib", "tables", ["figures", "--check"]),
    ],
)
def test_a_package_that_is_not_installed_is_bad_input(module: str, package: str, extra: str, command: list) -> None:
    (done,), _, said = ends_of(module, [*HEAVY, package], command)
    assert done == [*command, 2]
    assert f"package {package} is" in said
    assert f".[{extra}]" in said


def test_an_error_is_said_where_the_reader_of_the_output_has_gone() -> None:
    code = """
import time
from stapo_results.errors import BadInput
from stapo_results.terminal import run_main

def main():
    time.sleep(0.5)
    print("text")
    raise BadInput("what is wrong")

raise SystemExit(run_main(main))
"""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        p.stdout.close()
        assert ("what is wrong" in p.stderr.read(), p.wait()) == (True, 2)


def test_what_a_user_may_not_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def denied() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/a/.lock")

    assert run_main(denied) == 1
    assert "found:    /a/.lock: Permission denied" in capsys.readouterr().err
