"""`stapo-repro calibrate`: published numbers as transcribed, verdicts by hand, planted causes found by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import planted_run
import pytest
import synthetic_records as synthetic

from stapo_repro.calibration import beside, causes, judging, page, published, regrade
from stapo_repro.cli import main
from stapo_results.benchmarks import registry
from stapo_results.errors import BadInput
from stapo_results.statistics.fixed import Fixed

MODEL = "hbx/JustRL-DeepSeek-1.5B"


SETTING = published.Setting(
    temperature=0.7, top_p=0.9, max_tokens=32, grader="justrl", judge="none", judge_mode="none", prompt=None
)
THEIRS = published.Published("s", "evaluation", "m", "toy", 50.0, None, 2, "not printed", False, SETTING)


def values(model: str, benchmark: str) -> dict[str, tuple]:
    return {p.source: (p.value, p.sd, p.n) for p in published.rows_of(model) if p.benchmark == benchmark}


# the transcribed numbers


def test_spot_values_of_every_source():
    assert values(MODEL, "aime24") == {"justrl-figure": (58.59, None, None), "justrl": (52.6, None, 32),
                                       "sober": (43.3, 5.4, 10)}  # fmt: skip
    assert values("JustRL-Nemotron-1.5B", "olympiadbench") == {"justrl": (76.59, None, 4), "sober": (73.0, 0.6, 3)}
    assert values("LIMO", "minerva") == {"sober": (45.2, 2.3, 3)}
    assert values("VibeThinker-1.5B", "aime25") == {"sober": (71.3, 7.7, 10)}
    assert values("Qwen3-1.7B-Base + DAPO", "aime24") == {"skyrl-training": (14.4, None, 32)}


def test_one_checkpoint_of_two_names_and_spellings_has_all_its_rows():
    both = {"justrl": (84.9, None, 4), "sober": (84.9, 0.3, 3)}
    names = ("DeepSeek-R1-Distill-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b")
    assert [values(n, "math500") for n in names] == [both] * 3
    assert values("QUESTA-Nemotron-1.5B", "amc23") == {"justrl": (93.44, None, 32), "sober": (96.0, 1.3, 10)}


def test_the_whole_file_by_its_sums():
    sets = {s.name: s for s in published.load().sets}
    assert {n: len(s.rows) for n, s in sets.items()} == {"justrl-figure": 1, "justrl": 7, "sober": 66,
                                                         "skyrl-training": 2}  # fmt: skip
    totals = [
        round(sum(v[i] for r in sets[name].rows for v in r.values.values()), 2)
        for name, i in (("justrl", 0), ("sober", 0), ("sober", 1))
    ]
    assert totals == [2627.21, 20744.7, 1052.5]
    s = sets["sober"].setting
    assert (s.temperature, s.top_p, s.max_tokens, s.judge) == (0.8, 0.9, 32768, "none")
    assert sets["justrl"].source.commit == "cf444e9920b599c865ee6742c88dc162dcabcec2"


def test_an_unknown_model_is_answered_with_those_that_are_known():
    with pytest.raises(BadInput) as e:
        published.rows_of("acme/none-such")
    assert e.value.found == "acme/none-such"
    assert {"JustRL-DeepSeek-1.5B", "LIMO"} <= set(str(e.value.expected).split(", "))


# verdicts


def test_verdicts_by_hand():
    of = judging.measured
    found = judging.judged(
        [
            of(Fixed(0.10, 0.02, 0.06, 0.14, 0.001)),
            of(Fixed(0.01, 0.01, -0.01, 0.03, 0.3)),
            of(Fixed(0.01, 0.04, -0.07, 0.09, 0.8)),
            of(Fixed(0.04, 0.019, 0.002, 0.078, 0.04)),  # by Holm 3 x 0.04: of 4 tests the second smallest
            of(Fixed(0.04, 0.01, 0.02, 0.06, 0.01), "12 of 40 samples missing"),
        ],
        5.0,
    )
    assert [d.verdict for d in found] == ["differs", "agrees", "cannot tell", "cannot tell", "cannot tell"]
    assert [d.p_holm for d in found] == [0.004, 0.6, 0.8, pytest.approx(0.12), None]
    assert (found[4].points, found[4].low) == (4.0, None)
    assert [d.verdict for d in judging.judged([of(Fixed(0.01, 0.01, -0.01, 0.03, 0.3))], 2.0)] == ["cannot tell"]
    # 12 tests take 0.01 to 0.12, and 0 is outside the interval all the same
    eleven = [of(Fixed(0, 0.01, -0.02, 0.02, 1))] * 11
    first, *_ = judging.judged([of(Fixed(0.02, 0.0075, 0.005, 0.035, 0.01)), *eleven], 5.0)
    assert (first.verdict, first.p_holm, first.why) == (
        "cannot tell",
        0.12,
        "0 is outside the t interval, but not after Holm",
    )


def test_a_broken_harness_differs_from_what_is_published(tmp_path):
    row = compared(evaluated(tmp_path, right=0))["justrl"]
    assert (row.difference.points, row.difference.verdict) == (-52.6, "differs")


# beside published numbers


def evaluated(root: Path, benchmark: str = "aime24", right: int = 17, n: int = 32, **changed) -> Path:
    """`right` of n samples of every problem are right: 17 of 32 is 53.125 %."""
    spec = registry()[benchmark]
    rows = ["1" * right + "0" * (n - right)] * spec.rows
    given = {"size": MODEL, "step": "base", "benchmark_sha256": spec.golds_sha256, "max_tokens": 31744,
             "grader": "justrl, x", "scored_by": "rule+judge",
             "judge": "opencompass/CompassVerifier-3B r, mode x"}  # fmt: skip
    return synthetic.cell(root, "external", benchmark, "t0.7", rows, **(given | changed)).parents[1]


def compared(folder: Path, margin: float = 5.0) -> dict[str, beside.Row]:
    table = beside.table(published.rows_of(MODEL), beside.own_cells([folder], MODEL), margin)
    return {r.published.source: r for r in table if r.ours}


def test_a_score_beside_three_published_ones(tmp_path):
    found = compared(evaluated(tmp_path), 6.0)
    # each problem's variance 17 x 15 / 32 / 31, so ours 0.257056 / 32 / 30 = 0.000267767; theirs at most 0.526 x 0.474
    # / 32 / 30 = 0.000259713
    same = found["justrl"]
    assert (same.difference.points, same.difference.se) == (pytest.approx(0.525), pytest.approx(2.29669, abs=1e-4))
    assert (same.difference.verdict, same.differs_in, same.noise_of_published) == (
        "agrees", {"judge_mode": ("x", "justrl-exact")}, "at most that of the printed score",
    )  # fmt: skip
    # theirs 5.4^2 / 10 = 2.916 points^2, ours 2.67767: SE 2.36509
    other = found["sober"]
    assert (other.difference.points, other.difference.se) == (pytest.approx(9.825), pytest.approx(2.36509, abs=1e-4))
    assert (other.difference.verdict, other.noise_of_published) == ("differs", "printed spread")
    assert other.differs_in["temperature"] == (0.7, 0.8)
    assert other.differs_in["judge"] == ("opencompass/CompassVerifier-3B", "none")
    assert "top_p" not in other.differs_in
    figure = found["justrl-figure"]
    assert (figure.difference.points, figure.difference.verdict) == (pytest.approx(-5.465), "cannot tell")
    assert figure.noise_of_published == "not known"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"variant": "only the first 6 of 30 problems"}, "only the first 6"),
        ({"benchmark_sha256": "1" * 64}, "other answers"),
        ({"n": 1, "right": 1}, "one sample"),
    ],
)
def test_what_cannot_be_compared_is_shown_without_a_verdict(tmp_path, changed, why):
    row = compared(evaluated(tmp_path, **changed))["justrl"]
    assert row.difference.points is not None
    assert (row.difference.verdict, row.difference.low) == ("cannot tell", None)
    assert why in row.difference.why


def test_missing_samples_are_counted(tmp_path):
    spec = registry()["aime24"]
    rows = ["1100"] * (spec.rows - 1) + ["11-0"]
    synthetic.cell(tmp_path, "external", "aime24", "t0.7", rows, size=MODEL, step="base",
                   benchmark_sha256=spec.golds_sha256)  # fmt: skip
    row = compared(tmp_path)["justrl"]
    assert row.ours
    assert (row.ours.missing, row.difference.points, row.difference.verdict) == (1, None, "cannot tell")


def test_of_several_models_the_named_one_is_taken(tmp_path):
    evaluated(tmp_path)
    evaluated(tmp_path, right=3, size="other")
    (cell,) = beside.own_cells([tmp_path], MODEL)
    assert cell.record.cell.size == MODEL
    assert beside.notes([cell], MODEL) == ["records were made up for a test"]
    with pytest.raises(BadInput, match="several models"):
        beside.own_cells([tmp_path])


# planted causes


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    planted_run.build(folder)
    return folder


@pytest.fixture(scope="module")
def found(world) -> dict[str, causes.Change]:
    cells = beside.own_cells([world / "run"])
    return {x.cause: x for x in causes.changes(cells, regrade.Means(), [], [32], [2], 5.0)}


def test_each_planted_cause_is_found_by_its_name(found):
    # 3 problems of 11 hang on each: 12 of 44 samples
    assert {name for name, x in found.items() if x.difference.verdict == "differs"} == {
        "grader justrl", "without the judge", "limit 32 tokens",
    }  # fmt: skip
    for name in ("grader justrl", "without the judge", "limit 32 tokens"):
        x = found[name]
        assert (x.gained, x.lost, x.difference.points) == (0, 12, pytest.approx(-1200 / 44))


def test_graders_that_see_the_same_agree(found):
    for name in ("grader ours, again", "grader math-verify", "grader strict"):
        assert (found[name].difference.verdict, found[name].difference.points) == ("agrees", 0.0)
    assert found["grader justrl"].before == pytest.approx(2700 / 44)  # by the rule alone
    assert found["without the judge"].before == pytest.approx(3900 / 44)


def test_fewer_samples_bring_noise(found):
    x = found["first 2 of 4 samples"]
    # r0 gains 1/2, r1 1/4 of 11 problems; variances 1/3 and 1/4, at two samples (7/12) / 2 / 121
    assert x.difference.points == pytest.approx(75 / 11)
    assert x.noise == pytest.approx(100 * (7 / 12 / 2 / 121) ** 0.5, abs=1e-4)
    assert x.difference.verdict == "cannot tell"


def test_without_responses_and_tokenizer_nothing_is_made_up(world, tmp_path):
    cells = beside.own_cells([planted_run.build(tmp_path, judge=False)])
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "run" / "samples.jsonl").rename(tmp_path / "samples.jsonl")
    rows = causes.changes(cells, regrade.Means(), [THEIRS], [], [], 5.0)
    assert [(x.kind, x.difference.verdict, x.before) for x in rows[:3]] == [
        ("grader", "not run", None), ("judge", "not run", None), ("limit", "not run", None),
    ]  # fmt: skip
    assert [x.cause for x in rows[2:4]] == ["limit 32 tokens", "first 2 of 4 samples"]  # those of the published row
    assert "samples.jsonl" in rows[2].difference.why


def of_world(world: Path, *published_rows) -> dict[str, causes.Change]:
    cells = beside.own_cells([world / "run"])
    return {x.cause: x for x in causes.changes(cells, regrade.Means(), published_rows, [], [], 5.0)}


@pytest.mark.slow
def test_a_source_is_all_its_causes_at_once_and_what_remains(world):
    found = of_world(world, THEIRS)
    # by the rule alone 27 of 44; the grader loses g, the limit l: r0 and r1 are left, of the first two samples 3 of 22
    x = found["as s: without the judge, grader justrl, limit 32 tokens, first 2 of 4 samples"]
    assert (x.before, x.after) == (pytest.approx(3900 / 44), pytest.approx(300 / 22))
    assert x.difference.points == pytest.approx(300 / 22 - 3900 / 44)
    rest = found["remains to s"]
    assert (rest.before, rest.after) == (pytest.approx(300 / 22), 50.0)
    assert rest.difference.points == pytest.approx(50 - 300 / 22)
    # r1's 0, 1 has variance 1/2, / 2 / 121; theirs 1/4 / 22
    assert rest.difference.se == pytest.approx(100 * (1 / 484 + 1 / 88) ** 0.5, abs=1e-4)


@pytest.mark.slow
def test_with_a_judge_on_both_sides_the_grader_stays(world):
    judge = SETTING.model_copy(update={"judge": "CompassVerifier-3B", "judge_mode": "compass"})
    found = of_world(world, replace(THEIRS, setting=judge))
    assert found["as s: first 2 of 4 samples"].after == pytest.approx(2100 / 22)
    assert "remains to s (not tried: grader justrl, limit 32 tokens)" in found


@pytest.mark.slow
def test_short_responses_keep_the_verdict_on_record_at_a_limit(tmp_path):
    # r0 of a few tokens is recorded wrong, though the grader finds two right: at a limit it stays as it is
    planted_run.build(tmp_path, verdicts={"r0": "0000"})
    cells = beside.own_cells([tmp_path / "run"])
    found = {x.cause: x for x in causes.changes(cells, regrade.Means(), [], [32], [], 5.0)}
    assert (found["limit 32 tokens"].gained, found["limit 32 tokens"].lost) == (0, 12)
    assert (found["grader ours, again"].gained, found["grader ours, again"].lost) == (2, 0)


def rewritten(folder: Path, change) -> None:
    file = folder / "data" / "toy.jsonl"
    file.write_text("".join(json.dumps(change(json.loads(x))) + "\n" for x in file.read_text().splitlines()))


SWAPPED = {"l0": "100000", "g0": "7"}


@pytest.mark.parametrize(
    "change", [lambda x: x | {"answer": SWAPPED.get(x["id"], x["answer"])}, lambda x: x | {"id": "n" + x["id"]}]
)
def test_swapped_answers_and_other_ids_are_another_copy(tmp_path, change):
    planted_run.build(tmp_path)
    rewritten(tmp_path, change)
    with pytest.raises(BadInput, match="not the copy") as e:
        of_world(tmp_path)
    assert "--data-dir" in e.value.next_step


@pytest.mark.slow
def test_missing_responses_are_counted_and_a_missing_benchmark_is_not_run(tmp_path):
    file = planted_run.build(tmp_path) / "samples.jsonl"
    file.write_text("".join(file.read_text().splitlines(True)[5:]))
    x = of_world(tmp_path)["grader strict"]
    assert (x.gained, x.lost, x.difference.why) == (None, None, "5 responses missing from samples.jsonl")
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert "not at hand" in of_world(tmp_path, THEIRS)["limit 32 tokens"].difference.why
    (tmp_path / "data" / "toy.jsonl").unlink()
    found = of_world(tmp_path)
    assert found["graders ours, math-verify, justrl, strict"].difference.verdict == "not run"
    assert "--data-dir" in found["graders ours, math-verify, justrl, strict"].difference.why
    assert found["without the judge"].difference.verdict == "differs"


@pytest.mark.slow
def test_the_tokenizer_of_a_hubs_model_is_found_in_the_cache(tmp_path, monkeypatch):
    planted_run.build(tmp_path, config={"model": "acme/tiny"}, revisions={"model": "0123abcd weights sha256:77"})
    asked = []

    def cached(*given, **more):
        asked.append((given, more))
        return str(tmp_path / "model" / "tokenizer.json")

    monkeypatch.setattr(regrade, "try_to_load_from_cache", cached)
    (cell,) = beside.own_cells([tmp_path / "run"])
    found = {x.cause: x for x in causes.changes([cell], regrade.Means(), [], [32], [], 5.0)}
    assert asked == [(("acme/tiny", "tokenizer.json"), {"revision": "0123abcd"})]
    assert found["limit 32 tokens"].lost == 12


# the command


@pytest.mark.slow
def test_the_command_takes_a_gap_apart(world, tmp_path, capsys):
    flags = ["--from", str(world / "run"), "--causes", "--limits", "32", "--samples", "2", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as e:
        main(["calibrate", *flags])
    assert e.value.code == 0
    by = {x["cause"]: x for x in json.loads((tmp_path / "calibration.json").read_text())["causes"]}
    assert (by["limit 32 tokens"]["lost"], by["first 2 of 4 samples"]["difference"]["points"]) == (12, 6.81818182)
    assert "limit 32 tokens (rule alone)" in capsys.readouterr().out


def test_causes_are_named_on_the_page_and_in_the_file(found, capsys):
    whole = page.Calibration("", 5.0, changes=list(found.values()))
    page.to_terminal(whole)
    for text in (capsys.readouterr().out, page.to_markdown(whole)):
        assert "-27.27" in text
        assert "grader justrl (rule alone), without the judge, limit 32 tokens (rule alone)" in text
    row = next(x for x in json.loads(page.to_json(whole))["causes"] if x["cause"] == "grader justrl")
    assert (row["lost"], row["difference"]["verdict"]) == (12, "differs")


def test_a_setting_beside_what_its_change_does(world, found):
    (cell,) = beside.own_cells([world / "run"])
    row = beside.row(THEIRS, cell)
    text = page.to_markdown(page.Calibration("m", 5.0, [row], list(found.values())))
    for shown in (
        "max_tokens 64 / 32 (rule alone -27.27)",
        "grader ours / justrl (rule alone -27.27)",
        "n 4 / 2 (+6.82)",
    ):
        assert shown in text


def test_the_command_writes_both_files(world, tmp_path):
    with pytest.raises(SystemExit) as e:
        main(["calibrate", "--from", str(world / "run"), "--against", str(world / "run"), "--out", str(tmp_path / "o")])
    assert e.value.code == 0
    data = json.loads((tmp_path / "o" / "calibration.json").read_text())
    (row,) = data["runs"]
    assert (row["difference"]["points"], row["difference"]["verdict"], data["margin"]) == (0.0, "agrees", 5.0)
    assert "no setting differs" in (tmp_path / "o" / "calibration.md").read_text()


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ([MODEL], 0), ([], 2), (["acme/none-such"], 2), ([MODEL, "--causes"], 2), ([MODEL, "--from", "nowhere"], 2),
        ([MODEL, "--margin", "0"], 2),
    ],
)  # fmt: skip
def test_exit_codes(flags, code, capsys):
    with pytest.raises(SystemExit) as e:
        main(["calibrate", *flags])
    assert e.value.code == code
    said = capsys.readouterr()
    assert ("not run" in said.out) if code == 0 else ("next:" in said.err)
