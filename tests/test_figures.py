"""The training curves: numbers behind the lines, bytes, names of what was not run."""

from __future__ import annotations

import re
import struct
import subprocess
import sys

import numpy as np
import pytest
import synthetic_records as synthetic

from stapo_repro import curves, labels
from stapo_repro.records import load_training_runs
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import StepMetrics
from stapo_results.store import append

figures = pytest.importorskip("stapo_repro.figures")
pytest.importorskip("matplotlib")

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


def test_metric_that_was_not_logged_has_no_curve(tmp_path):
    shares(tmp_path, 0, {1: 0.001})
    assert curves.curve(load_training_runs([tmp_path]), curves.PANELS[3]) is None


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


def drawn(tmp_path, methods=("grpo", "entropy20", "justrl", "stapo"), seeds=(0,)):
    for m in methods:
        for s in seeds:
            synthetic.training_run(tmp_path, m, s)
    return figures.training_curves(load_training_runs([tmp_path]))


def test_bytes_are_the_same_each_time_and_hold_no_date(tmp_path):
    first, second = drawn(tmp_path), drawn(tmp_path)
    assert first.files == second.files
    svg = first.files["svg"].decode()
    assert "<dc:date>" not in svg
    assert b"tIME" not in first.files["png"]
    assert b"Software" not in first.files["png"]


def test_bytes_are_the_same_in_another_process(tmp_path):
    here = drawn(tmp_path).files
    out = tmp_path / "out"
    command = [sys.executable, "-m", "stapo_repro.cli", "figures", "--records", str(tmp_path), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    for kind, data in here.items():
        assert (out / f"{figures.MINIATURE.name}.{kind}").read_bytes() == data
    assert subprocess.run([*command, "--check"], capture_output=True).returncode == 0
    (out / f"{figures.MINIATURE.name}.png").write_bytes(b"other")
    done = subprocess.run([*command, "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "stale" in done.stderr


def test_png_has_its_size(tmp_path):
    # 7.0 x 4.9 inches at 200 dots an inch
    assert struct.unpack(">II", drawn(tmp_path).files["png"][16:24]) == (1400, 980)


def line_colours(svg: str) -> dict[str, str]:
    found = {}
    for name in re.findall(r'<g id="([a-z_]+-[a-z0-9]+)">', svg):
        body = svg.split(f'<g id="{name}">')[1]
        match = re.search(r"stroke: (#[0-9a-f]{6})", body)
        assert match is not None
        found[name] = match.group(1).upper()
    return found


def test_one_colour_a_method_in_all_panels(tmp_path):
    colours = line_colours(drawn(tmp_path).files["svg"].decode())
    assert len(colours) == 16  # four methods in four panels
    for name, colour in colours.items():
        assert colour == labels.COLOURS[name.split("-")[1]]
    assert len({labels.COLOURS[m] for m in labels.METHODS}) == 4


def test_line_of_svg_has_the_data(tmp_path):
    """Pixel steps along x are equal, and along y proportional to the entropy that was logged."""
    svg = drawn(tmp_path, ("stapo",)).files["svg"].decode()
    body = svg.split('<g id="entropy-stapo">')[1]
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
    figure = drawn(tmp_path, ("justrl", "stapo"))
    assert "Not run: GRPO, 20-Entropy." in figure.caption
    assert "miniature" in figure.caption
    assert set(line_colours(figure.files["svg"].decode())) == {
        f"{p.metric}-{m}" for p in curves.PANELS for m in ("justrl", "stapo")
    }
    assert figure.block().startswith("![Training curves of the miniature")


def test_nothing_run_at_all_still_draws_and_says_so(tmp_path):
    figure = figures.training_curves(load_training_runs([tmp_path]))
    assert "Nothing has been run yet" in figure.caption
    assert figure.files["svg"].startswith(b"<?xml")


def test_several_seeds_have_a_band(tmp_path):
    one = drawn(tmp_path / "one").files["svg"].decode()
    two = drawn(tmp_path / "two", seeds=(0, 1))
    assert "FillBetweenPolyCollection" not in one
    assert two.files["svg"].decode().count('<g id="FillBetweenPolyCollection') == 16
    assert "bands reach from the lowest to the highest seed" in two.caption
