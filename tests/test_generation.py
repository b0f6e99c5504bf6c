"""The sampler: draws against float64 probabilities, and responses that their neighbours do not change."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from stapo_results.errors import BadInput, RunFailed
from stapo_results.generation import Drawing, Sampler, draw, generate

UNIFORM = torch.linspace(0, 1 - 1e-9, 401, dtype=torch.float64)


@pytest.fixture(scope="module")
def model() -> Any:
    """Two layers with two heads a group, of widths that fill no processor's vectors; logits spread by a few nats."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 60, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    made = Qwen3ForCausalLM(Qwen3Config(vocab_size=300, num_hidden_layers=2, intermediate_size=148, **sizes)).eval()
    for p in made.parameters():
        p.data *= 3
    return made


def _prompts(count: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 40, (count,), generator=g).tolist()
    return [torch.randint(3, 300, (n,), generator=g).tolist() for n in lengths]


@pytest.mark.parametrize("vocabulary", [50, 300, 5_000])
@pytest.mark.parametrize(
    "how",
    [
        Drawing(),
        Drawing(0.7, 0.9),
        Drawing(1.0, 0.999),
        Drawing(0.5, 1.0, 200, 0.01),
        Drawing(3.0, 0.9, 200),
        Drawing(3.0, 0.9, -1, 0.05),
    ],
)
def test_draws_follow_the_float64_distribution(vocabulary: int, how: Drawing) -> None:
    """401 equally spaced numbers: each token as often as its probability says, to one."""
    torch.manual_seed(2)
    logits = 3 * torch.randn(vocabulary)
    p = (logits.double() / how.temperature).softmax(0)
    order = p.argsort(descending=True, stable=True)
    if how.min_p:
        p[p < how.min_p * p.max()] = 0
    if how.top_k > 0:
        p[order[how.top_k :]] = 0
    p /= p.sum()
    before = p[order].cumsum(0) - p[order]
    p[order[before >= how.top_p]] = 0
    p /= p.sum()
    ids, logprob = draw(logits.repeat(len(UNIFORM), 1), UNIFORM, how)
    assert ids.tolist() == sorted(ids.tolist())
    for token, times in Counter(ids.tolist()).items():
        assert abs(times - 400 * float(p[token])) <= 1.001
    assert float((logprob - p[ids].log()).abs().max()) < 2e-6


@pytest.mark.parametrize(
    ("cuts", "left"),
    [
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"min_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),  # 0.2 < 0.6 x 0.4 = 0.24
        # 4/9, 3/9, 2/9 are left, of which the first two are 0.78; of all they are 0.7
        ({"top_k": 3, "top_p": 0.75}, [4 / 7, 3 / 7, 0, 0]),
        ({"min_p": 0.45, "top_p": 0.75}, [4 / 7, 3 / 7, 0, 0]),
        ({"min_p": 0.45, "top_k": 1}, [1, 0, 0, 0]),
    ],
)
def test_each_cut_sees_what_the_one_before_left(cuts: dict[str, Any], left: list[float]) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(len(UNIFORM), 1)
    ids, logprob = draw(logits, UNIFORM, Drawing(1.0, **cuts))
    assert sorted(set(ids.tolist())) == [i for i, p in enumerate(left) if p]
    assert logprob.exp().tolist() == pytest.approx([left[i] for i in ids.tolist()], abs=1e-6)


def test_of_equal_tokens_top_k_and_top_p_keep_the_lowest_ids() -> None:
    logits = torch.zeros(1000)
    logits[7] = 1.0
    for how in (Drawing(1.0, 1.0, 130), Drawing(1.0, (2.718281828 + 128.5) / (2.718281828 + 999))):
        ids, _ = draw(logits.repeat(len(UNIFORM), 1), UNIFORM, how)
        assert sorted(set(ids.tolist())) == list(range(130))


