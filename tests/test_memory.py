"""The arithmetic of memory: parameter counts, a layer's saved bytes, budgets and refusals, worked out by hand."""

from dataclasses import replace

import pytest

from stapo_results import shapes
from stapo_results.errors import BadInput
from stapo_training.run.preflight import fit, inputs, memory
from stapo_training.run.preflight.memory import MemoryPlan

KNOWN = {k: shapes.shape_from(v, k) for k, v in shapes.KNOWN.items()}
SMALL, MIDDLE, LARGE = (KNOWN[f"Qwen/Qwen3-{s}-Base"] for s in ("1.7B", "8B", "14B"))

# 2 layers, width 8, 2 heads of 4, 1 key head, MLP 16, vocabulary 32, tied: small enough for a pencil.
#   layer: q 8*8 + o 8*8 + k 8*4 + v 8*4 = 192; MLP 3*8*16 = 384; norms 2*8 + 2*4 = 24; together 600
#   root: 32*8 + 8 = 264;  all: 2*600 + 264 = 1464
TOY = shapes.Shape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab=32, tied=True)
PLAN = MemoryPlan(
    MIDDLE, ranks=8, ranks_per_node=8, micro_tokens=32768, logprob_tokens=32768, sequence_tokens=16384,
    tensor_parallel=1, utilization=0.6, sleeps=True, sequences=256, batched_tokens=8192,
)  # fmt: skip


def gib(moments, name: str) -> dict[str, float]:
    (moment,) = [m for m in moments if m.name == name]
    return {part: round(size, 3) for part, size in moment.parts.items()}


def test_parameters_of_a_model_worked_by_hand() -> None:
    assert (TOY.layer_parameters, TOY.root_parameters, TOY.parameters) == (600, 264, 1464)
    assert replace(TOY, tied=False).parameters == 1464 + 256
    assert replace(TOY, qkv_bias=True, qk_norm=False).layer_parameters == 600 + 16 - 8


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
    """8,190,735,360 parameters, 8 ranks, 32,768 tokens, bf16, checkpointing, an 80 GiB card."""
    moments = memory.gpu_moments(replace(PLAN, tensor_parallel=2), 80.0)
    assert gib(moments, "update, at the loss") == {
        "weights, fp32": 3.814,  # 4 * 8190735360 / 8 / 2**30
        "gradients, fp32": 3.814,
        "AdamW moments, fp32": 7.628,
        "gathered weights": 3.037,  # 2 * (2*151936*4096 + 4096 + 2*192946432) / 2**30
        "activations": 9.0,  # 32768 * 2*4096 * 36 / 2**30
        "logits": 9.273,  # 32768 * 151936 * 2 / 2**30
        "contexts and buffers, assumed": 3.0,
        "rollout asleep, assumed": 1.5,
    }
    backward = gib(moments, "update, backward through a layer")
    assert backward["a layer's activations"] == 6.562  # 32768 * 215040 / 2**30
    assert backward["a layer's activation gradients"] == 2.0  # 32768 * 4*(12288 + 4096) / 2**30
    assert backward["gradients not yet scattered"] == 8.033  # 6 * (1244663808 + 192946432) / 2**30
    assert gib(moments, "generation") == {
        "weights, fp32": 3.814, "AdamW moments, fp32": 7.628, "rollout": 48.0, "contexts and buffers, assumed": 3.0,
    }  # fmt: skip
    assert gib(moments, "the rollout's share") == {
        "weights": 7.628,  # 2 * 8190735360 / 2 / 2**30
        "working space": 0.676,  # (8192 * 2*(4*4096 + 3*12288/2) + 4*256*151936) / 2**30
        "KV cache of one longest sequence": 1.125,  # 16384 * 147456 / 2 / 2**30
    }


def test_offloading_moves_what_it_says_and_no_more() -> None:
    """param_offload and optimizer_offload empty the card for generation only; the offload policy for good."""
    moved = replace(PLAN, param_offload=True, optimizer_offload=True)
    card = memory.gpu_moments(moved, 80.0)
    assert set(gib(card, "generation")) == {"rollout", "contexts and buffers, assumed"}
    assert gib(card, "update, at the loss")["AdamW moments, fp32"] == 7.628
    assert gib(memory.host_moments(moved, 512), "training, host memory") == {
        "weights": 30.513, "AdamW moments": 61.026, "processes, assumed": 64.0,
    }  # fmt: skip
    policy = replace(PLAN, offload_policy=True)
    card = memory.gpu_moments(policy, 80.0)
    assert not any("fp32" in part for m in card for part in m.parts)
    assert "optimizer step" not in [m.name for m in card]
    assert gib(memory.host_moments(policy, 512), "training, host memory") == {
        "weights": 30.513, "gradients": 30.513, "AdamW moments": 61.026, "processes, assumed": 64.0,
    }  # fmt: skip


