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
from stapo_repro.read import load_cells, load_training_runs
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import StepMetrics
from stapo_results.store import append

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.text import Text

from stapo_repro.figures import canvas, training
from stapo_repro.figures.canvas import Sketch
from stapo_repro.figures.experiment import Experiment
from stapo_repro.pages import figures as figure_pages

SILENCED = training.Panel("silenced_share", "Silenced tokens", "%", 100.0)


def shares(root, seed, values):
    folder = synthetic.training_run(root, "stapo", seed, steps=0)
    (folder / "metrics.jsonl").unlink()
    append(folder / "metrics.jsonl", [StepMetrics(step=k, values={"silenced_share": v}) for k, v in values.items()])
    return folder


def test_curve_is_the_mean_over_seeds_with_their_range(tmp_path):
    shares(tmp_path, 0, {1: 0.001, 2: 0.002, 3: 0.003})
    shares(tmp_path, 1, {1: 0.003, 2: 0.002})  # still running: step 3 is not yet common
    c = training.curve(load_training_runs([tmp_path]), SILENCED)
    assert c is not None
    assert c.steps.tolist() == [1, 2]
    np.testing.assert_allclose(c.mean, [0.2, 0.2])
    np.testing.assert_allclose(c.low, [0.1, 0.2])
    np.testing.assert_allclose(c.high, [0.3, 0.2])
    assert c.seeds == 2


def test_a_long_curve_is_drawn_in_windows(tmp_path):
    shares(tmp_path, 0, {k: k / 100 for k in range(1, 8)})
    c = training.curve(load_training_runs([tmp_path]), SILENCED, most=3)
    assert c is not None
    # seven steps in at most three points: windows of three, the last one holds the seventh alone
    assert (c.window, c.steps.tolist()) == (3, [2, 5, 7])
    np.testing.assert_allclose(c.mean, [2, 5, 7])
    assert training.curve(load_training_runs([tmp_path]), training.PANELS[3]) is None  # not logged


def test_two_runs_of_one_seed_are_refused(tmp_path):
    shares(tmp_path / "a", 0, {1: 0.001})
    shares(tmp_path / "b", 0, {1: 0.001})
    with pytest.raises(BadInput):
        training.curve(load_training_runs([tmp_path]), SILENCED)


def test_only_labelled_trainings_are_read(tmp_path):
    file = shares(tmp_path, 0, {1: 0.001}) / "run.json"
    text = file.read_text()
    file.write_text(text.replace('"kind": "train"', '"kind": "base"'))
    assert load_training_runs([tmp_path]) == []
    file.write_text(text.replace('"method"', '"methode"'))
    with pytest.raises(RecordError, match=r"run\.json"):
        load_training_runs([tmp_path])


def experiment(root: Path) -> Experiment:
    return Experiment.from_records(load_cells([root]), load_training_runs([root]), paper.load())


def sketched(root: Path, *only: str) -> dict[str, Sketch]:
    """Drawn, but not saved, which takes most of the time."""
    with canvas.style():
        return {s.name: s for s in figure_pages.sketches(experiment(root), only)}


def texts(sketch: Sketch) -> list[str]:
    return [t.get_text() for t in sketch.figure.findobj(Text)]  # type: ignore[attr-defined]


def marks(sketch: Sketch) -> dict[str, Line2D]:
    """Lines and markers that have a name."""
    return {str(x.get_gid()): x for x in sketch.figure.findobj(Line2D) if x.get_gid()}  # type: ignore[misc]


@pytest.mark.parametrize("method", canvas._STYLES)
def test_dashes_are_seen_in_the_legend(method):
    """Parts of the line on each side of the marker, along the middle of the drawn key: one if it is solid."""
    with canvas.style():
        figure = canvas.sheet("", 1.0)
        canvas.legend(figure, [canvas.handle(method)])
        drawn = FigureCanvasAgg(figure)
        drawn.draw()
        (key,) = figure.legends[0].get_lines()
        box = key.get_window_extent()
        pixels = np.asarray(drawn.buffer_rgba())[..., :3].min(axis=2)
    row = pixels[pixels.shape[0] - round((box.y0 + box.y1) / 2), round(box.x0) - 4 : round(box.x1) + 4]
    parts = int(((row[1:] < 200) & (row[:-1] >= 200)).sum())
    assert (parts > 1) == bool(canvas.method_style(method).dashes)
    assert parts == 1 or parts >= 3  # marker and a piece at least on each side


@pytest.fixture(scope="module")
def mini(tmp_path_factory) -> Path:
    """Records of the miniature: base and four methods."""
    root = tmp_path_factory.mktemp("mini")
    synthetic.miniature(root / "eval")
    for m in labels.METHODS:
        synthetic.training_run(root / "train", m)
    return root


@pytest.fixture(scope="module")
def every(mini) -> dict[str, Sketch]:
    """All figures of the miniature."""
    return sketched(mini)


