"""Weights by hub id: pinned to a commit of the hub's cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from stapo_results.errors import BadInput
from stapo_training import pages as config_docs
from stapo_training.artifacts import weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def config(model: str, revision: str | None = COMMIT):
    return OmegaConf.create({"actor_rollout_ref": {"model": {"path": model}}, "run": {"model_revision": revision}})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one commit of one model, offline."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "models--some--model"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    )
    (snapshot / "one.safetensors").write_text("")
    (snapshot / "two.safetensors").write_text("")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("f" * 40)  # the hub has moved on
    return tmp_path


@pytest.mark.parametrize("download", [True, False])
def test_the_commit_is_read_from_the_cache_and_not_the_newest(cache: Path, download: bool) -> None:
    c = config("some/model")
    weights.pin(c, download=download)
    assert c.actor_rollout_ref.model.path == str(cache / "models--some--model" / "snapshots" / COMMIT)


def test_what_is_not_there_is_named_with_the_command_that_fetches_it(cache: Path) -> None:
    with pytest.raises(BadInput, match=f"hf download other/model --revision {COMMIT}"):
        weights.pin(config("other/model"), download=True)


def test_a_download_that_was_interrupted_is_not_a_model(cache: Path) -> None:
    (cache / "models--some--model" / "snapshots" / COMMIT / "two.safetensors").unlink()
    with pytest.raises(BadInput, match=r"lacks two\.safetensors"):
        weights.pin(config("some/model"), download=True)


def test_a_dry_run_fetches_nothing_and_folders_and_unpinned_models_stay(cache: Path) -> None:
    for model, revision, download in (
        ("other/model", COMMIT, False),
        ("/a/folder", COMMIT, True),
        ("some/model", None, True),
    ):
        c = config(model, revision)
        weights.pin(c, download=download)
        assert c.actor_rollout_ref.model.path == model


def test_the_papers_models_are_pinned() -> None:
    for size in ("qwen3-1.7b", "qwen3-8b", "qwen3-14b"):
        c = config_docs.compose(config_docs.place(size, "8gpu"))
        assert weights.is_hub_id(c.actor_rollout_ref.model.path)
        assert len(c.run.model_revision) == 40
