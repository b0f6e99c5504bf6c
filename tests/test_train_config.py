"""The composed configurations: every method's settings, pinned; bad input, refused before veRL starts."""

from pathlib import Path

import pytest
import torch

from stapo_results.errors import BadInput
from stapo_training import cli
from stapo_training.run.configuration import absolute, compose

BASE = ["run.base=base", "run.out=out"]


@pytest.mark.parametrize(
    ("method", "clip_high", "aggregation", "kl", "selector", "scope"),
    [
        ("grpo", 0.2, "seq-mean-token-mean", 0.04, "keep_all", "mini_batch"),
        ("entropy20", 0.28, "token-mean", None, "top_entropy", "mini_batch"),
        ("justrl", 0.28, "token-mean", None, "keep_all", "mini_batch"),
        ("stapo", 0.28, "token-mean", None, "silence_spurious", "mini_batch"),
    ],
)
def test_a_method_is_its_row_of_the_table(method, clip_high, aggregation, kl, selector, scope) -> None:
    c = compose([*BASE, f"method={method}"])
    actor, chosen = c.actor_rollout_ref.actor, c.actor_rollout_ref.selector
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, clip_high, 1e9)
    assert actor.loss_agg_mode == aggregation
    assert (actor.kl_loss_coef if actor.use_kl_loss else None) == kl
    assert (chosen.name, chosen.scope, chosen.policy) == (selector, scope, "current")
    assert (chosen.tau_p, chosen.q, chosen.share) == (0.002, 0.75, 0.2)


def test_no_overlay_of_a_method_is_longer_than_twenty_lines() -> None:
    lines = {p.stem: len(p.read_text().splitlines()) for p in (Path(cli.__file__).parent / "configs/method").glob("*")}
    assert lines
    assert max(lines.values()) <= 20


@pytest.mark.parametrize(
    ("override", "named"),
    [
        *(("method=stapoo", "stapoo"), ("size=70b", "70b"), ("no.such.name=1", "no.such.name=1"), ("run.steps=0", "0")),
        ("trainer.max_actor_ckpt_to_keep=-1", "-1"),  # would delete the checkpoint just written
        ("trainer.max_actor_ckpt_to_keep=0", "0"),
        ("trainer.total_training_steps=7", "7"),  # of 30 that every plan reckons with
    ],
)
def test_what_does_not_compose_is_bad_input(override: str, named: str) -> None:
    with pytest.raises(BadInput) as e:
        compose([*BASE, override])
    assert named in str(e.value.found)


def test_the_papers_runs_validate_at_both_settings_and_the_first_one_is_verls() -> None:
    found = {}
    for given in (["size=mini"], ["size=smollm2-135m"], ["size=qwen3-8b"],
                  ["size=qwen3-8b", "run.validation_settings=[t0.7]"]):  # fmt: skip
        config = compose([*given, "run.base=base", "run.data=data", "run.out=out"])
        decoding = config.actor_rollout_ref.rollout.val_kwargs
        found[given[-1]] = [*config.run.validation_settings, decoding.temperature, decoding.top_p]
    assert found == {
        "size=mini": ["t1.0", 1.0, 1.0],
        "size=smollm2-135m": ["t1.0", 1.0, 1.0],
        "size=qwen3-8b": ["t1.0", "t0.7", 1.0, 1.0],
        "run.validation_settings=[t0.7]": ["t0.7", 0.7, 0.9],
    }


def test_decoding_that_contradicts_the_named_setting_is_refused() -> None:
    key = "actor_rollout_ref.rollout.val_kwargs.temperature"
    with pytest.raises(BadInput) as e:
        compose(["run.base=base", "run.out=out", f"{key}=0.6"])
    assert (e.value.found, e.value.expected) == (
        {"temperature": 0.6, "top_p": 1.0},
        {"temperature": 1.0, "top_p": 1.0},
    )