def test_each_family_is_drawn(every):
    kinds = ("training_curves", "pareto", "forest", "token_entropy", "silenced_share", "lengths")
    assert set(every) == {f"miniature_{k}" for k in kinds}
    for s in every.values():
        assert "(miniature)" in s.title
        assert s.title.endswith("SYNTHETIC RECORDS")
        assert "a tiny model on additions, not a result of the paper" in s.caption


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_bytes_are_the_same_each_time_and_hold_no_date(mini, kind):
    (first,), (again,) = (figure_pages.draw(experiment(mini), ["pareto"], [kind]) for _ in range(2))
    assert first == again
    data = first.files[kind]
    assert data.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])
    assert not re.search(rb"<dc:date>|tIME|Software|CreationDate", data)
    if kind == "png":  # 7.0 x 3.1 inches at 200 dots an inch
        assert struct.unpack(">II", data[16:24]) == (1400, 620)


@pytest.mark.slow
def test_bytes_are_the_same_in_another_process(tmp_path, mini):
    for drawn in figure_pages.draw(experiment(mini), ["pareto"]):
        for kind, data in drawn.files.items():
            (tmp_path / f"{drawn.name}.{kind}").write_bytes(data)
    command = [sys.executable, "-m", "stapo_repro.cli", "figures", "--records", str(mini), "--out", str(tmp_path),
               "--only", "pareto", "--check"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_figure_is_refused_with_the_list(tmp_path):
    with pytest.raises(BadInput) as e:
        sketched(tmp_path, "paretto")
    assert (e.value.found, str(e.value.expected)[:15]) == ("paretto", "training-curves")


def test_every_method_has_a_style_of_its_own(every):
    assert set(labels.METHOD_LABELS) <= set(labels.COLOURS)
    known = [canvas.method_style(m) for m in labels.METHOD_LABELS]
    assert len({k.colour for k in known}) == len(known)
    # within what stands in one figure, dashes and markers tell the lines apart in grey too
    for together in ((labels.BASE, *labels.METHODS), tuple(labels.ARMS), tuple(labels.BEYOND)):
        assert len({canvas.method_style(m).dashes for m in together}) == len(together)
        assert len({canvas.method_style(m).marker for m in together}) == len(together)
    found = marks(every["miniature_training_curves"])
    assert len(found) == 16  # four methods in four panels
    assert {n: x.get_color() for n, x in found.items()} == {n: labels.COLOURS[n.split("-")[1]] for n in found}


def test_line_of_svg_has_the_data_and_what_was_not_run_is_named(tmp_path):
    """Pixel steps along x are equal, and along y proportional to the entropy that was logged."""
    synthetic.training_run(tmp_path, "stapo")
    (figure,) = figure_pages.draw(experiment(tmp_path), ["training-curves"], ["svg"])
    assert "Not run: GRPO, 20-Entropy, JustRL." in figure.caption
    text = figure.files["svg"].decode()
    assert set(re.findall(r'<g id="([a-z_]+-[a-z0-9]+)">', text)) == {f"{p.metric}-stapo" for p in training.PANELS}
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


def test_nothing_run_at_all_still_draws_and_every_panel_says_so(tmp_path):
    found = sketched(tmp_path)
    # panels: four of curves, two Pareto views, four methods and the profile, two of silenced tokens; then a text a
    # line: settings, benchmarks (with average), models
    for name, count in (
        ("miniature_training_curves", 4), ("miniature_pareto", 2), ("miniature_token_entropy", 5),
        ("miniature_silenced_share", 2), ("miniature_forest", 2 * 3 * 4), ("miniature_lengths", 2 * 2 * 5),
    ):  # fmt: skip
        assert texts(found[name]).count("not run") == count, name


def test_lengths_that_records_do_not_have_are_said_to_be_missing(every):
    assert texts(every["miniature_lengths"]).count("by verdict:\nnot recorded") == 4
    assert "20 of 20 records" in every["miniature_lengths"].caption


def test_one_record_of_a_size_gives_that_size_its_figures(tmp_path):
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["10", "00"], size="qwen3-8b", rows=30)
    found = sketched(tmp_path, "forest", "pareto")
    assert not any(name.startswith("miniature") for name in found)
    assert found["qwen3-8b_forest"].title == "STAPO minus the others, Qwen3-8B, SYNTHETIC RECORDS"
    assert "Only 2 of 30 problems of AIME24." in found["qwen3-8b_forest"].caption
    assert texts(found["qwen3-8b_pareto"]).count("not run") == 2


def test_a_model_that_was_only_evaluated_has_no_empty_figures(tmp_path):
    families = "training-curves", "pareto", "token-entropy", "lengths"
    synthetic.cell(tmp_path, "external", "aime24", "t1.0", ["10", "00"], size="some-lm", rows=30, step="base")
    found = sketched(tmp_path, *families)
    assert set(found) == {"some-lm_lengths"}
    assert "Base model" not in texts(found["some-lm_lengths"])


def test_the_gallery_page_explains_each_family_once():
    page = (paper.checkout() / "results" / "figures" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.M)
    assert sorted(rows) == sorted((*figure_pages.FAMILIES, *figure_pages.OF_TESTBED))
