"""Statistics from logits, and the bookkeeping of packed sequences, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from stapo_training.selection.token_stats import response_positions, spans, token_distribution, token_keys
from stapo_training.verl_ext.logits import PackedLogits


def test_spans_and_response_positions() -> None:
    assert spans(torch.tensor([10, 3]), torch.tensor([2, 3])).tolist() == [10, 11, 3, 4, 5]
    # two sequences: a prompt of 2 and a response of 3, a prompt of 3 and a response of 1
    sequence, response = torch.tensor([0, 5, 9]), torch.tensor([0, 3, 4])
    assert response_positions(sequence, response).tolist() == [1, 2, 3, 7]


def test_keys_belong_to_tokens() -> None:
    ids = torch.tensor([5, 6, 7, 8, 9, 5, 6])
    sequence, response = torch.tensor([0, 4, 7]), torch.tensor([0, 2, 4])
    keys = token_keys(ids, sequence, response, seed=3)
    assert len(set(keys.tolist())) == 4
    assert bool(((keys >= 0) & (keys < 1)).all())
    # the other order of the sequences: the same numbers, moved along
    swapped = token_keys(ids[[4, 5, 6, 0, 1, 2, 3]], torch.tensor([0, 3, 7]), response, seed=3)
    assert swapped.tolist() == keys[[2, 3, 0, 1]].tolist()
    assert token_keys(ids, sequence, response, seed=4).tolist() != keys.tolist()
    changed = ids.clone()
    changed[0] = 6  # the prompt is part of what a token is
    assert token_keys(changed, sequence, response, seed=3)[:2].tolist() != keys[:2].tolist()


def test_keys_are_uniform() -> None:
    ids = torch.arange(100_000) % 997
    one = torch.tensor([0, 100_000])
    keys = token_keys(ids, one, torch.tensor([0, 99_000]), seed=0)
    shares = np.histogram(keys.numpy(), bins=10, range=(0, 1))[0] / 99_000
    assert np.abs(shares - 0.1).max() < 0.005  # five standard deviations of a tenth of 99,000
    assert abs(float(np.corrcoef(keys[:-1].numpy(), keys[1:].numpy())[0, 1])) < 0.016


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_distributions_against_float64(dtype: torch.dtype, spread: float) -> None:
    g = torch.Generator().manual_seed(0)
    logits = (spread * torch.randn(40, 40_000, generator=g)).to(dtype)
    logits[0], logits[1, 7:] = 1.0, -math.inf  # all equal; seven possible
    chosen, temperature = torch.randint(0, 7, (40,), generator=g), 0.5 + torch.rand(40, generator=g)
    found = token_distribution(logits.float() / temperature[:, None], chosen, 5)
    logp = (logits.double() / temperature.double()[:, None]).log_softmax(-1)
    p = logp.exp()
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found.logprob_T.double(), logp.gather(1, chosen[:, None]).squeeze(1), **close)
    torch.testing.assert_close(found.entropy_T.double(), -(p * logp).nan_to_num(0.0).sum(1), **close)
    torch.testing.assert_close(found.collision_T.double(), p.square().sum(1), **close)
    torch.testing.assert_close(found.top_logprob_TK.double(), logp.topk(5).values, **close)
    torch.testing.assert_close(found.top_logprob_TK.double(), logp.gather(1, found.top_id_TK), **close)
    ids, values = found.top_id_TK, found.top_logprob_TK
    assert ((values.diff() < 0) | (ids.diff() > 0)).all()  # of equal ones the lower id comes first


@pytest.mark.parametrize("packed", [True, False])
def test_packed_logits_are_read_at_each_sequences_temperature(packed: bool) -> None:
    length_B, temperature_B = torch.tensor([3, 5, 2]), torch.tensor([1.0, 0.7, 0.5])
    logits_BTV = 3 * torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(1))
    # every position but each sequence's last: places in the packed form
    position_M, token_M = torch.tensor([0, 1, 3, 4, 5, 6, 8]), torch.tensor([4, 0, 10, 3, 3, 7, 1])
    rows = torch.cat([x[:n] for x, n in zip(logits_BTV, length_B, strict=True)])
    logp = (rows[position_M] / temperature_B.repeat_interleave(length_B)[position_M, None]).log_softmax(-1)

    settings = {"temperature_rmpad": temperature_B.repeat_interleave(length_B)} if packed else {}
    settings["temperature"] = temperature_B
    offsets = torch.tensor([0, 3, 8, 10])
    found = PackedLogits(rows[None] if packed else logits_BTV, settings, offsets, position_M, token_M)
    ids, top = found.most_probable(torch.tensor([1, 3, 6]), 4)
    torch.testing.assert_close(top, logp[[1, 3, 6]].topk(4).values)
    torch.testing.assert_close(top, logp[[1, 3, 6]].gather(1, ids))
    logp[logp < logp.max(-1, keepdim=True).values + math.log(0.05)] = -math.inf
    proxy_M = logp.log_softmax(-1).gather(1, token_M[:, None]).squeeze(1)
    torch.testing.assert_close(found.proxy_logprob(0.05), proxy_M)
    assert 0 < int(proxy_M.isinf().sum()) < 7  # some tokens are kept, some are not
