"""The composed configurations: every method's settings, pinned; bad input, refused before veRL starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from stapo_results.errors import BadInput
from stapo_training import cli, pages
from stapo_training.start import resolvers
from stapo_training.start.configuration import check_overrides, compose, in_full

BASE = ["run.base=base", "run.out=out"]


def test_composing_imports_neither_torch_nor_verl() -> None:
    code = f"from stapo_training.start.configuration import compose; import sys; compose({BASE}); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"torch", "verl", "ray", "hydra"} & set(found) == {"hydra"}


def test_no_overlay_of_a_method_is_longer_than_twenty_lines() -> None:
    lines = {p.stem: len(p.read_text().splitlines()) for p in (Path(cli.__file__).parent / "configs/method").glob("*")}
    assert lines
    assert max(lines.values()) <= 20


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        *((["method=stapoo"], "stapoo"), (["no.such.name=1"], "no.such.name=1")),
        *((["run.steps=0"], "0"), (["run.steps=1.5"], "1.5"), (["trainer.save_freq=-2"], "-2")),
        (["run.save_minutes=0"], "0"),
        (["trainer.max_actor_ckpt_to_keep=0"], "0"),  # would delete the checkpoint just written
        (["trainer.total_training_steps=7"], "7"),  # of 30 that every plan reckons with
        *(([f"run.validation_settings={given}"], "") for given in ("[t0.8]", "[]", "t1.0", "[t1.0,t1.0]")),
        (["actor_rollout_ref.rollout.val_kwargs.temperature=0.6"], "0.6"),
        (["task=dapo-math-17k", "size=qwen3-8b", "trainer.project_name=???"], "run.data"),  # run's own keys first
        (["trainer.project_name=???"], "trainer.project_name"),
    ],
)
def test_what_does_not_compose_is_bad_input(overrides: list[str], named: str) -> None:
    with pytest.raises(BadInput) as e:
        compose([*BASE, *overrides])
    assert named in str(e.value.found)


def test_an_error_of_hydras_shows_no_secret() -> None:
    with pytest.raises(BadInput) as e:
        compose([*BASE, "ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY=verysecret"])
    assert ("WANDB_API_KEY" in str(e.value), "verysecret" in str(e.value)) == (True, False)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("run.keep_best=flase", "flase"),  # a text, so true
        ("actor_rollout_ref.actor.optim.lr=abc", "abc"),
        ("actor_rollout_ref.actor.optim.lr=true", "True"),
        ("+run.validation_setting=[t1.0]", "run.validation_setting"),
        ("+data.max_respons_length=1000", "data.max_respons_length"),
        ("+actor_rollout_ref.rollout.max_num_seq=3", "max_num_seq"),
        *((fine, "") for fine in ("run.save_minutes=null", "run.cpu_threads=auto", "run.keep_best=0", "+run.x=1")),
    ],
)
def test_a_value_of_another_kind_and_a_key_that_nothing_reads_are_refused(override: str, named: str) -> None:
    config = compose([*BASE, override])
    if not named:
        check_overrides(config, [*BASE, override])
        return
    with pytest.raises(BadInput) as e:
        check_overrides(config, [*BASE, override])
    assert named in str(e.value.found)


@pytest.mark.parametrize(("wrong", "near"), [("run.step=2", "run.steps"), ("hardwear=cpu", "hardware")])
def test_the_nearest_key_is_named(wrong: str, near: str) -> None:
    with pytest.raises(BadInput) as e:
        compose([*BASE, wrong])
    assert str(e.value.next_step).startswith(f"{near} is near; ")


@pytest.mark.parametrize(("fast", "found"), [(True, "bfloat16"), (False, "float32")])
def test_on_a_cpu_the_size_chooses_the_dtype_or_the_processor_does(
    fast: bool, found: str, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(resolvers, "fast_bf16", lambda: fast)
    for given, dtype in (([], "float32"), (["run.cpu_dtype=auto"], found), (["run.cpu_dtype=bfloat16"], "bfloat16")):
        a = compose([*BASE, "hardware=cpu", "size=mini", *given]).actor_rollout_ref
        fsdp = a.actor.fsdp_config
        assert (fsdp.dtype, a.ref.fsdp_config.dtype, a.rollout.dtype, fsdp.model_dtype) == (dtype, dtype, dtype, "fp32")
        assert fsdp.mixed_precision.param_dtype == {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    with pytest.raises(BadInput, match="float16"):
        compose([*BASE, "run.cpu_dtype=float16"])


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        (["size=mini"], (1, 1)),
        (["size=mini", "run.cpu_threads=auto"], (6, 6)),
        (["size=qwen2.5-coder-0.5b", "run.data=data"], (6, 6)),
        (["size=qwen2.5-coder-0.5b", "run.data=data", "cpu.ranks=2"], (3, 6)),
        (["size=qwen2.5-coder-0.5b", "run.data=data", "run.cpu_threads=4"], (4, 4)),
    ],
)
def test_on_a_cpu_the_size_chooses_the_threads_or_the_cores_do(given: list[str], threads: tuple, monkeypatch) -> None:
    monkeypatch.setattr(resolvers, "usable_cores", lambda: 6)
    config = compose([*BASE, "hardware=cpu", *given])
    assert (config.cpu.train_threads, config.cpu.rollout_threads) == threads
    assert threads[0] == config.ray_kwargs.ray_init.runtime_env.env_vars.STAPO_TRAIN_THREADS
    assert config.actor_rollout_ref.rollout.engine_kwargs.stapo_cpu.threads == threads[1]
    with pytest.raises(BadInput, match="cpu_threads"):
        compose([*BASE, "hardware=cpu", "run.cpu_threads=0"])


def test_the_papers_runs_validate_at_both_settings_and_the_first_one_is_verls() -> None:
    found = {}
    for given in (["size=mini"], ["size=qwen3-8b"],
                  ["size=qwen3-8b", "run.validation_settings=[t0.7]"]):  # fmt: skip
        config = compose([*given, "run.base=base", "run.data=data", "run.out=out"])
        decoding = config.actor_rollout_ref.rollout.val_kwargs
        found[given[-1]] = [*config.run.validation_settings, decoding.temperature, decoding.top_p]
    assert found == {
        "size=mini": ["t1.0", 1.0, 1.0],
        "size=qwen3-8b": ["t1.0", "t0.7", 1.0, 1.0],
        "run.validation_settings=[t0.7]": ["t0.7", 0.7, 0.9],
    }


def test_the_folders_of_a_run_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    given = ["run.out=x", "+run.base=x", "++run.data=~/x", "+run.seed=1"]
    assert [in_full(o).replace(str(tmp_path), "") for o in given] == [
        *("run.out=/x", "+run.base=/x", "++run.data=/x"),
        given[3],
    ]
    assert compose(["run.base=base", "++run.out=x"]).trainer.default_local_dir == f"{tmp_path}/x/checkpoints"


@pytest.mark.parametrize(
    ("response", "verifier", "score"),
    [
        (r"so \boxed{42}", "fallback", 1.0),
        (r"so \boxed{41}", "fallback", -1.0),
        ("Answer: 42", "fallback", 1.0),
        (r"so \boxed{42}", "answer_line", -1.0),
        (r"\boxed{42}" + " so it is" * 100, "strict_box", 1.0),  # veRL looks at the last 100 characters alone
        ("**Final Answer:**\n" + r"\boxed{42}", "strict_box", 1.0),
        ("Answer: 42\n" + r"\boxed{41}", "strict_box", -1.0),
        (r"\boxed{42} and \boxed{4", "strict_box", -1.0),
        ("", "fallback", -1.0),
    ],
)
def test_the_reward_of_each_verifier(response: str, verifier: str, score: float) -> None:
    from stapo_training.reward import compute_score

    assert compute_score("mini-add", response, "42", verifier=verifier)["score"] == score


def test_the_page_of_values_is_the_same_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for fast in (True, False):
        monkeypatch.setattr(resolvers, "fast_bf16", lambda fast=fast: fast)
        pages._composed.cache_clear()
        found.append([pages.place_row(pages.compose(pages.place(s, h))) for s, h in pages.made_for() if h == "cpu"])
    assert found[0] == found[1]