@pytest.mark.parametrize(("copies", "logits"), [(0, 0.0), (1, 9.273), (3, 27.82)])
def test_the_logits_with_fused_kernels_with_and_without_flash_attention(copies: int, logits: float) -> None:
    moments = memory.gpu_moments(replace(PLAN, shape=SMALL, vocabulary_copies=copies), 80)
    assert gib(moments, "update, at the loss")["logits"] == logits  # 32768 * 151936 * 2 * copies / 2**30


def test_the_entropy_in_chunks_of_2048_tokens() -> None:
    chunked = replace(PLAN, shape=SMALL, entropy_chunk=2048)
    moments = memory.gpu_moments(chunked, 80)
    for name in ("update, at the loss", "log-probabilities"):
        assert gib(moments, name)["entropy of a chunk"] == 3.478  # 2048 * 151936 * 4 * 3 / 2**30


@pytest.mark.parametrize(("shape", "gib_read"), [(SMALL, 51.277), (LARGE, 55.016)])
def test_tied_weights_are_read_by_every_rank(shape: shapes.Shape, gib_read: float) -> None:
    moments = memory.host_moments(replace(PLAN, shape=shape), 512)
    assert gib(moments, "loading, host memory")["weights being read"] == gib_read


def test_a_machine_without_a_gpu_by_hand() -> None:
    """1.7B on a CPU, one rank, one sequence of 16,384 tokens a micro-batch, unpacked, no checkpointing."""
    plan = replace(
        PLAN, shape=SMALL, cpu=True, ranks=1, ranks_per_node=1, micro_tokens=16384, checkpointing=False, width=4,
        sequences=8,
    )  # fmt: skip
    moments = plan.moments(None, 64.0)
    assert gib(moments, "update") == {
        "weights, gradients, moments": 25.639,  # 16 * 1720574976 / 2**30
        "rollout's weights": 6.410,
        "activations": 84.0,  # 16384 * 28 * (24*2048 + 16*3072 + 16*6144) / 2**30
        "logits": 27.82,  # 16384 * 151936 * 4 * 3 / 2**30
        "processes": 4.0,
    }
    assert gib(moments, "generation")["rollout's cache"] == 28.0  # 8 * 16384 * 229376 / 2**30


def test_a_refusal_shows_the_arithmetic_and_what_to_change() -> None:
    plan = replace(PLAN, ranks=1, ranks_per_node=1)
    with pytest.raises(BadInput) as e:
        fit.check_fit(plan, 79.6, 512.0)
    # 4 + 4 + 8 + 4 B of 8,190,735,360 parameters and 4.5 GiB: 20 * 7.62822 + 4.5 = 157.06
    assert str(e.value.found).splitlines()[1:] == [
        "       61.03 GiB  AdamW moments, fp32",
        "       30.51 GiB  weights, fp32",
        "       30.51 GiB  gradients, fp32",
        "       30.51 GiB  AdamW's scratch",
        "        3.00 GiB  contexts and buffers, assumed",
        "        1.50 GiB  rollout asleep, assumed",
        "      157.06 GiB  sum, of 79.6 GiB there",
    ]
    assert e.value.next_step == "actor_rollout_ref.actor.fsdp_config.offload_policy=true"
    assert fit.check_fit(replace(plan, offload_policy=True), 79.6, 512.0)


def test_a_refusal_names_only_changes_that_are_needed_and_suffice() -> None:
    one = replace(PLAN, shape=SMALL, ranks=1, ranks_per_node=1)
    # 1.7B on a 48 GiB card: the update fits (43.7 GiB), generation does not: 0.75 * 48 + 3 + 6.4 (weights) + 12.8
    optimizer, weights = (f"actor_rollout_ref.actor.fsdp_config.{p}_offload=true" for p in ("optimizer", "param"))
    assert fit.changes_that_fit(replace(one, utilization=0.75), 48.0, 256.0) == [optimizer]
    # at 0.85 the weights do not fit beside the rollout either (50.2), and saving needs them there
    assert weights not in fit.changes_that_fit(replace(one, utilization=0.85), 48.0, 256.0)
    large = replace(one, shape=LARGE)
    assert fit.changes_that_fit(large, 24.0, 64.0) == []
    with pytest.raises(BadInput) as e:
        fit.check_fit(large, 24.0, 64.0)
    assert "more GPUs" in e.value.next_step


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba"}, r"(?s)cannot be worked out.*model_type mamba"),
        ({"model_type": "qwen3", "hidden_size": 8}, "no usable num_attention_heads"),
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
    with pytest.raises(BadInput, match="not JSON"):
        inputs.find_shape(str(tmp_path))
    with pytest.raises(BadInput, match="hf download some/model"):
        inputs.find_shape("some/model")
