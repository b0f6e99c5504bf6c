"""The selectors inside veRL's worker, against the same mini-batch worked by hand (no Ray)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("mini_batch_worker.py")


pytestmark = pytest.mark.slow  # a minute of both cores each; `tox -e slow`


@pytest.fixture(scope="module", params=[1, 2, 4])
def found(request: pytest.FixtureRequest) -> dict[str, dict]:
    command = [sys.executable, str(WORKER), str(request.param)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_selection_of_a_mini_batch_equals_the_calculation_by_hand(found: dict[str, dict]) -> None:
    selections = {name: case for name, case in found.items() if "hand" in case}
    assert len(selections) >= 49
    for name, case in selections.items():
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
    # the cases are real ones: some candidates are silenced and some kept, and all right responses are others
    s2t, right = found["silence_spurious"], found["silence_spurious, right"]
    assert 0 < s2t["silenced_tokens"] < s2t["candidate_tokens"]
    assert s2t["threshold"] != right["threshold"]


def test_log_probabilities_and_entropies_of_dynamic_batches_come_back_in_their_rows_order(found) -> None:
    """JustRL's published worker puts the log-probabilities back and not the entropies (dp_actor.py, 306 to 315)."""
    case = found["old policy, dynamic"]
    assert sorted(case["order"]) == list(range(len(case["order"]))) != case["order"]
    assert case["logprob"] < 1e-5
    assert case["entropy"] < 1e-5 < 0.01 < case["permuted"]
