"""The socket of the weight transfer has the training in its name, on both sides; vLLM has to load what sees to it."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.metadata import EntryPoint

import pytest

from stapo_results.errors import BadInput
from stapo_training.verl_ext import vllm_plugin

ADDRESS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"


def test_two_trainings_have_two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_plugin.RUN, raising=False)
    assert vllm_plugin.own_socket(ADDRESS) == ADDRESS  # an evaluation's engine
    found = []
    for run in ("a1", "b2"):
        monkeypatch.setenv(vllm_plugin.RUN, run)
        found.append(vllm_plugin.own_socket(ADDRESS))
    assert found == [ADDRESS.replace(".sock", "-a1.sock"), ADDRESS.replace(".sock", "-b2.sock")]


@pytest.mark.parametrize(
    ("value", "allowed", "refused"),
    [
        ("stapo_training.verl_ext.vllm_plugin:register", None, ""),
        ("stapo_training.verl_ext.vllm_plugin:register", "other,stapo_rollout", ""),
        ("stapo_training.verl_ext.vllm_plugin:register", "other", "VLLM_PLUGINS"),
        ("stapo_training.verl_ext.vllm_cpu:register", None, "would not find"),
    ],
)
def test_a_plugin_that_vllm_does_not_load_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str, allowed: str | None, refused: str
) -> None:
    entries = [EntryPoint(vllm_plugin.NAME, value, "vllm.general_plugins")]
    monkeypatch.setattr(vllm_plugin, "entry_points", lambda group: entries)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("VLLM_PLUGINS", allowed)
    with pytest.raises(BadInput, match=refused) if refused else nullcontext():
        vllm_plugin.check_installed()
