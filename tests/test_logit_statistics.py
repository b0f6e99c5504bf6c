"""The two forms of the statistics of logits: numbers by hand, float64 at the paper's vocabulary, one compilation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from stapo_results.errors import BadInput
from stapo_training.selection import logit_statistics
from stapo_training.selection.logit_statistics import Form, chosen_form, gradient, statistics

V = 151_936
FORMS: tuple[Form, ...] = ("eager", "compiled")


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(logit_statistics._CACHED, "cpu", 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("few_at_a_time")
def test_statistics_by_hand(form: Form) -> None:
    logits = torch.tensor(
        [
            [0.0, 0.0, 0.0, 0.0],  # uniform over 4
            [math.log(0.5), math.log(0.25), math.log(0.25), -math.inf],
            [1e4, 0.0, -1e4, 0.0],  # one-hot
            [30000.0, 30000.0, -30000.0, -math.inf],  # one of two
        ]
    )
    found = statistics(logits, torch.tensor([3, 1, 0, 1]), form=form)
    ln2 = math.log(2)
    # float32 has two digits behind the point at 30,000
    assert found.logprob_N[:3].tolist() == pytest.approx([-2 * ln2, -2 * ln2, 0], abs=1e-6)
    assert found.entropy_N.tolist() == pytest.approx([2 * ln2, 1.5 * ln2, 0, ln2], abs=1e-6)
    assert found.collision_N.tolist() == pytest.approx([0.25, 0.375, 1, 0.5], abs=1e-6)


@pytest.mark.parametrize("form", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])  # compiles four times
def test_what_is_not_asked_for_is_not_there(form: Form) -> None:
    logits, chosen = torch.randn(5, 50), torch.arange(5)
    both = statistics(logits, chosen, form=form)
    for wants in ({"entropy": False, "collision": False}, {"entropy": False}, {"collision": False}):
        asked: dict[str, Any] = {"entropy": True, "collision": True} | wants
        found = statistics(logits, chosen, form=form, **asked)
        assert (found.entropy_N is None, found.collision_N is None) == (not asked["entropy"], not asked["collision"])
        for here, there in zip(found, both, strict=True):
            assert here is None or here.tolist() == pytest.approx(there.tolist(), abs=1e-6)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_both_forms_against_float64_at_the_papers_vocabulary(form: Form, dtype: torch.dtype) -> None:
    """One float32 sum over the whole vocabulary under torch.compile is up to 5.5e-5 nats off."""
    for spread in (1.0, 8.0):
        g = torch.Generator().manual_seed(int(spread))
        logits = (spread * torch.randn(8, V, generator=g)).to(dtype)
        chosen, upstream = torch.randint(0, V, (8,), generator=g), torch.randn(8, generator=g)
        chosen[::2] = logits[::2].argmax(-1)  # likely and rare ones
        right = logits.double().log_softmax(-1)
        p = right.exp()
        found = statistics(logits, chosen, form=form)
        wanted = right.gather(1, chosen[:, None])[:, 0], -(p * right).sum(-1), p.square().sum(-1)
        for here, there in zip((found.logprob_N, found.entropy_N, found.collision_N), wanted, strict=True):
            assert here is not None
            assert float((here.double() - there).abs().max()) < 1e-5
        p *= -upstream.double()[:, None]
        p[torch.arange(8), chosen] += upstream.double()
        gradient(logits, chosen, found.logsumexp_N, upstream, logits, form)
        assert float((logits.double() - p).norm() / p.norm()) < (1e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_are_exact_under_autocast(dtype: torch.dtype) -> None:
    """Where the engine calls them: matrix products would be of lower precision there."""
    logits, chosen = torch.randn(50, 3000, generator=torch.Generator().manual_seed(1)), torch.arange(50)
    expected = statistics(logits, chosen)
    with torch.autocast("cpu", dtype):
        assert all(map(torch.equal, statistics(logits, chosen), expected))


def test_other_numbers_of_rows_compile_nothing_anew() -> None:
    from torch._dynamo.utils import counters

    def work(rows: int) -> None:
        logits, chosen = torch.randn(rows, 256), torch.zeros(rows, dtype=torch.long)
        found = statistics(logits, chosen, form="compiled")
        gradient(logits, chosen, found.logsumexp_N, torch.ones(rows), logits, "compiled")

    work(7)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    for rows in (2, 9, 100, 513):
        work(rows)
    assert counters["stats"]["unique_graphs"] == graphs


def test_a_form_is_chosen_by_vocabulary_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {v: chosen_form("auto", v, "cpu") for v in (50, V, V + 1)}
    assert found == {50: "eager", V: "compiled", V + 1: "eager"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a plan, or a driver on a node without GPUs
    assert chosen_form("auto", V, "cuda") == "compiled"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert chosen_form("auto", V, "cpu") == "eager"
    with pytest.raises(BadInput, match="compiler"):
        chosen_form("compiled", V, "cpu")
    with pytest.raises(BadInput, match="unknown form"):
        chosen_form("fused", V, "cpu")
