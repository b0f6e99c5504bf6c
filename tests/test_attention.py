"""Our attention on packed rows, and tokens' log-probabilities, against plain calculations; no GPU but for one test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from stapo_results.errors import BadInput, RunFailed
from stapo_training.pages import compose
from stapo_training.selection import logit_statistics
from stapo_training.start import inputs, settings
from stapo_training.verl_ext import attention, engine, logits
from stapo_training.verl_ext.attention import NAME, boundaries

LENGTHS = (5, 1, 7, 1, 2)


def model(kind: str, **settings: Any) -> torch.nn.Module:
    """A random Qwen3 with two heads of the query to each of the keys, the same for every attention."""
    config = Qwen3Config(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, initializer_range=0.3, **settings,
    )  # fmt: skip
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config, attn_implementation=kind).train()


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """A packed row's tokens and positions, (1, 16) each."""
    ids = torch.randint(0, 50, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(5))
    return ids, torch.cat([torch.arange(n) for n in LENGTHS]).unsqueeze(0)


def packed(m: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    ids, position_ids = rows()
    return of(m, lambda: m(ids, position_ids=position_ids, use_cache=False, **boundaries(position_ids)).logits[0])


def one_by_one(m: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    ids, _ = rows()
    return of(m, lambda: torch.cat([m(part, use_cache=False).logits[0] for part in ids.split(LENGTHS, dim=1)]))


def of(m: torch.nn.Module, forward: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (16, 50), and the gradient of a sum of them with random weights."""
    found = forward()
    (found * torch.randn(found.shape, generator=torch.Generator().manual_seed(7))).sum().backward()
    return found.detach(), torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_packed_row_is_its_sequences_one_by_one(checkpointing: bool) -> None:
    ours = model(NAME)
    if checkpointing:
        ours.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    for found, expected in zip(packed(ours), one_by_one(model("eager")), strict=True):
        assert (found - expected).norm() < 1e-6 * expected.norm()


def test_a_boundary_that_is_missing_changes_what_comes_after_it() -> None:
    ids, position_ids = rows()
    missing = boundaries(position_ids) | {"cu_seq_lens_q": torch.tensor([0, 5, 13, 14, 16], dtype=torch.int32)}
    found = model(NAME)(ids, position_ids=position_ids, use_cache=False, **missing).logits[0]
    difference = (found - one_by_one(model("sdpa"))[0]).abs().amax(-1)
    assert difference[:6].max() < 1e-5  # the sequences before it, and the one token that now leads
    assert difference[6:13].min() > 0.05
    assert difference[13:].max() < 1e-5


@pytest.mark.parametrize(
    ("positions", "bounds", "longest"),
    [
        ([0, 1, 2, 0, 0, 1], [0, 3, 4, 6], 3),
        ([0], [0, 1], 1),
        ([4, 5, 0, 1, 2], [0, 2, 5], 3),  # whatever the first position is, no token is left out
    ],
)
def test_boundaries_of_positions(positions: list[int], bounds: list[int], longest: int) -> None:
    found = boundaries(torch.tensor([positions]))
    assert (found["cu_seq_lens_q"].tolist(), found["max_length_q"]) == (bounds, longest)
    assert found["cu_seq_lens_q"].dtype == torch.int32


@pytest.mark.parametrize("lengths", [(8, 5), (8, 8)])
def test_padded_rows_go_to_sdpa(lengths: tuple[int, int]) -> None:
    """Also where nothing is padded: without a mask they could not be told from a packed row."""
    ids, (a, b) = rows()[0].view(2, 8), (model(kind) for kind in (NAME, "sdpa"))
    real = (torch.arange(8) < torch.tensor(lengths)[:, None]).long()
    found, expected = (m(ids, attention_mask=real, use_cache=False).logits[real.bool()] for m in (a, b))
    assert (found - expected).norm() < 1e-6 * expected.norm()


def test_what_the_kernel_does_not_compute_is_refused() -> None:
    ids, position_ids = rows()
    plain, bounds = model(NAME), boundaries(position_ids)
    sliding = model(NAME, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    dropping = model(NAME, attention_dropout=0.1)
    for m, given in ((plain, {}), (sliding, bounds), (dropping, bounds)):
        with pytest.raises(RunFailed, match=NAME):
            m(ids, position_ids=position_ids, use_cache=False, **given)


@pytest.mark.parametrize("asked", ["softcap", "s_aux"])
def test_what_sdpa_leaves_out_is_refused_on_padded_rows_too(asked: str) -> None:
    q = torch.zeros(2, 1, 4, 8)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    with pytest.raises(RunFailed, match=asked) as caught:
        attention.attend(causal_layer(), q, q, q, mask, **{asked: torch.ones(1)})  # type: ignore[arg-type]
    assert caught.value.next_step.endswith("attn_implementation=flash_attention_2")


@pytest.mark.parametrize("shape", [(4, 1, 6), (2, 6)])
def test_positions_that_are_not_one_a_token_of_a_row_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RunFailed, match="one position a token"):
        boundaries(torch.zeros(shape, dtype=torch.long))


def causal_layer() -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.is_causal = True  # type: ignore[assignment]
    return layer


def test_the_kernel_is_asked_for_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own shape rules, forward and backward, on tensors without values: causal, grouped, of one type."""
    calls, kernel = [], attention.kernel

    def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append((args, kwargs))
        return kernel(*args, **kwargs)

    monkeypatch.setattr(attention, "kernel", recorded)
    bounds = torch.empty(6, dtype=torch.int32, device="meta")
    of_type = ((4, torch.float32), (2, torch.float32), (2, torch.bfloat16))  # norms and rotation were in float32
    q, k, v = (torch.empty(1, h, 16, 8, dtype=d, device="meta", requires_grad=True) for h, d in of_type)
    out, _ = attention.attend(causal_layer(), q, k, v, None, scaling=0.3, cu_seq_lens_q=bounds, max_length_q=7)
    out.sum().backward()
    assert (out.shape, out.dtype) == ((1, 16, 4, 8), torch.bfloat16)
    assert all(t.grad is not None and t.grad.shape == t.shape for t in (q, k, v))
    [(args, kwargs)] = calls
    assert [t.shape for t in args[:5]] == [(16, 4, 8), (16, 2, 8), (16, 2, 8), (6,), (6,)]
    assert args[5:] == (7, 7)
    assert (kwargs, kernel.keywords["window_size"]) == ({"scale": 0.3}, (-1, 0))


def test_norms_in_float32_under_autocast_do_not_reach_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, kernel = [], attention.one_by_one

    def recorded(*args: Any) -> torch.Tensor:
        seen.extend(t.dtype for t in args[:3])
        return kernel(*args)

    monkeypatch.setattr(attention, "one_by_one", recorded)
    with torch.autocast("cpu", torch.bfloat16):
        (found, _), (expected, _) = packed(model(NAME)), one_by_one(model("sdpa"))
    assert set(seen) == {torch.bfloat16}
    assert (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's kernel needs a GPU")
def test_torchs_kernel_computes_what_the_loop_does() -> None:
    bounds = torch.tensor([0, 5, 6, 306, 307, 450], dtype=torch.int32, device="cuda")
    torch.manual_seed(0)
    for heads, keys, width in ((16, 8, 128), (32, 8, 128), (4, 4, 32)):
        q = torch.randn(1, heads, 450, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn_like(q[:, :keys]).requires_grad_() for _ in range(2))
        weight = torch.randn(1, 450, heads, width, device="cuda")
        found = attention.attend(causal_layer(), q, k, v, None, scaling=0.1, cu_seq_lens_q=bounds, max_length_q=300)[0]
        loop = attention.one_by_one(*(t[0].transpose(0, 1).float() for t in (q, k, v)), bounds, 0.1).unsqueeze(0)
        pairs = [(found, loop)]
        gradients = (torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (found, loop))
        pairs += zip(*gradients, strict=True)
        for ours, expected in pairs:
            assert (ours - expected).norm() < 0.01 * expected.norm()  # bfloat16 has 8 bits


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(logit_statistics._CACHED, "cpu", 3 * 50)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("in_place", [False, True])
def test_log_probabilities_and_their_gradient_bit_by_bit(in_place: bool) -> None:
    """Three tokens at a time or all at once, and whoever writes the gradient out: the same bits."""
    torch.manual_seed(1)
    given, label, weight = 5 * torch.randn(2, 5, 50), torch.randint(0, 50, (2, 5)), torch.randn(2, 5)
    z = given.clone().requires_grad_()
    plain = z.gather(-1, label.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)
    (plain * weight).sum().backward()
    leaf = given.clone().requires_grad_()
    copy = leaf * 1.0
    found = logits.LogitReading()(copy, label, inplace_backward=in_place)
    (found * weight).sum().backward()
    assert torch.equal(found, plain)
    assert torch.equal(leaf.grad, z.grad)  # type: ignore[arg-type]
    assert torch.equal(copy, z.grad if in_place else given)  # type: ignore[arg-type]


@pytest.mark.usefixtures("few_rows")
def test_log_probabilities_of_bfloat16_are_those_of_its_values_in_float32() -> None:
    torch.manual_seed(1)
    z = (5 * torch.randn(7, 50)).bfloat16().requires_grad_()
    label, weight = torch.randint(0, 50, (7,)), torch.randn(7)
    wide = z.detach().float().requires_grad_()
    expected = torch.log_softmax(wide, -1)[torch.arange(7), label]
    (expected * weight).sum().backward()
    found = logits.LogitReading()(z, label, inplace_backward=False)
    (found * weight).sum().backward()
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected.tolist(), abs=2e-6)
    assert wide.grad is not None
    assert z.grad is not None
    assert torch.allclose(z.grad.float(), wide.grad, rtol=2**-8, atol=1e-6)


def test_a_gpus_run_asks_for_it_and_its_checkpoints_do_not_name_it(
    tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    dropout = "+actor_rollout_ref.model.override_config.attention_dropout=0.25"  # another override is not lost
    config = compose(["size=mini", "hardware=1gpu", f"actor_rollout_ref.model.path={tiny_base / 'model'}", dropout])
    assert config.actor_rollout_ref.model.use_remove_padding is True
    monkeypatch.setattr(engine._VeRLEngine, "__init__", lambda self, **given: vars(self).update(given))
    ours = engine.SelectingEngine(model_config=omega_conf_to_dataclass(config.actor_rollout_ref.model))
    hf_config = ours.model_config.hf_config
    assert (hf_config._attn_implementation, hf_config.attention_dropout) == (NAME, 0.25)
    assert NAME not in hf_config.to_json_string()  # what veRL saves
    assert AutoModelForCausalLM.from_config(hf_config).config._attn_implementation == NAME


KEY = "actor_rollout_ref.model.override_config.attn_implementation"
PADDED = "actor_rollout_ref.model.use_remove_padding=false"
GPU = ("method=justrl", "size=qwen3-8b", "hardware=8gpu")
PACKAGES = ((2, ""), (3, "-3"), (4, "-4"))


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ([], None),
        *(([f"{KEY}=flash_attention_{n}"], f"flash_attention_{n}, and no package flash-attn{p}") for n, p in PACKAGES),
        ([f"~{KEY}"], "flash_attention_2, and no package flash-attn"),  # veRL's default
    ],
)
def test_an_attention_that_cannot_run_is_refused(
    overrides: list[str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_installed", lambda package: False)
    refused(settings.check_attention, [*GPU, *overrides], found)
    monkeypatch.setattr(settings, "_installed", lambda package: True)
    refused(settings.check_attention, [*GPU, *overrides], None)


def refused(check: Callable[..., object], overrides: list[str], found: object, *more: str) -> str | None:
    """The next step of the check's error, which has found `found`; None where `found` is and there is no error."""
    config = compose(overrides)
    if found is None:
        check(config, *more)
        return None
    with pytest.raises(BadInput) as caught:
        check(config, *more)
    assert caught.value.found == found
    return caught.value.next_step


@pytest.mark.parametrize("part", ["actor.fsdp_config", "actor", "ref.fsdp_config", "ref"])
def test_ulysses_is_refused_by_the_key_that_sets_it(part: str) -> None:
    key = f"actor_rollout_ref.{part}.ulysses_sequence_parallel_size"
    assert refused(settings.check_fixed, [*GPU, f"{key}=2"], 2, key) == f"set {key}=1"


def test_a_package_that_is_here_and_one_that_is_not() -> None:
    assert settings._installed("torch")
    assert not settings._installed("flash-attn-99")


QWEN = {"model_type": "qwen2", "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4}
ON_CPU = "trainer.device=cpu"


@pytest.mark.parametrize(
    ("facts", "overrides", "found", "other"),
    [
        ({}, [], None, None),
        ({"sliding_window": 4096}, [], None, None),  # Qwen's window is off unless switched on
        ({"sliding_window": 4096, "use_sliding_window": True}, [], "sliding_window 4096", "sdpa"),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 4}, [], None, None),
        ({"sliding_window": 4096, "model_type": "mistral"}, [], "sliding_window 4096", "sdpa"),
        ({"sliding_window": None, "model_type": "mistral"}, [], None, None),
        ({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, [], "sliding_window 8", "sdpa"),
        ({"attention_dropout": 0.1}, [], "attention_dropout 0.1", "sdpa"),
        ({"attention_dropout": 0.1}, [PADDED], None, None),
        ({"attention_dropout": 0.1}, [f"{KEY}=sdpa"], None, None),
        ({}, ["+actor_rollout_ref.model.override_config.attention_dropout=0.1"], "attention_dropout 0.1", "sdpa"),
        ({"attn_logit_softcapping": 50.0}, [], "attn_logit_softcapping 50.0", "flash_attention_2"),
        ({"attn_logit_softcapping": 50.0}, [PADDED], "attn_logit_softcapping 50.0", "flash_attention_2"),
        ({"head_dim": 320}, [], "head_dim 320", "sdpa"),
        ({"head_dim": 256}, [], None, None),
        ({"hidden_size": 1000, "num_attention_heads": 10}, [], "head_dim 100", "sdpa"),
        ({"head_dim": 100}, [ON_CPU], None, None),  # the loop takes every width
        ({"hidden_size": "8"}, [], None, None),  # the shape's check refuses it
    ],
)
def test_a_model_that_asks_for_more_than_the_kernel_computes_is_refused(
    facts: dict, overrides: list[str], found: str | None, other: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN | facts))
    next_step = refused(inputs.check_model_attention, [*GPU, *overrides], found, str(tmp_path))
    assert next_step == (other and f"set {KEY}={other}")
