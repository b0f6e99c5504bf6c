"""`stapo-eval grade --all-presets`: graders that see different things in the same responses, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stapo_eval.cli import main
from stapo_eval.grading import side_by_side
from stapo_results.errors import RecordError

OTHER = "lighteval 9.9"
# id of a problem -> (gold, its four responses)
PROBLEMS = {
    **{f"g{i}": ("100000", ["\\boxed{10^5}"] * 4) for i in range(3)},  # JustRL's rule does not see it
    **{f"l{i}": ("7", ["so " * 40 + "\\boxed{7}"] * 4) for i in range(3)},
    **{f"j{i}": ("5", ["It is five."] * 4) for i in range(3)},  # no box
    "r0": ("1", ["\\boxed{1}", "\\boxed{1}", "\\boxed{2}", "\\boxed{2}"]),
    "r1": ("1", ["\\boxed{2}", "\\boxed{1}", "\\boxed{2}", "\\boxed{2}"]),
}
# another grader calls four responses right: r0's third, a 2 that is 1; one of five without a box; and two of ours' 27
YES = ("r0/2", "j0/0", "l0/3", "g0/0")


def write(folder: Path) -> tuple[Path, Path]:
    """The responses, and another grader's verdicts on them."""
    lines = {f"{p}/{i}": (gold, text) for p, (gold, texts) in PROBLEMS.items() for i, text in enumerate(texts)}
    responses = [{"id": name, "answer": gold, "response": text} for name, (gold, text) in lines.items()]
    other = [{"id": name, "grader": OTHER, "rule": name in YES, "seconds": 1} for name in lines]
    files = folder / "responses.jsonl", folder / "other.jsonl"
    for file, rows in zip(files, (responses, other), strict=True):
        file.write_text("".join(json.dumps(x) + "\n" for x in rows))
    return files


def test_every_response_on_which_two_differ(tmp_path: Path) -> None:
    (responses, other), out = write(tmp_path), tmp_path / "graders.json"
    command = ["grade", "--input", f"{responses}", "--output", f"{out}", "--verdicts", f"{other}"]
    assert main(command) == 2
    assert main([*command, "--all-presets"]) == 0
    found = json.loads(out.read_text())
    # of 11 problems x 4: g and l are three each, r0 and r1 hold 2 and 1
    assert (found["responses"], found["without_answer"]) == (44, 12)
    assert {name: list(x.values()) for name, x in found["graders"].items()} == {
        "ours": [27, 0, 0, 0], "math-verify": [27, 0, 0, 0], "justrl": [15, 0, 0, 12], "strict": [27, 0, 0, 0],
        OTHER: [4, 1, 1, 25],
    }  # fmt: skip
    # all of g, all of l but one, one of j, and r's three right ones with the one that OTHER calls right
    assert len(found["cases"]) == 12 + 11 + 1 + 4
    by = {c["id"]: c for c in found["cases"]}
    assert (by["r0/2"]["answer"], by["r0/2"]["ending"], len(by["l0/0"]["ending"])) == ("2", "\\boxed{2}", 60)
    assert "100000" not in out.read_text()  # a gold answer is the benchmark's


def test_verdicts_on_other_responses_are_refused(tmp_path: Path) -> None:
    _, other = write(tmp_path)
    lines, ids = other.read_text().splitlines(True), [f"{p}/{i}" for p in PROBLEMS for i in range(4)]
    for change, found in (
        (lines[1:], "1 without a verdict, such as g0/0"),
        ([*lines, lines[0].replace("g0/0", "g9/0")], "1 unknown, such as g9/0"),
        ([*lines, lines[0].replace("true", "false")], "g0/0"),
        ([line.replace(OTHER, "math-verify") for line in lines], "math-verify"),
        ([], "no line"),
    ):
        other.write_text("".join(change))
        with pytest.raises(RecordError) as e:
            side_by_side.read_verdicts([other], ids)
        assert e.value.found == found
