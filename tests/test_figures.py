"""Every figure: bytes, titles, colours, panels that say what was not run; and the training curves' own numbers."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic

from stapo_repro import labels, paper
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import StepMetrics
from stapo_results.store import append

pytest.importorskip("matplotlib")
from stapo_repro import figures
from stapo_repro.figures import curves, looks, registry, training
from stapo_repro.pages import figures as render_figures
from stapo_repro.pages import outputs

SILENCED = curves.Panel("silenced_share", "Silenced tokens", "%", 100.0)


def shares(root, seed, values):
    folder = synthetic.training_run(root, "stapo", seed, steps=0)
    (folder / "metrics.jsonl").unlink()
    append(folder / "metrics.jsonl", [StepMetrics(step=k, values={"silenced_share": v}) for k, v in values.items()])
    return folder


def test_curve_is_the_mean_over_seeds_with_their_range(tmp_path):
    shares(tmp_path, 0, {1: 0.001, 2: 0.002, 3: 0.003})
    shares(tmp_path, 1, {1: 0.003, 2: 0.002})  # still running: step 3 is not yet common
    c = curves.curve(load_training_runs([tmp_path]), SILENCED)
    assert c is not None
    assert c.steps.tolist() == [1, 2]
    np.testing.assert_allclose(c.mean, [0.2, 0.2])
    np.testing.assert_allclose(c.low, [0.1, 0.2])
    np.testing.assert_allclose(c.high, [0.3, 0.2])
    assert c.seeds == 2


def test_last_attempt_of_a_step_counts(tmp_path):
    folder = shares(tmp_path, 0, {1: 0.001})
    append(folder / "metrics.jsonl", [StepMetrics(step=1, attempt=1, values={"silenced_share": 0.005})])
    c = curves.curve(load_training_runs([tmp_path]), SILENCED)
    assert c is not None
    np.testing.assert_allclose(c.mean, [0.5])


def test_a_long_curve_is_drawn_in_windows(tmp_path):
    shares(tmp_path, 0, {k: k / 100 for k in range(1, 8)})
    c = curves.curve(load_training_runs([tmp_path]), SILENCED, most=3)
    assert c is not None
    # seven steps in at most three points: windows of three, the last one holds the seventh alone
    assert (c.window, c.steps.tolist()) == (3, [2, 5, 7])
    np.testing.assert_allclose(c.mean, [2, 5, 7])


def test_metric_that_was_not_logged_has_no_curve(tmp_path):
    shares(tmp_path, 0, {1: 0.001})
    assert curves.curve(load_training_runs([tmp_path]), training.PANELS[3]) is None


def test_two_runs_of_one_seed_are_refused(tmp_path):
    shares(tmp_path / "a", 0, {1: 0.001})
    shares(tmp_path / "b", 0, {1: 0.001})
    with pytest.raises(BadInput, match="one seed"):
        curves.curve(load_training_runs([tmp_path]), SILENCED)


def test_run_without_labels_is_refused(tmp_path):
    folder = shares(tmp_path, 0, {1: 0.001})
    file = folder / "run.json"
    file.write_text(file.read_text().replace('"method"', '"methode"'))
    with pytest.raises(RecordError, match="without its labels"):
        load_training_runs([tmp_path])


def test_other_kinds_of_runs_are_no_training_runs(tmp_path):
    folder = shares(tmp_path, 0, {1: 0.001})
    file = folder / "run.json"
    file.write_text(file.read_text().replace('"kind": "train"', '"kind": "base"'))
    assert load_training_runs([tmp_path]) == []


def draw(root: Path, *only: str, part: str = "main") -> dict[str, figures.Drawn]:
    material = figures.Material.of(part, load_cells([root]), load_training_runs([root]), paper.load())  # type: ignore[arg-type]
    return {d.name: d for d in figures.draw(material, only)}


def svg(drawn: figures.Drawn) -> str:
    return drawn.files["svg"].decode()


def curves_of(root, methods=("grpo", "entropy20", "justrl", "stapo"), seeds=(0,)) -> figures.Drawn:
    for m in methods:
        for s in seeds:
            synthetic.training_run(root, m, s)
    return draw(root, "training-curves")["miniature_training_curves"]


@pytest.fixture(scope="module")
def mini(tmp_path_factory) -> Path:
    """Records of the miniature: base and four methods."""
    root = tmp_path_factory.mktemp("mini")
    synthetic.miniature(root / "eval")
    for m in labels.METHODS:
        synthetic.training_run(root / "train", m)
    return root


@pytest.fixture(scope="module")
def every(mini, tmp_path_factory) -> dict[str, figures.Drawn]:
    """All figures of the miniature and of a small ablation."""
    root = tmp_path_factory.mktemp("ablation")
    synthetic.ablation(root, problems=4)
    return draw(mini) | draw(root, part="ablation")


def test_each_family_is_drawn_for_its_parts(every):
    kinds = ("training_curves", "pareto", "forest", "token_entropy", "silenced_share")
    both = {f"{part}_{k}" for part in ("miniature", "ablation") for k in kinds}
    assert set(every) == both | {
        "miniature_judge", "miniature_lengths", "ablation_bars", "ablation_sensitivity",
        "paper_against_ours_t10", "paper_against_ours_t07",
    }  # fmt: skip


def test_what_is_no_result_of_the_paper_says_so_in_its_title(every):
    for name, d in every.items():
        if name.startswith("paper_"):
            assert "miniature" not in d.title
            continue
        assert "(miniature)" in d.title
        assert d.title.endswith("SYNTHETIC RECORDS")  # these records are
        assert "a tiny model on additions, not a result of the paper" in d.caption
        assert f"<dc:title>{d.title}</dc:title>" in svg(d)


def test_bytes_are_the_same_each_time_and_hold_no_date(mini, every):
    again = draw(mini, "training-curves", "forest", "judge", "against-paper")
    assert len(again) == 5
    assert again == {k: every[k] for k in again}
    for d in again.values():
        assert "<dc:date>" not in svg(d)
        assert b"tIME" not in d.files["png"]
        assert b"Software" not in d.files["png"]


def test_pdf_is_the_same_each_time_and_holds_no_date(mini):
    material = figures.Material.of("main", load_cells([mini]), load_training_runs([mini]), paper.load())
    first, second = (figures.draw(material, ["pareto"], ["pdf"])[0].files["pdf"] for _ in range(2))
    assert first == second
    assert first.startswith(b"%PDF")
    assert b"Date" not in first


def test_bytes_are_the_same_in_another_process(tmp_path, mini, every):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "stapo_repro.cli", "figures", "--records", str(mini), "--out", str(out),
               "--only", "forest"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    names = ("miniature_forest",)
    assert sorted(p.name for p in out.iterdir()) == sorted(f"{n}.{k}" for n in names for k in ("svg", "png"))
    for name in names:
        for kind, data in every[name].files.items():
            assert (out / f"{name}.{kind}").read_bytes() == data
    assert subprocess.run([*command, "--check"], capture_output=True).returncode == 0
    (out / "miniature_forest.png").write_bytes(b"other")
    done = subprocess.run([*command, "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "stale" in done.stderr


def test_an_unknown_figure_is_refused_with_the_list(tmp_path):
    with pytest.raises(BadInput, match="no such figure") as e:
        draw(tmp_path, "paretto")
    assert "training-curves, pareto, bars" in str(e.value)


def test_pages_are_not_renewed_from_a_choice_of_figures(mini, tmp_path):
    files = outputs.figure_files("main", [mini], None, only=["pareto"])
    assert {p.name for p in files} == {"miniature_pareto.svg", "miniature_pareto.png"}
    with pytest.raises(BadInput, match="a page needs all figures"):
        outputs.figure_files("main", [mini], tmp_path, only=["pareto"], readme=tmp_path / "README.md")


def test_png_has_its_size(every):
    # 7.0 x 4.9 inches at 200 dots an inch
    assert struct.unpack(">II", every["miniature_training_curves"].files["png"][16:24]) == (1400, 980)
    for d in every.values():
        assert struct.unpack(">I", d.files["png"][16:20]) == (1400,)


def line_colours(text: str) -> dict[str, str]:
    found = {}
    for name in re.findall(r'<g id="([a-z_]+-[a-z0-9]+)">', text):
        body = text.split(f'<g id="{name}">')[1]
        match = re.search(r"stroke: (#[0-9a-f]{6})", body)
        assert match is not None
        found[name] = match.group(1).upper()
    return found


def test_every_method_has_a_look_of_its_own():
    assert set(labels.METHOD_LABELS) <= set(labels.COLOURS)
    known = [looks.look(m) for m in labels.METHOD_LABELS]
    assert len({k.colour for k in known}) == len(known)
    # within what stands in one figure, dashes and markers tell the lines apart in grey too
    for together in ((labels.BASE, *labels.METHODS), tuple(labels.ABLATION), tuple(labels.BEYOND)):
        assert len({looks.look(m).dashes for m in together}) == len(together)
        assert len({looks.look(m).marker for m in together}) == len(together)
    assert looks.look("someone's own").colour == looks.OTHER


def test_one_colour_a_method_in_all_panels(every):
    colours = line_colours(svg(every["miniature_training_curves"]))
    assert len(colours) == 16  # four methods in four panels
    for name, colour in colours.items():
        assert colour == labels.COLOURS[name.split("-")[1]]


def test_line_of_svg_has_the_data(tmp_path):
    """Pixel steps along x are equal, and along y proportional to the entropy that was logged."""
    text = svg(curves_of(tmp_path, ("stapo",)))
    body = text.split('<g id="entropy-stapo">')[1]
    match = re.search(r'<path d="([^"]+)"', body)
    assert match is not None
    points = np.array([[float(x) for x in p.split()] for p in re.findall(r"[ML] ([\d.]+ [\d.]+)", match.group(1))])
    run = load_training_runs([tmp_path])[0]
    entropy = np.array([s.values["entropy"] for s in run.steps if "entropy" in s.values])
    assert len(points) == len(entropy) == 40
    slope, offset = np.polyfit(entropy, points[:, 1], 1)
    assert slope < 0
    np.testing.assert_allclose(points[:, 1], slope * entropy + offset, atol=1e-3)
    np.testing.assert_allclose(np.diff(points[:, 0]), points[1, 0] - points[0, 0], atol=1e-3)


def test_what_was_not_run_is_named(tmp_path):
    figure = curves_of(tmp_path, ("justrl", "stapo"))
    assert "Not run: GRPO, 20-Entropy." in figure.caption
    assert set(line_colours(svg(figure))) == {f"{p.metric}-{m}" for p in training.PANELS for m in ("justrl", "stapo")}
    assert figure.block().startswith("![Training curves (miniature)")


def texts(drawn: figures.Drawn) -> list[str]:
    """Every text of a figure: matplotlib leaves it as a comment beside the outlines of its letters."""
    return re.findall(r"<!-- (.*?) -->", svg(drawn), re.DOTALL)


def test_nothing_run_at_all_still_draws_and_every_panel_says_so(tmp_path):
    found = draw(tmp_path)
    assert "Nothing has been run yet" in found["miniature_training_curves"].caption
    # panels: four of curves, two Pareto views, four methods and the profile, two of silenced tokens
    for name, panels in (("training_curves", 4), ("pareto", 2), ("token_entropy", 5), ("silenced_share", 2)):
        assert texts(found[f"miniature_{name}"]).count("not run") == panels, name
    assert texts(found["miniature_forest"]).count("not run") == 2 * 3 * 4  # settings, benchmarks with average, others
    assert texts(found["miniature_lengths"]).count("not run") == 2 * 2 * 5  # settings, benchmarks, models
    assert texts(found["miniature_judge"]).count("not run") == 2 * 2 * 2 * 5
    for setting in ("t10", "t07"):
        paper_alone = found[f"paper_against_ours_{setting}"]
        assert texts(paper_alone).count("ours: not run") == 3
        assert "None has been run here yet" in paper_alone.caption
    nothing = draw(tmp_path, part="ablation")
    assert texts(nothing["ablation_bars"]).count("not run") == 2 * 3 * 5
    assert texts(nothing["ablation_sensitivity"]).count("not run") == 4


def test_lengths_that_records_do_not_have_are_said_to_be_missing(every):
    assert texts(every["miniature_lengths"]).count("not recorded") == 4
    assert "20 of 20 records were made before lengths were kept by verdict" in every["miniature_lengths"].caption
    assert texts(every["miniature_judge"]).count("judge not asked") == 2 * 2 * 5


def test_several_seeds_have_a_band(tmp_path):
    one = svg(curves_of(tmp_path / "one"))
    two = curves_of(tmp_path / "two", seeds=(0, 1))
    assert "FillBetweenPolyCollection" not in one
    assert svg(two).count('<g id="FillBetweenPolyCollection') == 16
    assert "bands reach from the lowest to the highest seed" in two.caption


def test_one_record_of_a_size_gives_that_size_its_figures(tmp_path):
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["10", "00"], size="qwen3-8b", rows=30)
    found = draw(tmp_path, "forest", "pareto", "against-paper")
    assert not any(name.startswith("miniature") for name in found)
    assert found["qwen3-8b_forest"].title == "STAPO minus the others, Qwen3-8B, SYNTHETIC RECORDS"
    assert "ours: 1 of 28 run" in texts(found["paper_against_ours_t10"])
    assert texts(found["paper_against_ours_t10"]).count("ours: not run") == 2
    assert "Only 2 of 30 problems of AIME24." in found["paper_against_ours_t10"].caption
    # the average of six is no average of one
    assert 'id="ours-aime24-stapo"' in svg(found["paper_against_ours_t10"])
    assert 'id="ours-avg-stapo"' not in svg(found["paper_against_ours_t10"])
    assert texts(found["paper_pareto"]).count("not run") == 6


def test_the_gallery_shows_every_figure_and_names_the_sizes_without_any(every):
    main = [d for d in every.values() if not d.name.startswith("ablation")]
    page = render_figures.gallery(main, [d for d in every.values() if d.name.startswith("ablation")])
    for d in every.values():
        assert page.count(f"(../results/figures/{d.name}.png)") == 1
        assert d.caption in page
    assert "**Not run:** Qwen3-1.7B, Qwen3-8B, Qwen3-14B." in page


def test_the_page_explains_each_family():
    page = (Path(__file__).resolve().parents[1] / "docs" / "figures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.M)
    assert sorted(rows) == sorted(f.name for f in registry.FAMILIES)


def test_names_of_families_are_once():
    names = [f.name for f in registry.FAMILIES]
    assert len(set(names)) == len(names)
