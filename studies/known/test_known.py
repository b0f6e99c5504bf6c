"""Published scores recomputed: the rules by hand, and a source made here, with its repository."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from stapo_eval.grading.presets import same_text
from stapo_results import store
from stapo_results.errors import BadInput, RecordError
from studies.command import run
from studies.known import scores
from studies.known.__main__ import known
from studies.known.recompute import by_numbers, fetch, find_source, known_scores, recompute
from studies.known.scores import KnownScores


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("x", "X", True),
        ("0.5", "50\\%", True),
        ("7", "0.07", True),
        ("1,000", "1000.05", True),
        ("1000", "1000.2", False),
        ("0", "0.0", True),
        ("1e-3", "0.1\\,", None),
        ("\\frac12", "0.5", None),
    ],
)
def test_numbers_agree_to_a_ten_thousandth_also_as_a_percentage(gold: str, answer: str, same: bool | None) -> None:
    assert by_numbers(gold, answer) is same


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("\\frac{1}{2}", "0.5", True),
        ("\\dfrac{17}{50}", "\\frac{17}{50}", True),
        ("90^\\circ", "90", True),
        ("\\$36", "36", True),
        ("\\text{east}", "east", False),
        ("\\frac{270}7\\text{ degrees}", "\\frac{270}{7}", False),
        ("x=5", "5", True),
        ("0.50", "0.5", False),
    ],
)
def test_hendrycks_rule_compares_texts(gold: str, answer: str, same: bool) -> None:
    assert same_text(gold, answer) is same


SOURCE = """
repository: some/where
commit: {commit}
folder: out
path: '(?P<stem>out/(?P<model>[^/]+)/(?P<benchmark>[^/]+))\\.jsonl'
layout: lines
scores: '\\g<stem>.json'
score: [acc]
percent: true
digits: 1
fields: {{problem: [question], gold: [gt], responses: [code], answers: [pred], verdicts: [score]}}
rule: numbers
benchmarks: {{sums: sums}}
"""
# question, the source's gold, response, what the source found in it, its verdict
ROWS = [
    ("1 + 1", "2", "It is \\boxed{2}.", "2", True),  # both say yes
    ("1 + 2", "3", "It is 3.", "3", True),  # no box
    ("1 + 3", "4", "\\boxed{4} or 5", "5", False),  # another answer is taken
    ("1 + 4", "6", "\\boxed{6}", "6", True),  # another gold answer
    ("1 + 5", "6", "\\boxed{6 \\text{ apples}}", "6 apples", False),  # another comparison
    ("9 + 9", "\\frac{36}{2}", "\\boxed{18}", "18", True),  # no problem of ours; algebra
]


def _git(folder: Path, *args: str) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", "-C", str(folder), *name, *args], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one file of responses, SOURCE.yaml beside it, and the benchmark `sums`."""
    folder = tmp_path / "clone"
    (folder / "out" / "model").mkdir(parents=True)
    rows = [
        {"question": q, "gt": gold, "code": [text], "pred": [found], "score": [says]}
        for q, gold, text, found, says in ROWS
    ]
    (folder / "out" / "model" / "sums.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "out" / "model" / "sums.json").write_text('{"acc": 66.7}')
    (folder / "README").write_text("other files do not count")
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "responses")
    commit = _git(folder, "rev-parse", "HEAD").strip()
    (tmp_path / "mine.yaml").write_text(SOURCE.format(commit=commit))
    (tmp_path / "sums.jsonl").write_text(
        "".join(json.dumps({"id": str(i), "problem": f" 1  +\n{i} ", "answer": str(1 + i)}) + "\n" for i in range(1, 6))
    )
    return folder


