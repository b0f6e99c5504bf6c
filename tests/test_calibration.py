"""`stapo-repro calibrate`: published numbers as transcribed, differences and verdicts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro import calibrate
from stapo_repro.cli import main
from stapo_repro.labels import PAPER_BENCHMARKS
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput

MODEL = "hbx/JustRL-DeepSeek-1.5B"


def values(model: str, benchmark: str) -> dict[str, tuple]:
    rows = calibrate.published(model)
    return {r["source"]: (r["published"], r["sd"], r["n"]) for r in rows if r["benchmark"] == benchmark}


def test_spot_values_of_every_source():
    assert values(MODEL, "aime24") == {"justrl-figure": (58.59, None, None), "justrl": (52.6, None, 32),
                                       "sober": (43.3, 5.4, 10)}  # fmt: skip
    assert values("JustRL-Nemotron-1.5B", "olympiadbench") == {"justrl": (76.59, None, 4), "sober": (73.0, 0.6, 3)}
    # one checkpoint of two names and spellings
    for name in ("DeepSeek-R1-Distill-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"):
        assert values(name, "math500") == {"justrl": (84.9, None, 4), "sober": (84.9, 0.3, 3)}


def test_the_whole_file():
    rows, totals = {"justrl-figure": 1, "justrl": 7, "sober": 66, "skyrl-training": 2}, {}
    for s in calibrate.load()["sets"]:
        assert len({r["model"] for r in s["rows"]}) == len(s["rows"]) == rows[s["name"]]
        assert {b for r in s["rows"] for b in r["values"]} <= PAPER_BENCHMARKS.keys()
        numbers = [v for r in s["rows"] for v in r["values"].values()]
        assert {len(v) for v in numbers} == {1 if s["spread"] == "not printed" else 2}
        totals[s["name"]] = [round(sum(column), 2) for column in zip(*numbers, strict=True)]
    known = {"justrl-figure": [58.59], "justrl": [2627.21], "sober": [20744.7, 1052.5], "skyrl-training": [39.8]}
    assert totals == known


def evaluated(root: Path, benchmark: str = "aime24", right: int = 17, n: int = 32, **changed) -> Path:
    """`right` of n samples of every problem are right: 17 of 32 is 53.125 %."""
    spec = registry()[benchmark]
    rows = changed.pop("rows", ["1" * right + "0" * (n - right)] * spec.rows)
    given = {"size": MODEL, "step": "base", "benchmark_sha256": spec.golds_sha256, "max_tokens": 31744,
             "grader": "justrl, x", "scored_by": "rule+judge",
             "judge": "opencompass/CompassVerifier-3B r, mode x"}  # fmt: skip
    return synthetic.cell(root, "external", benchmark, "t0.7", rows, **(given | changed)).parents[1]


def compared(folder: Path) -> dict[str, calibrate.Row]:
    rows = calibrate.compare(calibrate.published(MODEL), calibrate.own_cells([folder], MODEL))
    assert {r["verdict"] for r in rows if "ours" not in r} == {"not run"}
    return {r["source"]: r for r in rows if "ours" in r}


def test_a_score_beside_three_published_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "MARGIN", 6.0)
    found = compared(evaluated(tmp_path))
    # each problem's variance 17 x 15 / 32 / 31, so ours 0.257056 / 32 / 30 = 0.000267767; theirs at most 0.526 x 0.474
    # / 32 / 30 = 0.000259713
    same = found["justrl"]
    assert (same["ours"], same["points"]) == (53.125, pytest.approx(0.525))
    assert same["se"] == pytest.approx(2.29669, abs=1e-4)
    assert same["verdict"] == "agrees"
    monkeypatch.setattr(calibrate, "MARGIN", 4.0)
    assert compared(tmp_path)["justrl"]["verdict"] == "cannot tell"  # its interval ends beyond 4 points
    # theirs 5.4^2 / 10 = 2.916 points^2, ours 2.67767: SE 2.36509
    other = found["sober"]
    assert (other["points"], other["se"]) == (pytest.approx(9.825), pytest.approx(2.36509, abs=1e-4))
    assert (other["verdict"], other["p_holm"]) == ("differs", pytest.approx(2 * other["p"]))  # of two tests the smaller
    figure = [found["justrl-figure"][k] for k in ("points", "verdict", "low")]
    assert figure == [pytest.approx(-5.465), "cannot tell", None]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"variant": "only the first 6 of 30 problems"}, "only the first 6"),
        ({"benchmark_sha256": "1" * 64}, "other gold answers"),
        ({"n": 1, "right": 1}, "one sample"),
        ({"rows": ["1100"] * 29 + ["11-0"]}, "1 samples missing"),
    ],
)
def test_what_cannot_be_compared_has_no_verdict(tmp_path, changed, why):
    row = compared(evaluated(tmp_path, **changed))["justrl"]
    assert (row["points"] is None) == (row["ours"] is None) == ("rows" in changed)
    assert (row["verdict"], row["low"], row["p"]) == ("cannot tell", None, None)
    assert why in row["why"]


def test_of_several_models_the_named_one_is_taken(tmp_path):
    evaluated(tmp_path)
    evaluated(tmp_path, right=3, size="other")
    (cell,) = calibrate.own_cells([tmp_path], MODEL)
    assert cell.record.cell.size == MODEL
    with pytest.raises(BadInput, match="other"):
        calibrate.own_cells([tmp_path], "LIMO")


@pytest.mark.parametrize("flags", [[], ["acme/none-such"], [MODEL, "--from", "nowhere"]])
def test_what_the_command_refuses(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", *flags])
    assert ("LIMO" in capsys.readouterr().err) == (MODEL not in flags)  # an unknown model lists those that are known


def test_the_command_writes_what_it_shows(tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["calibrate", MODEL, "--from", str(evaluated(tmp_path / "run")), "--out", str(tmp_path / "o")])
    data, page = json.loads((tmp_path / "o/calibration.json").read_text()), (tmp_path / "o/calibration.md").read_text()
    assert [r["points"] for r in data["rows"] if "ours" in r] == [-5.465, 0.525, 9.825]
    assert "| sober | 53.12 (32) | 43.3 ± 5.4 (10) | +9.82 \\[+5.01, +14.64\\] | <0.001 | differs |" in page
    assert page in capsys.readouterr().out
