"""The reward on output that was made to break it, and without state between calls."""

import time

import pytest

from stapo_results.errors import BadInput
from stapo_training.reward import NOISE, VERIFIERS, compute_score, noise_from
from stapo_training.start.configuration import compose

HOSTILE = {
    "huge": "x" * 20_000_000,
    "huge box": r"\boxed{" + "9" * 20_000_000 + "}",
    "deep braces": r"\boxed{" * 200_000 + "1" + "}" * 200_000,
    "open braces": r"\boxed{" + "{" * 300,
    "dollars": "Answer: " + "$" * 290,
    "spaced dollars": "Answer: " + "$ a" * 95,
    "open text": "Answer: " + r"\text{" * 45,
    "open boxes": "Answer: " + r"\boxed{" * 40 + "}" * 10,
    "spaces": "Answer" + " " * 290,
    "answers": "Answer:" * 40,
    "fractions": "Answer: " + "frac" * 70,
    "digits of other scripts": "Answer: " + "\u0664\u0662\u00b2" * 90,
    "lone surrogate and NUL": "Answer: \ud800\x00\x1b[2J",
    "code": "Answer: __import__('os').system('true')",
}


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """veRL is imported by the first call: that is not what the times below measure."""
    compute_score("mini-add", "", "42")


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_output_is_wrong_within_a_second(name: str, verifier: str) -> None:
    began = time.process_time()
    result = compute_score("mini-add", HOSTILE[name], "42", verifier=verifier)
    assert time.process_time() - began < 1.0
    assert (result["score"], result["acc"]) == (-1.0, False)
    assert len(result["pred"]) <= 1000  # what is logged of it is short (normalising adds braces)


def test_a_gold_of_any_length_is_compared_within_a_second() -> None:
    began = time.process_time()
    assert compute_score("mini-add", "Answer: 42", "$" * 2000 + "{" * 2000)["score"] == -1.0
    assert time.process_time() - began < 1.0


def test_a_noisy_reward_is_a_coin_in_its_share_and_what_was_right_stays() -> None:
    right, wrong = r"\boxed{42}", r"\boxed{41}"
    seeds = range(4000)
    for response, acc in ((right, True), (wrong, False)):
        found = [compute_score("", response, "42", {"sample_seed": s}, noise=0.7) for s in seeds]
        assert {f["acc"] for f in found} == {acc}
        # 0.3 x (1 or 0) + 0.7 / 2 = 0.65 or 0.35; a standard deviation is 0.0075
        assert sum(f["score"] > 0 for f in found) / len(found) == pytest.approx(0.65 if acc else 0.35, abs=0.03)
        again = [compute_score("", response, "42", {"sample_seed": s}, noise=0.7)["score"] for s in seeds]
        assert again == [f["score"] for f in found]
        assert compute_score("", response, "42", {}, noise=0.7)["score"] == (1.0 if acc else -1.0)  # a validation's


@pytest.mark.parametrize(("hardware", "noise", "refused"), [
    ("cpu", 0.7, ""), ("cpu", 1, "no share"), ("cpu", "much", "no share"), ("1gpu", 0.7, "seed of each sample"),
])  # fmt: skip
def test_where_the_rollout_gives_no_seed_a_noisy_reward_is_refused(hardware: str, noise: object, refused: str) -> None:
    config = compose(
        ["method=stapo", "size=mini", f"hardware={hardware}", "run.out=o", "run.base=b", f"+{NOISE}={noise}"]
    )
    if not refused:
        assert noise_from(config) == noise
        return
    with pytest.raises(BadInput, match=refused):
        noise_from(config)


def test_no_state_between_calls() -> None:
    """The same response under one verifier after the others, twice: each call depends on its arguments alone."""
    response = r"Answer: 41 and \boxed{42}"
    scores = [compute_score("mini-add", response, "42", verifier=v)["score"] for v in VERIFIERS * 2]
    assert scores == [1.0, -1.0, -1.0] * 2
    assert compute_score("mini-add", response, "42")["score"] == 1.0


@pytest.mark.parametrize(
    ("response", "verifier", "misjudged"),
    [
        ("**Final Answer:**\n" + r"\boxed{42}", "fallback", (True, False)),  # it reads "**" and never looks at the box
        ("Answer: 42\n" + r"\boxed{41}", "fallback", (False, True)),
        (r"\boxed{ 42 }", "strict_box", (True, False)),  # another string, the same answer
        (r"\boxed{42}", "strict_box", (False, False)),
        (r"\boxed{41}", "strict_box", (False, False)),
        ("Answer: 42", "fallback", (False, False)),  # no box to hold against it
    ],
)
def test_a_box_that_contradicts_the_score_is_told(response: str, verifier: str, misjudged: tuple[bool, bool]) -> None:
    found = compute_score("mini-add", response, "42", verifier=verifier)
    assert (found["box_right_scored_wrong"], found["box_wrong_scored_right"]) == misjudged
