"""The selectors inside veRL's worker, against the same mini-batch worked by hand (no Ray)."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # .ci/run names the one with 4 ranks

WORKER = Path(__file__).with_name("mini_batch_worker.py")


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _run(model: Path, ranks: int) -> dict[str, dict]:
    shared = os.environ | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(model)],
            env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(ranks)
    ]
    ended = [p.communicate(timeout=400) for p in processes]
    for p, (_, err) in zip(processes, ended, strict=True):
        assert p.returncode == 0, err[-3000:]
    lines = [json.loads(x) for x in ended[0][0].splitlines() if x.startswith('{"case"')]
    return {line.pop("case"): line for line in lines}


@pytest.fixture(scope="module", params=[1, 2, 4])
def ranks_and_found(request: pytest.FixtureRequest, tiny_base: Path) -> tuple[int, dict[str, dict]]:
    return request.param, _run(tiny_base / "model", request.param)


def test_every_selection_of_a_mini_batch_equals_the_calculation_by_hand(ranks_and_found) -> None:
    _, found = ranks_and_found
    found = {name: case for name, case in found.items() if "hand" in case}
    assert len(found) == 6 * 8 + 7 + 3 + 3 + 2 + (6 + 5) + (2 * 3 + 2)
    for name, case in found.items():
        hand = case["hand"]
        # the gradient, element by element: the norm of the difference over the norm
        assert case["relative"] < 1e-5, name
        assert case["loss"] == pytest.approx(hand["loss"], rel=1e-5, abs=1e-7), name
        if "KL" not in name:  # pg_loss is the policy's part alone
            assert case["pg_loss"] == pytest.approx(hand["loss"], rel=1e-5, abs=1e-7), name
        assert case.get("log", []) == [], name
        if "keep_all" not in name:
            assert (case["kept_tokens"], case["candidate_tokens"]) == (hand["kept"], hand["candidates"]), name
            assert case["tokens"] == hand["tokens"], name
    # the cases are real ones: some candidates are silenced and some kept, and the guess is wrong about some
    s2t = found["silence_spurious, speculative, micro 4"]
    assert 0 < s2t["silenced_tokens"] < s2t["candidate_tokens"]
    assert s2t["redone_share"] > 0
    assert found["silence_low_probability, speculative, micro 4"]["redone_share"] == 0


def test_reweighted_and_isolated_updates_equal_the_calculation_by_hand(ranks_and_found) -> None:
    _, found = ranks_and_found
    relatives = {name: case["relatives"] for name, case in found.items() if "relatives" in case}
    assert {name.partition(",")[0]: len(r) for name, r in relatives.items()} == {"AR": 1, "Lopti": 2}
    assert max(x for r in relatives.values() for x in r) < 1e-5


def test_log_probabilities_and_entropies_of_dynamic_batches_come_back_in_their_rows_order(ranks_and_found) -> None:
    """JustRL's published worker puts the log-probabilities back and not the entropies (dp_actor.py, 306 to 315)."""
    _, found = ranks_and_found
    case = found["old policy, dynamic"]
    assert sorted(case["order"]) == list(range(len(case["order"]))) != case["order"]
    assert case["logprob"] < 1e-5
    assert case["entropy"] < 1e-5 < 0.01 < case["permuted"]
