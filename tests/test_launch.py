"""What a run's folder accepts when the command is given again, and the command that it prints."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from whole_records import whole_record

from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Resumption, Run
from stapo_results.shapes import KNOWN, shape_from
from stapo_training.folder.training_folder import TrainingFolder
from stapo_training.methods import AdvantageConfig
from stapo_training.start import launch, resuming
from stapo_training.start.configuration import compose


def record(**alarms: object) -> Run:
    config = {
        "run": {"seed": 0},
        "alarms": {"stop": ["not_finite"], "window": 5} | alarms,
        "trainer": {"logger": ["console"], "save_freq": 100},
    }
    return provenance.new_run("train", config, seeds={"run": 0}, deterministic=True, revisions={"train.parquet": "ab"})


def changed(run: Run, part: str, **values: object) -> Run:
    return run.model_copy(update={"config": run.config | {part: run.config[part] | values}})


def test_alarms_and_loggers_may_change_when_a_run_goes_on() -> None:
    new = changed(record(stop=[], window=9), "trainer", logger=["console", "wandb"])
    new = changed(new, "run", silenced_share_reference=1e-5, save_minutes=10, keep_best=False, cpu_dtype="auto")
    new = changed(new, "trainer", max_actor_ckpt_to_keep=1)  # what the driver changes where the disk is full
    new = new.model_copy(update={"config": new.config | {"by_size": {"x": 1}, "transfer_queue": {"backend": "x"}}})
    assert runs.differences(record(), new, resuming.may_differ) == []


def test_wandb_has_one_run_over_all_attempts_and_another_for_a_repetition(tmp_path: Path) -> None:
    first = record()
    resumed = first.model_copy(update={"resumptions": [Resumption(at="", start="", code_commit="", code_dirty="")]})
    again = first.model_copy(update={"started": "2026-01-02T03:04:05+00:00"})
    ids = [launch._places(tmp_path, r)["WANDB_RUN_ID"] for r in (first, resumed, again)]
    assert (ids[0], ids[2]) == (ids[1], f"{first.run_id}-202601020304050000")


def test_what_decides_numbers_may_not() -> None:
    (found,) = runs.differences(record(), changed(record(), "trainer", save_freq=10), resuming.may_differ)
    assert found.startswith("trainer.save_freq")


def test_a_log_of_ones_own_may_stand_in_a_new_folder_and_metrics_without_a_record_may_not(tmp_path: Path) -> None:
    (tmp_path / "log.txt").touch()
    assert runs.previous_of(tmp_path, record(), "run.out", foreign=resuming.FOREIGN) is None
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(BadInput):
        runs.previous_of(tmp_path, record(), "run.out", foreign=resuming.FOREIGN)


@pytest.fixture
def old(tmp_path: Path) -> Run:
    """A committed record as version 0.2.0 would have made it: 30 steps, finished."""
    text = whole_record().model_dump_json().replace("RUN/", f"{tmp_path}/").replace('"RAY/', '"/tmp/ray/')
    run = changed(Run.model_validate_json(text), "run", validation_settings=["t1.0"])
    a = run.config["actor_rollout_ref"]
    parts = {
        "advantage": AdvantageConfig().model_dump(),
        "selector": {k: v for k, v in a["selector"].items() if not k.startswith("log_")},
        "rollout": a["rollout"] | {"engine_kwargs": {"stapo_cpu": {"threads": 1}}},
    }
    run = changed(run, "actor_rollout_ref", **parts)
    store.write_json(tmp_path / "run.json", run)
    return run


def again(old: Run, *more: str) -> Run:
    """The record that its command makes now."""
    config = compose([*old.command[2:], *more])
    launch.choose_logits_form(config, None)
    now: Any = OmegaConf.to_container(config, resolve=True)
    return old.model_copy(update={"config": now})


def test_a_run_goes_on_with_the_form_of_the_logits_that_it_began_with(tmp_path: Path, old: Run) -> None:
    config = compose([*old.command[2:], f"run.out={tmp_path}"])
    config.actor_rollout_ref.logits_form = "auto"
    store.write_json(tmp_path / "run.json", changed(old, "actor_rollout_ref", logits_form="compiled"))
    launch.choose_logits_form(config, None)
    assert config.actor_rollout_ref.logits_form == "eager"  # it has no step: what it began with may be what failed
    TrainingFolder(tmp_path).log_step(1, {}, {})
    for recorded, form in ((old, "eager"), (changed(old, "actor_rollout_ref", logits_form="compiled"), "compiled")):
        store.write_json(tmp_path / "run.json", recorded)
        config.actor_rollout_ref.logits_form = "auto"
        launch.choose_logits_form(config, shape_from(KNOWN["Qwen/Qwen3-1.7B-Base"], ""))
        assert config.actor_rollout_ref.logits_form == form


def test_a_run_of_0_2_0_goes_on(tmp_path: Path, old: Run) -> None:
    new = again(old)
    assert runs.previous_of(tmp_path, new, "run.out", **resuming.rules(new, tmp_path)) == old
    variables = {"OMP_NUM_THREADS": 2, "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}
    ray = {**new.config["ray_kwargs"]["ray_init"], "runtime_env": {"env_vars": variables}}
    before, after = (changed(new, "ray_kwargs", ray_init=r) for r in (ray | {"runtime_env": {}}, ray))
    assert runs.differences(before, after, resuming.may_differ) == []  # `hardware=8gpu` had none, `cpu` fewer
    both = changed(new, "run", validation_settings=["t1.0", "t0.7"])
    with pytest.raises(BadInput, match="validation_settings"):
        runs.previous_of(tmp_path, both, "run.out", **resuming.rules(both, tmp_path))


@pytest.mark.parametrize(
    ("hardware", "last", "alone"), [("cpu", "glibc.malloc.arena_max=1", False), ("cpu-vllm", "", True)]
)
@pytest.mark.parametrize("own", ["glibc.malloc.perturb=5", None])
def test_the_c_librarys_settings_are_for_rays_workers_alone(
    hardware: str, last: str, alone: bool, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own come last, where the library lets them win; vLLM's servers get no others. From glibc 2.39 on a
    colon at the end makes all invalid."""
    monkeypatch.setattr(os, "environ", {"GLIBC_TUNABLES": own} if own else {})
    config = compose(["method=stapo", "size=mini", f"hardware={hardware}", "run.out=x"])
    given = config.ray_kwargs.ray_init.runtime_env.env_vars.GLIBC_TUNABLES.split(":")
    assert (given[-1], len(given) == 1) == (own or last, alone)
    launch._prepare_cpu(config)
    assert os.environ.get("GLIBC_TUNABLES") == own
    assert os.environ["VERL_PLATFORM"] == "cpu"


