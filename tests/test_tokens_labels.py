"""Labels of tokens: the sample, the round trip through CSV, what a bad file is told; intervals by hand."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path

import pytest
import token_logs as logs
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")
from stapo_repro import cli
from stapo_repro.tokens import labelling, material, quadrants, taxonomy
from stapo_results.errors import BadInput
from stapo_results.statistics.estimates import wilson

SILENCED = [logs.row(position=i) for i in range(8)]
KEPT = [logs.row(position=20 + i, entropy=1.0, silenced=False) for i in range(3)]
FREQUENT = logs.row(position=40, rare=False, silenced=False, logprob=-1.0)


@pytest.fixture
def log(tmp_path: Path) -> material.Material:
    return material.load(logs.write(tmp_path / "run", [*SILENCED, FREQUENT, *KEPT]))


def lines(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def filled(log: material.Material, file: Path, categories: list[str], n: int = 6) -> Path:
    """The exported sample with these categories in its lines."""
    made = lines(labelling.export(log, n, 0))
    with open(file, "w", newline="", encoding="utf-8-sig") as f:
        writer = csv.writer(f)
        writer.writerow(labelling.COLUMNS)
        for line, category in zip(made, categories, strict=True):
            writer.writerow((line | {"category": category}).values())
    return file


def test_a_seed_below_zero_is_refused(tmp_path: Path):
    run = logs.write(tmp_path / "run", [logs.row()])
    with pytest.raises(BadInput, match="a seed is a whole number"):
        labelling.export(material.load(run), 1, -1)


def test_wilson_by_hand():
    # z^2 = 3.8415; 5 of 10: 0.5 -+ 1.96 sqrt(0.025 + 3.8415 / 400) / 1.38415
    assert wilson(5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)
    low, high = wilson(0, 10)
    assert low == 0
    assert high == pytest.approx(3.841459 / 13.841459)
    with pytest.raises(ValueError, match="share of nothing"):
        wilson(0, 0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_mirrors_and_holds_the_share(pair: tuple[int, int]):
    hits, n = pair
    low, high = wilson(hits, n)
    assert 0 <= low <= hits / n <= high <= 1
    assert wilson(n - hits, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_a_sample_is_half_and_half_seeded_and_of_rare_tokens_alone(log: material.Material):
    chosen = labelling.sample(log, 6, 0)
    assert len(set(chosen.tolist())) == 6
    assert log.rows["rare"][chosen].all()
    assert log.below[chosen].sum() == 3
    assert labelling.sample(log, 6, 0).tolist() == chosen.tolist()
    assert labelling.sample(log, 6, 1).tolist() != chosen.tolist()
    # three are kept, so that of eight five are silenced; there are eleven in all
    assert log.below[labelling.sample(log, 8, 0)].sum() == 5
    assert sorted(labelling.sample(log, 100, 0).tolist()) == [*range(8), 9, 10, 11]


def test_every_token_of_a_half_is_as_likely(log: material.Material):
    counts = Counter(i for seed in range(2000) for i in labelling.sample(log, 2, seed).tolist())
    # one of 8 and one of 3 a time: 250 and 667 expected, four standard deviations are 59 and 84
    assert all(abs(counts[i] - 250) < 60 for i in range(8))
    assert all(abs(counts[i] - 667) < 85 for i in (9, 10, 11))


def test_the_sample_says_what_a_reader_needs(log: material.Material):
    data = labelling.export(log, 11, 0)
    assert data.startswith(
        b'\xef\xbb\xbf"id","token_id","context","token","top_5","probability_percent","entropy_nats","category"\n'
    )
    one = next(line for line in lines(data) if line["id"] == "1:1:0:5:p0")
    assert one["context"] == "What is 12 + 30?⟦7⟧⏎⏎4"
    assert one["token"] == "7"
    assert one["top_5"].startswith("3 90.48 % · 4 4.98 %")
    assert one["probability_percent"] == "0.0911882"
    assert one["category"] == ""


def test_labels_come_back_by_quadrant(log: material.Material, tmp_path: Path):
    file = tmp_path / "labels.csv"
    order = [log.below[i] for i in labelling.sample(log, 6, 0)]
    # of the three silenced ones: two spurious, one not; of the three kept ones: one not spurious, one empty, one error
    mine = {
        True: ["uncommon_syntax", "formatting_error", "not_spurious"],
        False: ["not_spurious", "", "formatting_error"],
    }
    filled(log, file, [mine[bool(side)].pop(0) for side in order])
    found = labelling.read(log, file)
    assert found.counts == {
        True: Counter(uncommon_syntax=1, formatting_error=1, not_spurious=1),
        False: Counter(not_spurious=1, formatting_error=1),
    }
    assert (found.empty, len(found.by_id)) == (1, 5)
    sheet = taxonomy.build(log, quadrants.build(log), found)
    risk = [row[3] for row in sheet.rows]
    assert risk[0] == "not judged: only rare tokens are labelled"
    # 1 of 2, Wilson: (0.0945, 0.9055); 2 of 3: (0.2077, 0.9385)
    assert risk[2].startswith("50.0 % [9.5, 90.5] of 2 read; uncommon syntax 0.0 % [0.0, 65.8]")
    assert risk[3].startswith("66.7 % [20.8, 93.9] of 3 read; uncommon syntax 33.3 % [6.1, 79.2]")
    assert sheet.records[3]["uncommon_syntax"] == 1
    assert sheet.records[3]["labelled"] == 3


def test_without_labels_the_column_says_so(log: material.Material):
    sheet = taxonomy.build(log, quadrants.build(log), None)
    assert [row[3] for row in sheet.rows[2:]] == ["not judged: export labels"] * 2


def test_the_command_goes_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = logs.write(tmp_path / "run", [*SILENCED, *KEPT])
    file = tmp_path / "labels.csv"
    file.write_bytes(labelling.export(material.load(run), 4, 0))
    with pytest.raises(SystemExit) as end:
        cli.main(["tokens", str(run), "--export-labels", str(file)])
    assert end.value.code == 2
    assert "is there already, and may hold labels" in capsys.readouterr().err
    file.write_bytes(file.read_bytes().replace(b',""\n', b',"hallucination_or_math_error"\n'))
    with pytest.raises(SystemExit) as end:
        cli.main(["tokens", str(run), "--labels", str(file)])
    assert end.value.code == 0
    page = (run / "tokens" / "index.html").read_text()
    assert "labels.csv: 4 labels, 0 lines without one" in page
    assert "labelled hallucination or math error" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: t.replace("not_spurious", "harmless", 1),
            ["line 2: no such category", "found:    harmless", "formatting_error"],
        ),
        (lambda t: t + t.splitlines()[1] + "\n", ["line 8: a token is labelled twice", "also on line 2"]),
        (lambda t: t.replace("1:1:0:", "9:1:0:"), ["line 2: this token is not in the log", "9:1:0:"]),
        (lambda t: t.replace(f",{SILENCED[0]['token']},", ",3,"), ["line 2: this token is not in the log", "token 3"]),
        (lambda t: t.replace("1:1:0:", "=1:"), ["line 2: this token is not in the log", "found:    =1:"]),
        (lambda t: t.replace(f",{SILENCED[0]['token']},", ",x,"), ["line 2: token_id is no number"]),
        (lambda t: t.replace(",", ";"), ["line 1: columns are missing", "category", "with commas"]),
        (lambda t: "", ["line 1: columns are missing", "an empty file"]),
        (lambda t: t.replace("not_spurious", "\udcff"), ["not UTF-8"]),
        (lambda t: re.sub(r"0:\d+:p0", "0:40:p0", t, count=1), ["line 2: this token is not in the log"]),
        (lambda t: t + '1:1,"' + "x" * 200_000, ["not CSV"]),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(log: material.Material, tmp_path: Path, change, said: list[str]):
    file = filled(log, tmp_path / "labels.csv", ["not_spurious"] * 6)
    text = change(file.read_text(encoding="utf-8-sig"))
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput) as e:
        labelling.read(log, file)
    for part in said:
        assert part in str(e.value)
    assert "labels.csv" in str(e.value)
    assert e.value.next_step


def test_no_file_and_no_sample(log: material.Material, tmp_path: Path):
    with pytest.raises(BadInput, match="no such file of labels"):
        labelling.read(log, tmp_path / "none.csv")
    with pytest.raises(BadInput, match="a sample needs a token"):
        labelling.export(log, 0, 0)
    with pytest.raises(BadInput, match="nothing to label"):
        labelling.export(material.load(logs.write(tmp_path / "empty", [FREQUENT])), 5, 0)


def test_a_prompt_may_be_called_anything(tmp_path: Path):
    names = ["=1+1", 'a:b\n,c"', "'@x", ""]
    log = material.load(logs.write(tmp_path, [logs.row(prompt_id=n) for n in names]))
    file = filled(log, tmp_path / "l.csv", ["not_spurious"] * 4, n=4)
    found = labelling.read(log, file)
    assert sorted(found.by_id) == sorted(f"1:1:0:5:{n}" for n in names)


def test_a_prompt_drawn_twice_is_labelled_once(tmp_path: Path):
    rows = [logs.row(), logs.row(), logs.row(position=6), logs.row(position=6, token=logs.ids("8")[0])]
    log = material.load(logs.write(tmp_path, rows))
    file = filled(log, tmp_path / "l.csv", ["not_spurious"] * 2, n=4)
    assert sorted(labelling.read(log, file).by_id) == ["1:1:0:5:p0", "1:1:0:6:p0"]
