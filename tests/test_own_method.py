"""A user's method: an overlay in a file, and a selector in another one beside it."""

import json
import math
from pathlib import Path

import pytest
import torch

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_training.methods import selector_from
from stapo_training.selection import own
from stapo_training.selection.token_stats import TokenStats
from stapo_training.start import launch
from stapo_training.start.configuration import compose, in_full

FUNCTION = '''
import math
from stapo_training.selection.selectors import Selection, alone, quantile


def symmetric(stats, *, tau_p, q, pool=alone, threshold=None, least=0.0):
    """S2T without its condition on the advantage."""
    rare_N = stats.response_N & (stats.logprob_N < math.log(tau_p))
    if threshold is None:
        threshold = quantile(pool(stats.entropy_N[rare_N]), q)
    silenced_N = rare_N & (stats.entropy_N.double() < threshold)
    return Selection(stats.response_N & ~silenced_N, rare_N, threshold)
'''
OVERLAY = """
actor_rollout_ref:
  selector:
    name: mine.py:symmetric
    tau_p: 0.004
    q: 0.5
  actor:
    clip_ratio_high: 0.25
    use_kl_loss: false
    ppo_epochs: 1
"""
MINI = ("size=mini", "hardware=cpu", "run.base=/b", "run.out=/o")


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FUNCTION)
    (tmp_path / "mine.yaml").write_text(OVERLAY)
    return tmp_path / "mine.yaml"


