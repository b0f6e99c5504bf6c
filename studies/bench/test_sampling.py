"""What the bench of samplers counts."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from studies.bench.sampling import Way, sample


@pytest.mark.parametrize("sampler", ["now", "transformers.generate"])
def test_response_tokens_are_counted_up_to_the_stop_token(sampler: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=50, num_hidden_layers=1, intermediate_size=64, **sizes)).eval()
    way = Way(sampler, "float32", "t0.7")
    assert sample(way, model, [[3], [4, 5]], 7, [60], 0) == 14
    assert sample(way, model, [[3], [4, 5]], 7, list(range(50)), 0) == 2
