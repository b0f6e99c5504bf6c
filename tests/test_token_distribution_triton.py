"""The Triton kernel against the reference and float64: on CUDA, or in Triton's interpreter where there is none.

Without CUDA this needs Triton installed and TRITON_INTERPRET=1, and with Triton 3.6 a numpy below 2.4:

    TRITON_INTERPRET=1 pytest tests/test_token_distribution_triton.py
"""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from token_cases import NAMES, assert_equals_float64, generator, random_case

from stapo_training.selection.token_distribution import TokenDistribution, score_tokens_reference

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no CUDA, and TRITON_INTERPRET is not 1", allow_module_level=True)

from stapo_training.selection import token_distribution_triton  # noqa: E402  # imports triton


def run(*tensors: torch.Tensor, splits: int = 2, **more: torch.Tensor) -> TokenDistribution:
    moved = {name: tensor.to(DEVICE) for name, tensor in more.items()}
    found = token_distribution_triton.score_tokens(*(t.to(DEVICE) for t in tensors), splits=splits, **moved)
    return TokenDistribution(*(getattr(found, name).cpu() for name in NAMES))


def special(name: str) -> torch.Tensor:
    """Four rows of 200 logits."""
    z = torch.randn(4, 200, generator=generator(1))
    rows, ids = torch.arange(4), torch.tensor([3, 64, 199, 128])
    if name == "uniform":
        z.fill_(-2.5)
    elif name == "one-hot":
        z.fill_(-1e4)[rows, ids] = 1e4
    elif name == "far apart":
        z = z.sign() * 1e4
    elif name == "few values":
        z = z.round()
    return z


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", ["normal", "uniform", "one-hot", "far apart", "few values"])
def test_equals_float64(name: str, splits: int) -> None:
    """With the identity as output matrix hidden states are logits, exactly."""
    logits, chosen = special(name), torch.tensor([0, 64, 199, 5])
    assert_equals_float64(run(logits, torch.eye(200), chosen, splits=splits), logits, chosen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(1, 7, 5), (70, 50, 500), (130, 96, 300)])
def test_equals_the_reference(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bit patterns of bfloat16")
    hidden, weight, chosen = random_case(2, *sizes)
    hidden, weight = (hidden / sizes[1] ** 0.5).to(dtype), weight.to(dtype)
    g = generator(3)
    bias, temperature = torch.randn(sizes[2], generator=g), 0.5 + torch.rand(sizes[0], generator=g)
    found = run(hidden, weight, chosen, bias_V=bias, temperature_T=temperature)
    expected = score_tokens_reference(hidden, weight, chosen, bias_V=bias, temperature_T=temperature)
    assert found.top_id_TK.tolist() == expected.top_id_TK.tolist()
    for name in ("logprob_T", "entropy_T", "collision_T", "top_logprob_TK"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=5e-6)


def test_hidden_states_and_weights_of_different_types() -> None:
    hidden, weight, chosen = random_case(4, 9, 16, 100)
    found = run(hidden, weight.bfloat16(), chosen)
    expected = score_tokens_reference(hidden, weight.bfloat16(), chosen)
    torch.testing.assert_close(found.logprob_T, expected.logprob_T, rtol=1e-5, atol=5e-6)


def test_tokens_that_a_bias_excludes() -> None:
    hidden, weight, chosen = random_case(5, 3, 8, 300)
    bias = torch.full((300,), -math.inf)
    bias[[7, 250]] = 0.0
    found, expected = (f(hidden, weight, chosen, bias_V=bias) for f in (run, score_tokens_reference))
    assert found.top_id_TK.tolist() == expected.top_id_TK.tolist()
    for name in ("logprob_T", "entropy_T", "collision_T", "top_logprob_TK"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_token_is_nan(bad: float) -> None:
    hidden, weight, chosen = random_case(6, 3, 8, 300)
    hidden[1] = bad
    found = run(hidden, weight, chosen)
    for name in ("logprob_T", "entropy_T", "collision_T"):
        assert getattr(found, name).isnan().tolist() == [False, True, False], name


def test_no_token_at_all() -> None:
    found = run(torch.empty(0, 4), torch.randn(9, 4), torch.empty(0, dtype=torch.long))
    assert (found.logprob_T.shape, found.top_id_TK.shape) == ((0,), (0, 5))


_COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from stapo_training import token_distribution_triton as t

half, block, tile, step = sys.argv[1] == "bf16", *map(int, sys.argv[2:])
constants = dict(DEPTH=2048, K=5, KEPT=8, HAS_BIAS=True, HAS_TEMPERATURE=True, TOKENS=block, VOCABULARY=tile, STEP=step)
constants |= dict(LOWEST=t._LOWEST, EMPTY=t._EMPTY, WIDEN=not half)
types = dict.fromkeys(["hidden", "weight"], "*bf16" if half else "*fp32") | dict.fromkeys(constants, "constexpr")
types |= dict(bias="*fp32", temperature="*fp32", chosen="*i64", numbers="*fp64", key_out="*i64")
names, aligned = t._kernel.arg_names, ("hidden", "weight", "hidden_stride", "weight_stride")
source = ASTSource(
    fn=t._kernel,
    signature={name: types.get(name, "i32") for name in names},
    constexprs={(names.index(name),): value for name, value in constants.items()},
    attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(num_warps=8, num_stages=3))
print("wgmma" in made.asm["ptx"], made.metadata.shared, len(made.asm["cubin"]) > 0)
"""


@pytest.mark.parametrize(("arguments", "tensor_cores"), [("bf16 128 128 64", True), ("fp32 64 64 32", False)])
def test_it_compiles_for_a_gpu(arguments: str, tensor_cores: bool) -> None:
    """For compute capability 9.0, which needs no GPU; a multiprocessor of it has 227 KiB of shared memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _COMPILE, *arguments.split()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]
    wgmma, shared, cubin = ended.stdout.split()
    assert (wgmma, cubin) == (str(tensor_cores), "True")
    assert 0 < int(shared) <= 227 * 1024