def test_an_overlay_in_a_file_is_a_method(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(overlay.parent)
    config = compose(["method=mine.yaml", *MINI])
    a = config.actor_rollout_ref
    assert (config.run.method, a.selector.name) == ("mine", f"{overlay.parent / 'mine.py'}:symmetric")
    assert (a.selector.tau_p, a.selector.q, a.actor.clip_ratio_high) == (0.004, 0.5, 0.25)
    assert (a.actor.use_kl_loss, a.actor.ppo_epochs, type(a.actor.ppo_epochs)) == (False, 1, int)
    assert a.actor.loss_agg_mode == "token-mean"  # JustRL's
    assert in_full("method=mine.yaml") == f"method={overlay}"


@pytest.mark.parametrize(
    ("method", "override", "name", "label"),
    [
        ("mine.yaml", "q=0.25", "{here}/mine.py:symmetric", "mine-q0.25"),
        ("stapo", "name=mine.py:symmetric", "{here}/mine.py:symmetric", "stapo-mine-symmetric"),
        ("stapo", "name=mine:symmetric", "mine:symmetric", "stapo-mine-symmetric"),
    ],
)
def test_a_selector_of_the_command_line_is_found_from_anywhere_and_part_of_the_label(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, method: str, override: str, name: str, label: str
) -> None:
    monkeypatch.chdir(overlay.parent)
    monkeypatch.syspath_prepend(overlay.parent)
    config = compose([f"method={method}", *MINI, f"actor_rollout_ref.selector.{override}"])
    selector = config.actor_rollout_ref.selector
    assert (selector.name, config.run.method) == (name.format(here=overlay.parent), label)
    assert own.file_of(selector.name) == overlay.parent / "mine.py"  # of which the run keeps a copy
    assert selector_from(selector).parameters.keys() == {"tau_p", "q"}


def test_its_function_selects_by_a_forward_pass(overlay: Path) -> None:
    config = compose([f"method={overlay}", *MINI])
    selector = selector_from(config.actor_rollout_ref.selector)
    assert (selector.own_pass, selector.parameters) == (True, {"tau_p": 0.004, "q": 0.5})
    stats = TokenStats(
        logprob_N=torch.tensor([0.003, 0.003, 0.003, 0.5]).log(),
        entropy_N=torch.tensor([0.1, 0.2, 0.3, 0.0]),
        advantage_N=torch.tensor([1.0, -1.0, -1.0, 1.0]),
        response_N=torch.ones(4, dtype=torch.bool),
    )
    found = selector.select(stats)
    assert math.isclose(found.threshold, 0.2, rel_tol=1e-6)  # the median of the three rare tokens' entropies
    assert found.keep_N.tolist() == [False, True, True, True]


def test_the_run_records_its_own_copy_of_the_function_and_its_hash(overlay: Path, tmp_path: Path) -> None:
    config = compose([f"method={overlay}", *MINI, f"run.out={tmp_path / 'out'}"])
    record = launch.new_record(config, [])
    kept = tmp_path / "out" / "selector" / "mine.py"
    assert record.config["actor_rollout_ref"]["selector"]["name"] == f"{kept}:symmetric"
    assert record.revisions["selector"] == store.sha256_file(overlay.parent / "mine.py")
    launch._keep_selector(config)
    assert kept.read_text() == FUNCTION
    (overlay.parent / "mine.py").write_text(f"{FUNCTION}\nopen(__file__ + '.ids')")
    (overlay.parent / "mine.py.ids").touch()
    with pytest.raises(BadInput, match=r"FileNotFoundError"):
        launch._keep_selector(compose([f"method={overlay}", *MINI, f"run.out={tmp_path / 'other'}"]))
    (overlay.parent / "mine.py").write_text("changed")
    assert selector_from(config.actor_rollout_ref.selector).parameters == {"tau_p": 0.004, "q": 0.5}


@pytest.mark.parametrize("name", ["stapo.yaml", "base.yaml"])
def test_a_file_named_like_a_method_of_ours_is_refused(overlay: Path, name: str) -> None:
    overlay.rename(overlay.with_name(name))
    with pytest.raises(BadInput):
        compose([f"method={overlay.with_name(name)}", *MINI])


@pytest.mark.parametrize("value", ["a'b", "a\\b", "a\\'b", "a\\", "", "x=y,[z]"])
def test_any_text_of_an_overlay_arrives(overlay: Path, value: str) -> None:
    overlay.write_text(f"trainer:\n  project_name: {json.dumps(value)}\n")
    assert compose([f"method={overlay}", *MINI]).trainer.project_name == value


@pytest.mark.parametrize("text", [None, "- a list\n", OVERLAY.replace("tau_p", "tau_x")])
def test_what_is_no_method_is_refused(overlay: Path, text: str | None) -> None:
    if text is None:
        overlay.unlink()
    else:
        overlay.write_text(text)
    with pytest.raises(BadInput):
        compose([f"method={overlay}", *MINI])


@pytest.mark.parametrize(("name", "text"), [
    ("nosuch.py:f", FUNCTION), ("no.such:f", FUNCTION), ("mine.py:nosuch", FUNCTION),
    ("mine.py:OVERLAY", "OVERLAY = 1"), ("mine.py:symmetric", "import nosuch"),
    ("mine.py:symmetric", "def symmetric(:"),
    ("mine.py:symmetric", FUNCTION.replace("least=0.0", "least")),  # a parameter without a value
    ("mine.py:symmetric", FUNCTION.replace(", pool=alone", "")),
    ("mine.py:symmetric", FUNCTION.replace("quantile(pool(", "float(max(").replace(", q)", ")")),  # of no candidate
    ("mine.py:symmetric", FUNCTION.replace("pool(", "pull(")),
    ("mine.py:symmetric", FUNCTION.replace("return Selection(stats.response_N & ~silenced_N, rare_N, threshold)",
                                           "return stats.response_N & ~silenced_N")),
    ("mine.py:symmetric", FUNCTION.replace("stats.response_N & ~silenced_N", "~silenced_N")),
    ("mine.py:symmetric", FUNCTION.replace("rare_N, threshold)", "rare_N.float(), threshold)")),
    ("mine.py:symmetric", FUNCTION.replace("rare_N, threshold)", "rare_N, None)")),
])  # fmt: skip
def test_a_selector_that_is_not_there_or_does_not_load_is_refused(
    overlay: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(overlay.parent)
    (overlay.parent / "mine.py").write_text(text)
    own.load.cache_clear()
    with pytest.raises(BadInput):
        selector_from({"name": name})
