"""`stapo-eval grade --all-presets`: graders that see different things in the same responses, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stapo_eval.cli import main
from stapo_eval.grading.file import read_verdicts
from stapo_results.errors import RecordError

OTHER = "lighteval 9.9"
PROBLEMS = {
    "g": ("100000", ["\\boxed{10^5}"] * 3),  # JustRL's rule does not see it
    "l": ("7", ["so " * 40 + "\\boxed{7}"] * 3),
    "j": ("5", ["It is five."] * 3),  # no box
    "r": ("1", ["\\boxed{1}", "\\boxed{1}", "\\boxed{2}", "\\boxed{2}"]),
}
# another grader calls four responses right: a 2 that is 1, one without a box, and two of ours' eight
YES = ("r/2", "j/0", "l/1", "g/0")


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
    assert (found["responses"], found["without_answer"]) == (13, 3)
    assert {name: list(x.values()) for name, x in found["graders"].items()} == {
        "ours": [8, 0, 0, 0], "math-verify": [8, 0, 0, 0], "justrl": [5, 0, 0, 3], "strict": [8, 0, 0, 0],
        OTHER: [4, 1, 1, 6],
    }  # fmt: skip
    # all of g, all of l but one, one of j, and r's two right ones with the one that OTHER calls right
    assert len(found["cases"]) == 3 + 2 + 1 + 3
    case = {c["id"]: c for c in found["cases"]}["r/2"]
    assert (case["answer"], case["ending"]) == ("2", "\\boxed{2}")
    assert max(len(c["ending"]) for c in found["cases"]) == 60
    assert "100000" not in out.read_text()  # a gold answer is the benchmark's


def test_half_a_character_is_no_end_of_the_report(tmp_path: Path) -> None:
    """Of a response on which two differ, and of its id: JSON can spell it, no file can hold it."""
    line = {"id": "\ud83d", "answer": "100000", "response": "so \\boxed{10^5} \ud83d"}
    (tmp_path / "r.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["grade", "--all-presets", "--input", f"{tmp_path / 'r.jsonl'}", "--output", f"{tmp_path / 'o'}"]) == 0
    (case,) = json.loads((tmp_path / "o").read_text())["cases"]
    assert (case["id"], case["ending"][-1]) == ("\ufffd", "\ufffd")


def test_ids_that_repeat_are_refused_where_others_name_responses_by_them(tmp_path: Path, capsys) -> None:
    responses, other = write(tmp_path)
    responses.write_text(responses.read_text().replace('"r/1"', '"r/2"'))
    command = ["grade", "--all-presets", "--input", f"{responses}", "--output", f"{tmp_path / 'o'}"]
    assert main([*command, "--verdicts", f"{other}"]) == 2
    assert "found:    r/2" in capsys.readouterr().err


def test_verdicts_on_other_responses_are_refused(tmp_path: Path) -> None:
    _, other = write(tmp_path)
    lines, ids = (
        other.read_text().splitlines(True),
        [f"{p}/{i}" for p, (_, t) in PROBLEMS.items() for i in range(len(t))],
    )
    for change, found in (
        (lines[1:], "1 without a verdict, such as g/0"),
        ([*lines, lines[0].replace("g/0", "g/9")], "1 unknown, such as g/9"),
        ([*lines, lines[0].replace("true", "false")], "g/0"),
        ([line.replace(OTHER, "math-verify") for line in lines], "math-verify"),
        ([], "no line"),
    ):
        other.write_text("".join(change))
        with pytest.raises(RecordError) as e:
            read_verdicts([other], ids)
        assert e.value.found == found