def test_a_token_of_probability_0_is_never_drawn() -> None:
    logits = torch.full((40_000,), -torch.inf)
    logits[[3, 39_999]] = 0.0
    last = torch.tensor([0.0, 0.4999999, 0.5, 1 - 2**-53], dtype=torch.float64)
    for how in (Drawing(), Drawing(1.0, 0.99), Drawing(0.7, 1.0, 5)):
        ids, logprob = draw(logits.repeat(4, 1), last, how)
        assert ids.tolist() == [3, 3, 39_999, 39_999]
        assert logprob.tolist() == pytest.approx([-0.6931472] * 4)


@pytest.mark.parametrize("how", [Drawing(), Drawing(0.7, 0.9), Drawing(0.0)])
def test_a_response_is_its_own_whatever_is_beside_it(model: Any, how: Drawing) -> None:
    prompts, limits = _prompts(12), {"max_new_tokens": 40, "stop_token_ids": [0, 1]}
    prompts[3], prompts[7], prompts[8] = prompts[3] * 50, [5] * 500, [6] * 1030  # more than one part to look back over
    whole = generate(model, prompts, list(range(12)), how, **limits)
    for chosen, rows in ([*reversed(range(12))], 3), ([7], 64), ([2, 9, 7, 2], 2), (range(12), 9):
        again = generate(model, [prompts[i] for i in chosen], chosen, how, rows=rows, **limits)
        assert again == [whole[i] for i in chosen]


