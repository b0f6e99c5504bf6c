"""The arithmetic of memory: parameter counts, a layer's saved bytes, budgets and refusals, worked out by hand."""

from typing import Any

import pytest

from stapo_results import shapes
from stapo_results.errors import BadInput
from stapo_training.run.configuration import compose
from stapo_training.run.preflight import inputs, memory

KNOWN = {k: shapes.shape_from(v, k) for k, v in shapes.KNOWN.items()}
SMALL, MIDDLE, LARGE = (KNOWN[f"Qwen/Qwen3-{s}-Base"] for s in ("1.7B", "8B", "14B"))

# 2 layers, width 8, 2 heads of 4, 1 key head, MLP 16, vocabulary 32, tied: small enough for a pencil.
#   layer: q 8*8 + o 8*8 + k 8*4 + v 8*4 = 192; MLP 3*8*16 = 384; norms 2*8 + 2*4 = 24; together 600
#   root: 32*8 + 8 = 264;  all: 2*600 + 264 = 1464
TOY = shapes.Shape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab=32, tied=True)


def eight_cards(**fsdp: bool) -> Any:
    """8 ranks, 32,768 tokens, bf16, checkpointing, vLLM with 0.6 of the card, nothing offloaded but what is given."""
    c = compose(["size=qwen3-8b", "hardware=8gpu", "method=stapo", "run.data=/d", "run.out=/o"])
    c.actor_rollout_ref.rollout.gpu_memory_utilization = 0.6
    c.actor_rollout_ref.rollout.max_num_batched_tokens = 8192
    for name in ("param_offload", "optimizer_offload", "offload_policy"):
        c.actor_rollout_ref.actor.fsdp_config[name] = fsdp.get(name, False)
    return c


def gib(config: Any, shape: shapes.Shape = MIDDLE, card: float | None = 80.0, host: float = 1024) -> dict[str, float]:
    return {n.moment: round(n.gib, 2) for n in memory.needs(config, shape, card, host)}


def test_parameters_of_a_model_worked_by_hand() -> None:
    assert (TOY.layer_parameters, TOY.root_parameters, TOY.parameters) == (600, 264, 1464)


@pytest.mark.parametrize(
    ("shape", "parameters"), [(SMALL, 1_720_574_976), (MIDDLE, 8_190_735_360), (LARGE, 14_768_307_200)]
)
def test_parameters_of_the_papers_models(shape: shapes.Shape, parameters: int) -> None:
    assert shape.parameters == parameters


def test_parameters_are_what_transformers_builds() -> None:
    import torch
    from transformers import Qwen2Config, Qwen3Config
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    sizes = {
        "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 16, "vocab_size": 32,
    }  # fmt: skip
    for config in (
        Qwen3Config(**sizes, head_dim=4, tie_word_embeddings=True),
        Qwen3Config(**sizes, head_dim=4, tie_word_embeddings=False),
        Qwen2Config(**sizes, tie_word_embeddings=True),
    ):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert shapes.shape_from(config.to_dict(), "").parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("width", "dtype"), [(2, "bfloat16"), (4, "float32")])
