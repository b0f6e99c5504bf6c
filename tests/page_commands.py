"""The commands that stand in the shell blocks of this repository's pages."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_NOW = {"CHANGELOG.md"}  # of earlier versions too


def tracked_pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines()]


def pages_with_commands() -> list[str]:
    return sorted({p.relative_to(ROOT).as_posix() for p in tracked_pages()} - NOT_NOW)


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """(language, lines) of each block, fenced or indented; an indented one has none, and begins after a blank line."""
    fence, lines, before = None, [], ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            if fence is not None or lines:
                yield fence or "", lines
            fence, lines = (line.removeprefix("```") if fence is None else None), []
        elif fence is not None or (line.startswith("    ") and (lines or not before)):
            lines.append(line)
        elif lines:
            yield "", lines
            lines = []
        before = line.strip()


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in the shell blocks of a page; a continued line is one."""
    shell = ["\n".join(lines) for language, lines in blocks(text) if language in ("", "bash")]
    for line in "\n".join(shell).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in (";", "&&", "|"):
                words.append(word)
            elif words:
                yield words
                words = []


def without_settings(words: list[str]) -> list[str]:
    """A command without environment variables, and without what starts it."""
    while words and (re.fullmatch(r"[A-Z_]+=\S*", words[0]) or words[0] in ("sbatch", "time")):
        words = words[1:]
    return words