@pytest.mark.parametrize("given", ["[t0.8]", "[]", "t1.0", "[t1.0,t1.0]"])
def test_a_wrong_list_of_settings_is_bad_input(given: str) -> None:
    with pytest.raises(BadInput) as e:
        compose(["run.base=base", "run.out=out", f"run.validation_settings={given}"])
    assert "run.validation_settings" in e.value.what


def test_all_checkpoints_may_be_kept() -> None:
    assert compose([*BASE, "trainer.max_actor_ckpt_to_keep=null"]).trainer.max_actor_ckpt_to_keep is None


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_the_folders_of_a_run_become_absolute(sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for key in ("run.out", "run.base", "run.data"):
        assert absolute(f"{sign}{key}=x") == f"{sign}{key}={tmp_path}/x"
    assert absolute(f"{sign}run.seed=1") == f"{sign}run.seed=1"
    assert compose(["run.base=base", "++run.out=x"]).trainer.default_local_dir == f"{tmp_path}/x/checkpoints"


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (["run.base=base"], "run.out"),
        (["run.out=out", "task=dapo-math-17k", "size=qwen3-8b"], "run.data"),
        (["task=dapo-math-17k", "size=qwen3-8b"], "run.data, run.out"),
        ([*BASE, "trainer.project_name=???"], "trainer.project_name"),
    ],
)
def test_a_missing_value_is_named_without_what_follows_from_it(given: list[str], missing: str) -> None:
    with pytest.raises(BadInput) as e:
        compose(given)
    assert e.value.found == missing


@pytest.mark.parametrize(
    ("response", "verifier", "score"),
    [
        (r"so \boxed{42}", "fallback", 1.0),
        (r"so \boxed{41}", "fallback", -1.0),
        ("Answer: 42", "fallback", 1.0),
        (r"Answer: 41 and \boxed{42}", "fallback", -1.0),  # the answer line goes first
        (r"so \boxed{42}", "answer_line", -1.0),
        (r"Answer: 41 and \boxed{42}", "strict_box", 1.0),
        (r"\boxed{42}" + " so it is" * 100, "strict_box", 1.0),  # veRL looks at the last 100 characters alone
        ("**Final Answer:**\n" + r"\boxed{42}", "strict_box", 1.0),
        ("**Final Answer:**\n" + r"\boxed{42}", "fallback", -1.0),  # it reads "**" and never looks at the box
        ("Answer: 42\n" + r"\boxed{41}", "strict_box", -1.0),
        ("Answer: 42\n" + r"\boxed{41}", "fallback", 1.0),
        (r"\boxed{42} and \boxed{4", "strict_box", -1.0),
        ("", "fallback", -1.0),
    ],
)
def test_the_reward_of_each_verifier(response: str, verifier: str, score: float) -> None:
    from stapo_training.reward import compute_score

    assert compute_score("mini-add", response, "42", verifier=verifier)["score"] == score


def test_group_advantages_of_the_papers_appendix() -> None:
    """G = 8, rewards of +1 and -1, unbiased std: 1 to 7 correct give the seven advantages the appendix prints."""
    import numpy as np
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    printed = [2.47, 1.62, 1.21, 0.94, 0.72, 0.54, 0.35]
    for correct, expected in enumerate(printed, 1):
        rewards = torch.tensor([[1.0]] * correct + [[-1.0]] * (8 - correct))
        advantage, _ = compute_grpo_outcome_advantage(rewards, torch.ones(8, 1), np.array(["a"] * 8, dtype=object))
        assert float(advantage[0, 0]) == pytest.approx(expected, abs=0.005)


def test_vectorised_log_probabilities_equal_verls_loop() -> None:
    from verl.utils.torch_functional import logprobs_from_logits_v2

    from stapo_training.verl_ext.logits import logprobs_from_logits

    g = torch.Generator().manual_seed(0)
    logits, labels = 5 * torch.randn(7, 11, generator=g), torch.randint(0, 11, (7,), generator=g)
    theirs, ours = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    a, b = logprobs_from_logits_v2(theirs, labels), logprobs_from_logits(ours, labels)
    weight = torch.arange(7.0)
    (a * weight).sum().backward()
    (b * weight).sum().backward()
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-6, atol=1e-7)