def test_a_layers_saved_bytes_are_what_autograd_keeps(width: int, dtype: str) -> None:
    """Counted on transformers' own layer; what the formula leaves out is one number a token and norm or head."""
    import torch
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

    shape = shapes.Shape(1, hidden=256, heads=8, kv_heads=4, head_dim=32, intermediate=768, vocab=64, tied=True)
    config = Qwen3Config(
        hidden_size=256, num_attention_heads=8, num_key_value_heads=4, head_dim=32, intermediate_size=768,
        num_hidden_layers=1, vocab_size=64, attn_implementation="sdpa",
    )  # fmt: skip
    tokens = 64
    layer = Qwen3DecoderLayer(config, 0).to(getattr(torch, dtype))
    x = torch.randn(1, tokens, 256, dtype=getattr(torch, dtype), requires_grad=True)
    angles = Qwen3RotaryEmbedding(config)(x, torch.arange(tokens)[None])
    weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    kept = {}

    def keep(t: torch.Tensor) -> torch.Tensor:
        if t.untyped_storage().data_ptr() not in weights:
            kept[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        layer(x, position_embeddings=angles, attention_mask=None)
    measured = sum(t.untyped_storage().nbytes() for t in kept.values()) / tokens
    small = 4 * (2 + 8 + 4 + 8) + 2 * 32 * width  # a norm's root a norm and head, the attention's sum; cos and sin
    assert measured == shape.saved_bytes_per_token(width) + small
    # bf16: 16*256 + 10*(256 + 128) + 8*768; fp32: 24*256 + 16*384 + 16*768
    assert shape.saved_bytes_per_token(width) == {2: 14080, 4: 24576}[width]


def test_the_budget_of_8b_on_eight_gpus_by_hand() -> None:
    """8,190,735,360 parameters, 8 ranks, 32,768 tokens, bf16, checkpointing, an 80 GiB card.

    Weights and gradients are 4 * 8190735360 / 8 / 2**30 = 3.814 each, AdamW's moments 7.628; gathered weights are
    2 * (2*151936*4096 + 4096 + 2*192946432) / 2**30 = 3.037; contexts and the sleeping rollout 4.5.
    """
    c = eight_cards()
    c.actor_rollout_ref.rollout.tensor_model_parallel_size = 2
    found = gib(c)
    # activations: 32768 * 2*4096 * 36 / 2**30 = 9; a layer's: 32768 * 215040 / 2**30 = 6.562, their gradients
    # 32768 * 4*(12288 + 4096) / 2**30 = 2, gradients not yet scattered 6 * (1244663808 + 192946432) / 2**30 = 8.033;
    # more than the logits, 32768 * 151936 * 2 / 2**30 = 9.273
    assert found["update"] == pytest.approx(15.256 + 3.037 + 9.0 + 6.562 + 2.0 + 8.033 + 4.5, abs=0.01)
    assert found["sampling and saving"] == pytest.approx(3.814 + 7.628 + 48.0 + 3.0, abs=0.01)
    assert found["optimizer step"] == pytest.approx(15.256 + 3.814 + 4.5, abs=0.01)
    # weights 2 * 8190735360 / 2 / 2**30; (8192 * 2*(4*4096 + 3*12288/2) + 4*256*151936) / 2**30; and the cache of one
    # longest sequence, 16384 * 147456 / 2 / 2**30
    assert found["the rollout's share"] == pytest.approx(7.628 + 0.676 + 1.125, abs=0.01)
    assert found["loading, host memory"] == pytest.approx(30.513 + 64, abs=0.01)
    assert found["training, host memory"] == 64


def test_offloading_moves_what_it_says_and_no_more() -> None:
    """param_offload and optimizer_offload empty the card while sampling only; the offload policy for good."""
    plain, moved = gib(eight_cards()), gib(eight_cards(param_offload=True, optimizer_offload=True))
    assert moved["update"] == plain["update"]
    assert moved["sampling and saving"] == pytest.approx(plain["sampling and saving"] - 7.628, abs=0.01)
    assert moved["training, host memory"] == pytest.approx(30.513 + 61.026 + 64, abs=0.01)
    policy = gib(eight_cards(offload_policy=True))
    assert policy["update"] == pytest.approx(plain["update"] - 15.256, abs=0.01)
    assert policy["training, host memory"] == pytest.approx(30.513 + 30.513 + 61.026 + 64, abs=0.01)


def test_the_logits_of_a_small_model_are_its_peak() -> None:
    # state 16 * 1720574976 / 8 / 2**30; gathered 2 * (311166976 + 2*50336000) / 2**30; 32768 * 2*2048 * 28 / 2**30
    # logits once, 32768 * 151936 * 2 / 2**30, and the entropy of 2,048 tokens at a time: 2048 * 151936 * 4 * 3 / 2**30
    peak = 9.273 + 3.478
    assert gib(eight_cards(), SMALL)["update"] == pytest.approx(3.205 + 0.767 + 3.5 + peak + 4.5, abs=0.01)


@pytest.mark.parametrize(
    ("override", "more"),
    [
        ({"rollout.temperature": 0.7}, 9.273),  # scaled logits: 32768 * 151936 * 2 / 2**30
        ({"actor.calculate_entropy": True}, 9.273 + 37.094),  # the gradient; all logits and probabilities, fp32
        ({"actor.entropy_coeff": 0.01, "rollout.temperature": 0.7}, 9.273 * 2 + 37.094),
    ],
)
def test_scaled_logits_and_an_entropy_in_training_take_more(override: dict, more: float) -> None:
    c = eight_cards()
    plain = gib(c, SMALL)["update"]
    for key, value in override.items():
        part, name = key.split(".")
        c.actor_rollout_ref[part][name] = value
    assert gib(c, SMALL)["update"] == pytest.approx(plain + more, abs=0.01)


def test_what_the_loss_of_a_cpu_takes_more() -> None:
    c = compose(["size=mini", "hardware=cpu", "run.base=/b", "run.out=/o"])
    c.data.max_prompt_length, c.data.max_response_length = 1024, 15360
    c.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 1
    plain = gib(c, SMALL, None, 64.0)["update"]
    c.actor_rollout_ref.actor.entropy_coeff, c.actor_rollout_ref.rollout.temperature = 0.01, 0.7
    # 16384 * 151936 * (4 + 4 + 2*4) / 2**30
    assert gib(c, SMALL, None, 64.0)["update"] == pytest.approx(plain + 37.09, abs=0.02)


@pytest.mark.parametrize(("shape", "gib_read"), [(SMALL, 51.277), (LARGE, 55.016)])
def test_tied_weights_are_read_by_every_rank(shape: shapes.Shape, gib_read: float) -> None:
    assert gib(eight_cards(), shape)["loading, host memory"] == pytest.approx(gib_read + 64, abs=0.01)


def test_a_machine_without_a_gpu_by_hand() -> None:
    """1.7B on a CPU, one rank, one sequence of 16,384 tokens a micro-batch, unpacked, no checkpointing."""
    c = compose(["size=mini", "hardware=cpu", "run.base=/b", "run.out=/o"])
    c.data.max_prompt_length, c.data.max_response_length = 1024, 15360
    c.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 1
    c.actor_rollout_ref.model.enable_gradient_checkpointing = False
    c.actor_rollout_ref.rollout.max_num_seqs = 8
    # 16 + 4 bytes of 1720574976 parameters and 4 GiB of processes
    resident = 25.639 + 6.410 + 4.0
    # 16384 * 28 * (24*2048 + 16*3072 + 16*6144) / 2**30 = 84; 16384 * 151936 * 4 * 3 / 2**30 = 27.82
    assert gib(c, SMALL, None, 64.0) == {
        "update": pytest.approx(resident + 84.0 + 27.82, abs=0.01),
        "sampling": pytest.approx(resident + 28.0, abs=0.01),  # 8 * 16384 * 229376 / 2**30
    }


def test_a_refusal_has_both_numbers_and_the_settings_that_lower_it() -> None:
    c = eight_cards()
    c.trainer.n_gpus_per_node = 1
    with pytest.raises(BadInput) as e:
        memory.check(c, MIDDLE, 79.6, 512.0)
    assert "79.6 GiB" in str(e.value.expected)
    assert "offload_policy=true" in e.value.next_step
    c.actor_rollout_ref.actor.fsdp_config.offload_policy = True
    assert 0 < memory.check(c, SMALL, 79.6, 512.0).room < 79.6


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba"}, r"(?s)cannot be worked out.*model_type mamba"),
        ({"model_type": "qwen3", "hidden_size": "8", "num_attention_heads": 2}, "no usable hidden_size"),
    ],
)
def test_a_config_that_says_too_little_is_refused(config: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        shapes.shape_from(config, "model")


def test_a_local_folder_goes_before_the_known_facts(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, '
        '"num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32}')  # fmt: skip
    # no head norms, 2 key heads of 4: layer 4*64 + 384 + 16 = 656; root 2*256 + 8
    assert inputs.find_shape(str(tmp_path)).parameters == 2 * 656 + 256 + 256 + 8
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match="is not JSON"):
        inputs.find_shape(str(tmp_path))
    with pytest.raises(BadInput, match="hf download some/model"):
        inputs.find_shape("some/model")