OPTIM = "actor_rollout_ref.actor.optim."


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        (["run.steps=40"], ""),
        (["run.steps=20"], "run.steps"),
        (["run.steps=40", "run.seed=1"], "run.seed"),
    ],
)
def test_the_steps_of_a_run_may_grow_and_nothing_else(tmp_path: Path, old: Run, more: list[str], refused: str) -> None:
    new = again(old, *more)
    if not refused:
        assert runs.previous_of(tmp_path, new, "run.out", **resuming.rules(new, tmp_path)) == old
        return
    with pytest.raises(BadInput) as e:
        runs.previous_of(tmp_path, new, "run.out", **resuming.rules(new, tmp_path))
    assert refused in str(e.value.found)


@pytest.mark.parametrize(
    ("began", "now", "logged", "saved", "goes_on"),
    [
        (30, 40, 30, 30, True),
        (30, 40, 30, 20, False),  # step 30 would be made again, and was the last one
        (30, 40, 29, 20, True),
        (40, 30, 30, 30, True),  # asked for and not begun
        (40, 30, 31, 30, False),
        (40, 20, 20, 10, False),
    ],
)
def test_the_steps_of_a_run_may_change_where_none_that_was_the_last_is_made_again(
    tmp_path: Path, old: Run, began: int, now: int, logged: int, saved: int, goes_on: bool
) -> None:
    run = again(old, f"run.steps={began}")
    store.write_json(tmp_path / "run.json", run)
    folder = TrainingFolder(tmp_path)
    folder.log_step(logged, {}, {})
    (folder.checkpoints / f"global_step_{saved}").mkdir(parents=True)
    folder.complete_checkpoint(saved)
    new = again(old, f"run.steps={now}")
    if goes_on:
        assert runs.previous_of(tmp_path, new, "run.out", **resuming.rules(new, tmp_path)) == run
    else:
        with pytest.raises(BadInput, match="another run"):
            runs.previous_of(tmp_path, new, "run.out", **resuming.rules(new, tmp_path))