def test_tokens_and_log_probabilities_are_those_of_the_model(model: Any) -> None:
    (prompt,) = _prompts(1)
    (found,) = generate(model, [prompt], [5], Drawing(0.8), max_new_tokens=600, stop_token_ids=[])  # the cache grows
    assert (len(found.token_ids), found.finish_reason) == (600, "length")
    ids = torch.tensor([[*prompt, *found.token_ids]])
    with torch.no_grad():
        logp = (model(ids).logits[0, len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
    expected = logp.gather(1, ids[0, len(prompt) :, None]).squeeze(1)
    assert torch.tensor(found.logprobs).tolist() == pytest.approx(expected.tolist(), abs=2e-4)
    assert model.config._attn_implementation != "stapo_rows"
    # greedy takes the model's own most probable token
    (greedy,) = generate(model, [prompt], [5], Drawing(0.0), max_new_tokens=3, stop_token_ids=[])
    own = model.generate(torch.tensor([prompt]), max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert greedy.token_ids == own[0, len(prompt) :].tolist()


def test_layers_with_a_sliding_window_see_no_further_in_prompt_and_response() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 300}
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config = Qwen2Config(**sizes, **window, num_hidden_layers=2, intermediate_size=148)
    model = Qwen2ForCausalLM(config).eval()
    for p in model.parameters():
        p.data *= 3
    prompt = list(range(30, 50))
    (found,) = generate(model, [prompt], [5], Drawing(), max_new_tokens=300, stop_token_ids=[])
    ids = torch.tensor([[*prompt, *found.token_ids]])
    with torch.no_grad():
        logp = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    expected = logp.gather(1, ids[0, len(prompt) :, None]).squeeze(1)
    assert found.logprobs == pytest.approx(expected.tolist(), abs=2e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_with_packed_weights_alone_a_model_says_the_same(tied: bool) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 60, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = Qwen3Config(vocab_size=300, num_hidden_layers=2, intermediate_size=148, tie_word_embeddings=tied, **sizes)
    model = Qwen3ForCausalLM(config).eval()
    expected = generate(model, [[5, 6, 7]], [5], Drawing(), max_new_tokens=20, stop_token_ids=[])
    sampler = Sampler(model, 4, [], packed_alone=True)
    assert sum(p.numel() for p in model.parameters() if p.dim() > 1) == 300 * 60  # the embedding
    sampler.add("it", [5, 6, 7], 5, Drawing(), 20)
    ended: list[Any] = []
    while not ended:
        ended = sampler.step()
    assert ended == [("it", expected[0])]
    assert sampler.exact


def test_a_mixture_of_experts_is_not_said_to_be_exact_and_a_model_has_one_sampler(model: Any) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4}
    config = Qwen3MoeConfig(
        vocab_size=60, num_hidden_layers=1, moe_intermediate_size=16, num_experts_per_tok=2, **sizes
    )
    mixture = Qwen3MoeForCausalLM(config).eval()
    numbers = sum(p.numel() for p in mixture.parameters())
    experts, dense = Sampler(mixture, 4, [], packed_alone=True), Sampler(model, 4, [])
    assert (experts.exact, dense.exact) == (False, True)
    assert sum(p.numel() for p in mixture.parameters()) == numbers  # a router may read its own weights
    with pytest.raises(BadInput, match="another sampler"):
        Sampler(model, 4, [])
    dense.close()
    assert generate(model, [[5]], [5], Drawing(), max_new_tokens=2, stop_token_ids=[])


def test_a_response_ends_with_the_stop_token(model: Any) -> None:
    (prompt,) = _prompts(1)
    (long,) = generate(model, [prompt], [5], Drawing(), max_new_tokens=30, stop_token_ids=[])
    stop = long.token_ids[9]
    (found,) = generate(model, [prompt], [5], Drawing(), max_new_tokens=30, stop_token_ids=[stop])
    assert found.token_ids == long.token_ids[: long.token_ids.index(stop) + 1]
    assert found.finish_reason == "stop"
    with pytest.raises(BadInput, match="without a token"):
        generate(model, [[]], [5], Drawing(), max_new_tokens=30, stop_token_ids=[])


def test_a_model_whose_attention_caps_its_scores_is_refused() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    capped = Gemma2ForCausalLM(Gemma2Config(**sizes, vocab_size=60, num_key_value_heads=1, head_dim=16)).eval()
    before = capped.config._attn_implementation
    with pytest.raises(BadInput, match="attention"):
        Sampler(capped, 4, [])
    assert capped.config._attn_implementation == before


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_model_whose_positions_depend_on_the_longest_row_is_refused(model: Any, kind: str, monkeypatch) -> None:
    (layer,) = (m for m in model.modules() if hasattr(m, "rope_type"))
    for found in (kind, {"full_attention": kind}):
        monkeypatch.setattr(layer, "rope_type", found)
        with pytest.raises(BadInput, match=kind):
            Sampler(model, 4, [])


def test_a_row_whose_logits_are_not_finite_ends_alone(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and values, too, are not: they stand where another row or the next prompt goes on."""
    prompts = sorted(_prompts(6), key=len, reverse=True)
    whole = generate(model, prompts, list(range(6)), Drawing(0.7), max_new_tokens=12, stop_token_ids=[])
    sampler = Sampler(model, 3, [])
    for i, prompt in enumerate(prompts):
        sampler.add(i, prompt, i, Drawing(0.7), 12)
    logits_of, broken = sampler._logits, 0

    def logits(ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        out = logits_of(ids, position)
        if ids.shape[1] == 1 and position[0] == len(prompts[broken]) + 4:
            out[0] = torch.nan
            for pair in sampler.slots.layers.values():
                for cache in pair:
                    cache[0, :, position[0]] = torch.nan
        return out

    monkeypatch.setattr(sampler, "_logits", logits)
    ended: dict[Any, Any] = {}
    while len(sampler):
        ended |= dict(sampler.step())
    sampler.close()
    assert isinstance(ended.pop(broken), RunFailed)
    assert ended == {i: response for i, response in enumerate(whole) if i != broken}


def test_a_model_without_a_finite_number_is_refused_at_once() -> None:
    sizes = {"hidden_size": 60, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    diverged = Qwen3ForCausalLM(Qwen3Config(vocab_size=60, num_hidden_layers=1, intermediate_size=48, **sizes)).eval()
    diverged.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(RunFailed, match="not finite"):
        Sampler(diverged, 4, [])
