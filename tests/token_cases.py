"""Hidden states and logits, ordinary and adversarial, and what float64 says of them."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

from stapo_training.selection.token_distribution import TokenDistribution

NAMES = ("logprob_T", "entropy_T", "collision_T", "top_id_TK", "top_logprob_TK")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_case(seed: int, tokens: int, hidden: int, vocabulary: int) -> tuple[torch.Tensor, ...]:
    g = generator(seed)
    chosen_T = torch.randint(0, vocabulary, (tokens,), generator=g)
    return torch.randn(tokens, hidden, generator=g), torch.randn(vocabulary, hidden, generator=g), chosen_T


def assert_equals_float64(found: TokenDistribution, logits_TV: torch.Tensor, chosen_T: torch.Tensor) -> None:
    """The issue's tolerances; top-k by a stable sort, which puts the lower id first among equal logits."""
    z_TV = logits_TV.double()
    lp_TV = z_TV.log_softmax(-1)
    p_TV = lp_TV.exp()
    k = found.top_id_TK.shape[1]
    top_TK = z_TV.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    assert found.top_id_TK.tolist() == top_TK.tolist()
    for logprob, expected in (
        (found.logprob_T, lp_TV.gather(1, chosen_T.unsqueeze(-1)).squeeze(-1)),
        (found.top_logprob_TK, lp_TV.gather(1, top_TK)),
    ):
        assert logprob.dtype == torch.float32
        either = torch.isclose(logprob.double(), expected, rtol=1e-5, atol=0)
        either |= torch.isclose(logprob.double(), expected, rtol=0, atol=1e-6)
        assert either.all(), (logprob[~either], expected[~either])
    expected_T = -(p_TV * lp_TV).nan_to_num(0.0).sum(-1)
    torch.testing.assert_close(found.entropy_T.double(), expected_T, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.collision_T.double(), (p_TV * p_TV).sum(-1), rtol=1e-5, atol=1e-12)


@st.composite
def adversarial_logits(draw: st.DrawFn) -> torch.Tensor:
    tokens, vocabulary = draw(st.integers(1, 6)), draw(st.sampled_from([5, 33, 1025, 5000]))
    g = generator(draw(st.integers(0, 2**20)))
    shape = draw(
        st.sampled_from(["normal", "uniform", "one-hot", "two spikes", "far apart", "heavy tail", "few values", "-inf"])
    )
    z = draw(st.sampled_from([0.1, 1.0, 8.0, 60.0])) * torch.randn(tokens, vocabulary, generator=g)
    rows, ids = torch.arange(tokens), torch.randint(0, vocabulary, (2, tokens), generator=g)
    if shape == "uniform":
        z.fill_(float(z[0, 0]))
    elif shape == "one-hot":
        z.fill_(-1e4)[rows, ids[0]] = 1e4
    elif shape == "two spikes":
        z.fill_(0.0)[rows, ids[0]] = 1e4
        z[rows, ids[1]] = 1e4 - 1
    elif shape == "far apart":
        z = z.sign() * 1e4
    elif shape == "heavy tail":
        z = -1.1 * (1 + torch.rand(tokens, vocabulary, generator=g).argsort(-1)).log()
    elif shape == "few values":
        z = z.round()
    elif shape == "-inf":
        z[torch.rand(tokens, vocabulary, generator=g) < 0.7] = -math.inf
        z[rows, ids[0]] = 1.0
    return z.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))).float()
