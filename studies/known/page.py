"""The page of published scores that were recomputed."""

from __future__ import annotations

from pathlib import Path

from stapo_repro.text import code_shown, grid
from stapo_results.store import read_json
from studies import command
from studies.known import scores

_HEAD = """Public responses with published scores, graded again by `python -m studies.known`
([how](../../docs/evaluation.md#known-scores)). "To the digit": how many published
scores the source's rule, restated here, gives. "Joined": how many problems of a file have the very text of one of ours.
The further scores are of these alone: means over models, in percent, by the source's verdicts, then by our presets
against our own gold answers. "Ours alone", "source alone": responses that one side alone calls right."""


def add(files: dict[Path, bytes]) -> None:
    """Add the page of the committed records."""
    lines = ["# Published scores, recomputed", "", _HEAD, ""]
    for path in sorted((command.RECORDS / "known").glob("*.json")):
        found = read_json(path, scores.KnownScores)
        code = code_shown(found.code_commit, bool(found.code_dirty))
        made = f"Record: [known/{path.name}](../records/known/{path.name}), code {code}."
        lines += [f"## {found.source}", "", *(f"- {note}" for note in (*scores.notes(found), made)), ""]
        for head, *rows in (scores.scores(found), scores.causes(found)):
            lines += [*grid(head, rows), ""]
    files[command.TABLES / "known.md"] = "\n".join(lines).encode()