@pytest.mark.parametrize(
    ("key", "value"), [("lr_scheduler_type", "cosine"), ("lr_warmup_steps", -1), ("lr_warmup_steps", 0)]
)
def test_a_run_whose_learning_rate_depends_on_its_length_may_not_grow(tmp_path: Path, old: Run, key, value) -> None:
    schedule = [f"{OPTIM}{key}={value}", f"{OPTIM}lr_warmup_steps_ratio=0.1"]
    (tmp_path / "run.json").write_text(again(old, *schedule).model_dump_json())
    new = again(old, *schedule, "run.steps=40")
    with pytest.raises(BadInput, match=r"run\.steps=30") as e:
        runs.previous_of(tmp_path, new, "run.out", **resuming.rules(new, tmp_path))
    assert "run.steps: 30 there, 40 now" in str(e.value.found)


@pytest.mark.parametrize(
    ("deterministic", "loss", "may"), [(False, "vanilla", True), (False, "clip_cov", False), (True, "vanilla", False)]
)
def test_a_run_on_gpus_may_go_on_in_less_memory(tmp_path: Path, old: Run, deterministic, loss: str, may: bool) -> None:
    a = old.config["actor_rollout_ref"]
    actor = a["actor"] | {"policy_loss": a["actor"]["policy_loss"] | {"loss_mode": loss}}
    old = changed(old, "actor_rollout_ref", actor=actor).model_copy(update={"deterministic": deterministic})
    less = changed(old, "actor_rollout_ref", actor=actor | {"ppo_max_token_len_per_gpu": 1})
    may_differ = resuming.rules(less, tmp_path)["may_differ"]
    assert (runs.differences(old, less, may_differ) == []) == may


def test_what_was_refused_after_the_validation_may_be_corrected(tmp_path: Path, old: Run) -> None:
    store.write_json(tmp_path / "run.json", old.model_copy(update={"status": "failed"}))
    TrainingFolder(tmp_path).log_step(0, {"accuracy": 0.5}, {})
    corrected = changed(old, "data", train_batch_size=3)
    assert runs.previous_of(tmp_path, corrected, "run.out", **resuming.rules(corrected, tmp_path)) is None
    folder = TrainingFolder(tmp_path)
    folder.take_over(anew=True)
    folder.log_step(0, {"accuracy": 0.25}, {})
    TrainingFolder(tmp_path).log_step(1, {}, {})
    with pytest.raises(BadInput, match="train_batch_size"):
        runs.previous_of(tmp_path, corrected, "run.out", **resuming.rules(corrected, tmp_path))


def test_a_training_that_ends_before_its_last_step_is_not_finished(tmp_path: Path) -> None:
    for step in (0, 1, 2):
        TrainingFolder(tmp_path).log_step(step, {}, {})
    launch.refuse_early_end(tmp_path, 2)
    with pytest.raises(RunFailed, match="step 2"):
        launch.refuse_early_end(tmp_path, 4)


def test_the_resume_command_works_from_any_folder_and_holds_no_secret() -> None:
    words = ["method=stapo", "run.out=runs/my run", "trainer.logger=[console,file]", "trainer.wandb_api_key=abc"]
    shown = [words[0], f"run.out={os.getcwd()}/runs/my run", words[2], "trainer.wandb_api_key=(redacted)"]
    assert shlex.split(launch.resume_command(words)) == ["stapo-train", "run", *shown]
