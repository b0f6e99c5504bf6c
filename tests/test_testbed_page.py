"""The testbed's page, tables, figures and a method's standing: without records, with some, with all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro.pages import outputs
from stapo_repro.read import load_cells, load_training_runs
from stapo_repro.sharing.collect import collect
from stapo_repro.sharing.pack import pack
from stapo_repro.sharing.unpack import unpack
from stapo_repro.testbed import build, claims, counts, evidence, render, standing
from stapo_results.store import read_json, write_json

pytest.importorskip("matplotlib")
from matplotlib.lines import Line2D
from matplotlib.text import Text

from stapo_repro.figures import style, testbed


def value(root: Path | None) -> build.Testbed:
    return build.build(build.read(root), claims.load())


def rows(block: str) -> list[list[str]]:
    return [[c.strip() for c in line.split(" | ")] for line in block.splitlines() if line.startswith("| ")]


def sketched(t: build.Testbed) -> tuple[list[str], list[str], str]:
    """(texts, marks, captions) of the figures."""
    with style.style():
        sketches = [testbed.rates(t), testbed.long(t), testbed.claims(t)]
    texts = [x.get_text() for s in sketches for x in s.figure.findobj(Text)]  # type: ignore[attr-defined]
    marks = [str(x.get_gid()) for s in sketches for x in s.figure.findobj(Line2D) if x.get_gid()]
    return texts, marks, " ".join(s.caption for s in sketches)


def test_without_records_everything_says_so(tmp_path):
    t = value(tmp_path)
    blocks = render.blocks(t)
    assert [r[:2] for r in rows(blocks["testbed-masks"])[2:]] == [
        [f"| {w}", "not run"] for w in ("paper", "mixed", "inverted")
    ]
    assert [r[1] for r in rows(blocks["testbed-arms"])[2:]] == ["all"] * 3
    assert "Not run: 18." in blocks["testbed-claims"]
    assert blocks["testbed-power"].count("not known") == 22
    texts, marks, caption = sketched(t)
    assert texts.count("not run") == 6 + 6 + 22  # panels of curves, of long trainings, claims
    assert not [m for m in marks if "-rate" in m or m.startswith("claim")]
    assert "Nothing has been run yet." in caption


def test_with_all_records_every_number_stands_where_it_belongs(tmp_path):
    synthetic.of_testbed(tmp_path)
    t = value(tmp_path)
    blocks = render.blocks(t)
    mask = rows(blocks["testbed-masks"])[2]
    # S2T in paper: 2 steps x (7.5 + 8.5 + 9.5) tokens; spurious 93.3, 94.1, 94.7 %
    assert mask[:3] == ["| paper", "S2T", "51"]
    assert mask[3].startswith("94.1<br>")
    assert mask[5].startswith("0.0<br>")
    arms = {tuple(r[:2]): r for r in rows(blocks["testbed-arms"])[2:]}
    assert len(arms) == 3 * 6
    assert arms["| mixed", "Base model"][2] == "25.0"
    # .9 + .03 a seed, of three seeds: 93.0 +- 4.302653 x 3 / sqrt 3 = 7.45
    assert arms["| paper", "STAPO"][6] == arms["| paper", "STAPO"][7] == "93.0<br><sub>85.5 to 100.5</sub>"
    assert "SYNTHETIC RECORDS" in blocks["testbed-claims"]
    data = json.loads(render.to_json(t))
    not_run = [c["claim"]["number"] for c in data["claims"] if c["verdict"] == "not run"]
    assert not_run == ["7a", "7b", "7c", "7d", "7e", "7f", "8"]
    texts, marks, caption = sketched(t)
    # five arms in six panels, fifteen claims
    assert len([m for m in marks if m.startswith(("useful_rate", "spurious_rate"))]) == 30
    assert len([m for m in marks if m.startswith("claim-")]) == 15
    assert "at most 3" in caption
    assert texts.count("not run") == 6 + 7  # the long trainings: a figure of six panels, six claims; q
    for arm, seeds in (("justrl", (10, 20)), ("stapo", (10, 20)), ("stapo-lr5x", (10,))):
        for seed in seeds:
            rates = {"entropy": 0.5, "spurious_rate": 0.1, "accuracy": 0.9}
            synthetic.training_run(tmp_path / "long" / "train", arm, seed, 4, more=rates)
    _, marks, caption = sketched(value(tmp_path))
    assert sorted(m for m in marks if m.startswith("long-entropy")) == [
        "long-entropy-lr5x-s10-stapo",
        "long-entropy-s10-justrl", "long-entropy-s10-stapo", "long-entropy-s20-justrl", "long-entropy-s20-stapo",
    ]  # fmt: skip
    assert ("A line is one training: at 2e-4 2 of JustRL and 2 of STAPO; at 5e-4 0 of JustRL and 0 of STAPO; at 1e-3 1 "
            "of STAPO. 3 of them are exploratory") in caption  # fmt: skip


def test_a_base_model_of_two_samples_has_no_pass_at_8(tmp_path):
    synthetic.cell(tmp_path / "eval", "base", "mini-add", "t1.0", ["10"] * 16, size="mini", folder="base-paper")
    base = rows(render.blocks(value(tmp_path))["testbed-arms"])[2]
    assert base[:5] == ["| paper", "Base model", "50.0", "n/a", "n/a"]


def test_with_one_world_and_two_arms_the_rest_is_not_run(tmp_path):
    synthetic.of_testbed(tmp_path, worlds=("paper",), arms=("justrl", "stapo"), seeds=(0, 1))
    blocks = render.blocks(value(tmp_path))
    arms = {tuple(r[:2]): r for r in rows(blocks["testbed-arms"])[2:]}
    assert arms["| paper", "Random mask"][2] == "not run"
    assert arms["| inverted", "all"][2] == "not run"
    assert rows(blocks["testbed-masks"])[-1][1] == "not run"


def test_the_tables_of_a_run_folder_read_its_main_records_alone(tmp_path):
    synthetic.of_testbed(tmp_path / "a", worlds=("mixed",))
    files: dict[Path, bytes] = {}
    outputs.testbed_tables(files, [tmp_path / "a" / "eval", tmp_path / "a" / "train"], tmp_path / "out")
    assert set(files) == {tmp_path / "out" / "testbed.md", tmp_path / "out" / "testbed.json"}
    assert json.loads(files[tmp_path / "out" / "testbed.json"])["trainings"] == {"main": 15, "pilot": 0, "long": 0}


def test_what_is_committed_is_what_the_records_give():
    files: dict[Path, bytes] = {}
    outputs.testbed_tables(files, [], None)
    assert len(files) == 3
    for path, data in files.items():
        assert path.read_bytes() == data, path


def test_collected_records_of_a_testbed_have_counts_and_no_token_log(tmp_path):
    from synthetic_log import Token, write

    from stapo_results.schema import Run

    run = tmp_path / "run"
    for arm in ("justrl", "stapo"):
        folder = synthetic.training_run(run / "train", arm, steps=1)
        write(folder, [Token("a", junk=True), Token("b", useful=True)])
    own, config = read_json(folder / "run.json", Run), {"experiment": "testbed", "quick": False}
    write_json(run / "run.json", own.model_copy(update={"kind": "repro", "config": config}))
    collect(run, tmp_path / "out")
    record = read_json(tmp_path / "out" / "train" / "stapo-s0" / counts.FILE, counts.PlantedCounts)
    assert record.rare[1].tokens == [(1.0, 1.0, 0.0)]
    assert not list((tmp_path / "out").rglob("*.parquet"))
    # what is read of the record, or of a bundle of it, is what is read of the log
    made = counts.of_run(run / "train" / "justrl-s0", "synthetic")
    pack([run], tmp_path / "b.zip")
    unpack(tmp_path / "b.zip", tmp_path / "unpacked")
    for root in (tmp_path / "out", tmp_path / "unpacked" / "run"):
        assert counts.of_run(root / "train" / "justrl-s0") == made


def of(root: Path) -> evidence.Evidence:
    return evidence.gather(load_cells([root]), load_training_runs([root]))


def test_a_method_stands_beside_the_committed_arms_and_is_paired_with_their_seeds(tmp_path):
    synthetic.of_testbed(tmp_path / "committed", worlds=("paper",), seeds=(0, 1, 2))
    for seed in (0, 1):
        rates = {"useful_rate": 0.95 + 0.01 * seed, "spurious_rate": 0.1}
        synthetic.training_run(tmp_path / "own" / "train", "mine", seed, 8, more=rates)
    lines = standing.standing(of(tmp_path / "own"), of(tmp_path / "committed"), "mine")
    found = {s.text: s.values for s in lines}
    assert list(found) == ["mine", "JustRL", "JustRL-FullMask", "High-entropy mask", "Random mask", "STAPO",
                           "mine minus JustRL", "mine minus STAPO"]  # fmt: skip
    assert {s.world for s in lines} == {"paper"}
    # .95 + .01 s less .9 + .03 s in both seeds that it has: 5 and 3 points, SE 1, t(.975, 1) = 12.706
    q = found["mine minus STAPO"]["useful_early"]
    assert (q.mean, len(q.seeds)) == (pytest.approx(4.0), 2)
    assert found["mine"]["accuracy_t1.0"].status == "not run"
    text = standing.rows(lines)
    assert text[0][:2] == ["mine", "not run"]
    assert text[-1][4] == "+4.0, n=2\n-8.7 to 16.7"


def test_without_committed_records_a_method_stands_alone(tmp_path):
    synthetic.training_run(tmp_path, "mine", 0, 8, size="mini-mixed", more={"useful_rate": 0.5, "spurious_rate": 0.1})
    lines = standing.standing(of(tmp_path), evidence.Evidence({}, {}, {}), "mine")
    assert lines[0].values["useful_early"].mean == 50.0
    assert all(q.mean is None for s in lines[1:] for q in s.values.values())


def test_a_method_on_other_problems_is_not_subtracted(tmp_path):
    synthetic.of_testbed(tmp_path / "committed", worlds=("paper",), seeds=(0,))
    given = {"method": "mine", "benchmark": "mini-add", "setting": "t1.0", "step": 8, "size": "mini"}
    for problems, differences in ((16, 2), (8, 0)):
        own = tmp_path / str(problems)
        synthetic.training_run(own / "train", "mine", 0, 8, more={"useful_rate": 0.5, "spurious_rate": 0.1})
        synthetic.cell(own / "eval", verdicts=["1" * 8] * problems, **given)
        assert sum(s.difference for s in standing.standing(of(own), of(tmp_path / "committed"), "mine")) == differences


def test_a_method_of_other_steps_is_not_subtracted(tmp_path):
    synthetic.of_testbed(tmp_path / "committed", worlds=("paper",), seeds=(0,))
    synthetic.training_run(tmp_path / "own", "mine", 0, 4, more={"useful_rate": 0.5, "spurious_rate": 0.1})
    lines = standing.standing(of(tmp_path / "own"), of(tmp_path / "committed"), "mine")
    assert not any(s.difference for s in lines)
