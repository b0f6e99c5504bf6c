"""Fixtures that several test files use."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the library is imported: a test fetches nothing

# a limit of wall time a case would test the machine's load, not the code
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of each study the first test is among the quick ones, the others are for the night."""
    studies, seen = Path(__file__).parent / "studies", set[Path]()
    for item in items:
        if studies in item.path.parents:
            if item.path.parent in seen:
                item.add_marker("nightly")
            seen.add(item.path.parent)


@pytest.fixture
def no_run_left() -> Iterator[None]:
    """A training that a failed test started ends with the test."""
    from training_runs import kill_started

    yield
    kill_started()


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base folder of the miniature whose model is trained for a few steps only: real in form, not in skill."""
    from stapo_training.miniature.build import BasePlan, build_base
    from stapo_training.miniature.pretrain import Recipe

    out = tmp_path_factory.mktemp("base") / "base"
    build_base(out, seed=0, plan=BasePlan(train_prompts=64, benchmark_rows=8), recipe=Recipe(steps=3, warmup=1))
    return out


@pytest.fixture(scope="session")
def skilled_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The miniature's base folder with the carried weights: its answers are sometimes right."""
    from stapo_training.miniature.build import build_base

    out = tmp_path_factory.mktemp("base") / "base"
    build_base(out)
    return out