def test_each_disagreement_has_its_cause(clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = tmp_path / "mine.yaml"
    mine = source.read_text().replace("sums: sums", f"sums: {tmp_path / 'sums.jsonl'}")
    source.write_text(mine)
    found = recompute(str(source), str(clone), "", str(tmp_path / "out"), ("ours", "strict"))
    assert store.read_json(tmp_path / "out" / "mine.json", KnownScores) == found
    (file,) = found.files
    assert (file.problems, file.joined, file.repeats, file.one_text) == (6, 5, 1, 0)
    assert file.published == pytest.approx(0.667)
    assert (file.by_rule, file.undecided, file.contradicted) == (3 / 6, 2, 0)
    assert not file.to_the_digit  # algebra decides one of the four
    assert file.theirs == 3 / 5
    assert file.scores == {"ours": 3 / 5, "strict": 2 / 5}
    assert file.accepted == {"another answer is taken": 1, "another comparison": 1}
    assert file.refused == {"no box": 1, "another gold answer": 1}
    assert dict(zip(*scores.scores(found), strict=True)).items() >= {"to the digit": "0", "joined": "5 of 6"}.items()
    same = [file.model_copy(update={"to_the_digit": True, "published": x}) for x in (0.0, 0.5, 0.7)]
    (note, *_) = scores.notes(found.model_copy(update={"files": [file, *same]}))
    assert re.findall(r"(\d+) (?:come|are)", note) == ["3", "2"]  # to the digit, and not 0
    assert scores.causes(found)[1:] == [
        ["another answer is taken", "1", "0"],
        ["another comparison", "1", "0"],
        ["another gold answer", "0", "1"],
        ["no box", "0", "1"],
    ]


def test_the_command_leaves_a_record(clone: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "mine.yaml", tmp_path / "out"
    source.write_text(source.read_text().replace("sums: sums", f"sums: {tmp_path / 'sums.jsonl'}"))
    with pytest.raises(SystemExit) as ended:
        run(known, "studies.known", "grade", [str(source), "--clone", str(clone), "--out", str(out)])
    assert ended.value.code == 0
    assert store.read_json(out / "mine.json", KnownScores).files[0].scores["ours"] == 3 / 5


def test_only_repeats_of_one_text_take_the_published_errors_away(clone: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.yaml"
    source.write_text(source.read_text().replace("sums: sums", f"sums: {tmp_path / 'sums.jsonl'}"))
    found = recompute(str(source), str(clone), "", str(tmp_path / "out"), ("ours",))
    for one_text, none in ((6, True), (0, False)):
        file = found.files[0].model_copy(update={"repeats": 2, "one_text": one_text, "published_se": 0.01})
        assert ("are none" in scores.notes(found.model_copy(update={"files": [file]}))[-1]) is none


def test_a_source_is_fetched_at_its_commit(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        _git(clone, "config", allowed, "true")
    _git(clone, "commit", "-q", "--allow-empty", "-m", "later")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, source = find_source(str(tmp_path / "mine.yaml"))
    folder = fetch(source, f"file://{clone}")
    assert fetch(source, "file:///nowhere") == folder  # what is there is not asked for again
    source = source.model_copy(update={"benchmarks": {"sums": str(tmp_path / "sums.jsonl")}})
    assert known_scores("mine", source, folder, None, ("ours",)).files[0].joined == 5


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ("layout: lines|layout: rows", RecordError, "layout"),
        ("out/(?P<model>|in/(?P<model>", BadInput, "in/"),
        ("commit: |commit: 00000000000000000000 #", RecordError, "commit"),
    ],
)
def test_a_wrong_source_is_refused(
    clone: Path, tmp_path: Path, change: str, error: type[Exception], named: str
) -> None:
    source, (old, new) = tmp_path / "mine.yaml", change.split("|")
    source.write_text(source.read_text().replace(old, new))
    with pytest.raises(error, match=named):
        recompute(str(source), str(clone), "", str(tmp_path / "out"), ("ours",))


def test_a_clone_without_the_commit_and_an_unknown_source_are_refused(clone: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--clone"):
        recompute("skythought", str(clone), "", str(tmp_path / "out"), ("ours",))
    with pytest.raises(BadInput, match="evalchemy"):
        find_source("evalchmy")
