"""Whole trainings on real veRL: the same bytes twice, after kill -9, Ctrl-C or a full disk, on two ranks.

Minutes each, so all are slow. The base model solves some problems and not others, and the 16 prompts make two steps an
epoch: gradients are not zero, and the checkpoints of steps 2 and 4 stand at the end of an epoch.
"""

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import hostile_folder
import psutil
import pytest
from test_step_metrics import unexplained
from training_runs import STEPS, command, complete, same_log, start, survivors, train, wait_for, weights

from stapo_results import store, token_log
from stapo_results.schema import Run, StepMetrics
from stapo_training.folder.alarms import Alarm
from stapo_training.methods import methods

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_run_left")]


@pytest.fixture(scope="module")
def whole(skilled_base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """One uninterrupted run, and its exported weights."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(skilled_base, out)
    return out, weights(out, out.parent / "model")


def test_a_run_leaves_its_record_and_no_process(whole: tuple[Path, bytes]) -> None:
    out, _ = whole
    run = store.read_json(out / "run.json", Run)
    assert (run.status, run.deterministic) == ("done", True)
    metrics = list(store.read(out / "metrics.jsonl", StepMetrics))
    assert [m.step for m in metrics] == [0, 1, 2, 3, 4]
    assert [m.step for m in metrics if "accuracy" in m.values] == [0, 2, 4]
    assert [m.values["training/epoch"] for m in metrics[1:]] == [0, 0, 1, 1]
    assert all(m.values["grad_norm"] > 0 for m in metrics[1:])  # without a gradient equal bytes would say nothing
    assert any(m.values["silenced_share"] > 0 for m in metrics[1:])
    lines = (out / "metrics.jsonl").read_text().splitlines() + (out / "timings.jsonl").read_text().splitlines()
    assert unexplained(lines) == set()
    assert "4 steps" in (out / "STATUS.md").read_text()
    assert survivors(out, patience=30) == []


def test_no_module_of_the_current_folder_runs(skilled_base: Path, whole: tuple[Path, bytes], tmp_path: Path) -> None:
    folder, out = hostile_folder.build(tmp_path / "here"), tmp_path / "run"
    hostile_folder.run(folder, "stapo-train", *command(skilled_base, out)[1:])
    same_log(out, whole[0])


def log_equals_metrics(out: Path) -> token_log.TokenLog:
    """Every token that the metrics count is in the token log, as a row and in its counts."""
    log = token_log.read(out)
    assert log is not None
    rows, counts = log.tokens.to_pylist(), log.histogram.to_pylist()
    metrics = {m.step: m.values for m in store.read(out / "metrics.jsonl", StepMetrics)}
    for step in range(1, STEPS + 1):
        mini_batches = len({c["mini_batch"] for c in counts if c["step"] == step})
        assert mini_batches == 2
        for name, flag in (("silenced", "silenced"), ("candidate", "rare")):
            logged = metrics[step][f"actor/selector/{name}_tokens"] * mini_batches  # veRL's mean over them
            assert sum(r[flag] for r in rows if r["step"] == step) == logged, (step, name)
            assert sum(c["tokens"] for c in counts if c["step"] == step and c[flag]) == logged, (step, name)
        assert sum(c["tokens"] for c in counts if c["step"] == step) == metrics[step]["actor/selector/tokens"] * 2
    return log


def test_the_token_log_has_every_token_that_the_metrics_count(whole: tuple[Path, bytes]) -> None:
    log = log_equals_metrics(whole[0])
    rows = log.tokens.to_pylist()
    assert sum(r["silenced"] for r in rows) > 0
    assert any(r["token"] in log.header.watch for r in rows)
    assert all(r["prompt_id"].startswith("mini-add-train-") and 0 <= r["sample"] < 4 for r in rows)
    # a rank's token stands where the log says: the context of one is the token before the next
    tokens = {(r["step"], r["prompt_id"], r["sample"], r["position"]): r for r in rows}
    pairs = [(r, tokens.get((*k[:3], k[3] + 1))) for k, r in tokens.items()]
    assert all(n["before"][-1] == r["token"] and r["after"][0] == n["token"] for r, n in pairs if n)


def test_the_same_command_twice_gives_the_same_bytes(skilled_base: Path, whole, tmp_path: Path) -> None:
    out, expected = whole
    train(skilled_base, tmp_path / "again")
    assert weights(tmp_path / "again", tmp_path / "model") == expected
    same_log(tmp_path / "again", out)


def test_a_finished_run_returns_at_once(skilled_base: Path, whole) -> None:
    out, _ = whole
    before = (out / "run.json").read_bytes()
    began = time.monotonic()
    train(skilled_base, out)
    assert time.monotonic() - began < 20
    assert (out / "run.json").read_bytes() == before


def test_a_finished_run_grows_to_the_bytes_of_a_longer_one(skilled_base: Path, whole, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(skilled_base, out, "run.steps=2")
    assert complete(out, 2).exists()
    train(skilled_base, out)  # STEPS
    run = store.read_json(out / "run.json", Run)
    assert (run.status, run.config["run"]["steps"], run.config["trainer"]["total_training_steps"]) == ("done", 4, 4)
    assert run.resumptions[0].start == "global_step_2"
    assert weights(out, tmp_path / "model") == whole[1]
    same_log(out, whole[0])
    less = subprocess.run(command(skilled_base, out, "run.steps=2"), capture_output=True, text=True)
    assert (less.returncode, "run.steps" in less.stderr) == (2, True)


@pytest.mark.parametrize("step", [1, 3])
def test_kill_9_and_the_same_command_end_in_the_same_bytes(
    skilled_base: Path, whole, tmp_path: Path, step: int
) -> None:
    """Killed after `step`: before the first checkpoint (starts again), and after it (goes on at the end of an epoch,
    where a resumed data loader is exhausted and has to begin the next one)."""
    out, expected = whole
    killed = tmp_path / "killed"
    process = start(skilled_base, killed)
    metrics, deadline = killed / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > step):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert survivors(killed) != []  # the mark reaches what a run starts
    process.send_signal(signal.SIGKILL)
    for c in children:
        try:
            c.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    assert store.read_json(killed / "run.json", Run).status == "running"
    train(skilled_base, killed)
    assert weights(killed, tmp_path / "model") == expected
    same_log(killed, out)
    assert len(store.read_json(killed / "run.json", Run).resumptions) == 1


def test_ctrl_c_finishes_the_step_and_the_same_command_ends_in_the_same_bytes(
    skilled_base: Path, whole, tmp_path: Path
) -> None:
    """The checkpoint of step 3 exists because of Ctrl-C alone and must not change what follows it."""
    out, expected = tmp_path / "run", whole[1]
    process = start(skilled_base, out)
    wait_for(complete(out, 2), process)
    time.sleep(0.3)  # into step 3
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert " ".join(command(skilled_base, out)[1:]) in (out / "log.txt").read_text()  # how to go on
    assert store.read_json(out / "run.json", Run).status == "interrupted"
    assert complete(out, 3).exists()
    assert "step 3" in (out / "STATUS.md").read_text()
    assert survivors(out, patience=30) == []
    train(skilled_base, out)
    assert store.read_json(out / "run.json", Run).resumptions[0].start == "global_step_3"
    assert weights(out, tmp_path / "model") == expected
    same_log(out, whole[0])


def test_a_second_ctrl_c_stops_at_once_and_leaves_no_process(skilled_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(skilled_base, out)
    wait_for(complete(out, 2), process)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert not complete(out, 4).exists()
    assert store.read_json(out / "run.json", Run).status == "interrupted"
    assert survivors(out, patience=30) == []


def test_a_second_validation_setting_adds_its_accuracy_and_changes_nothing_else(
    skilled_base: Path, whole, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(skilled_base, out, "run.validation_settings=[t1.0,t0.7]")
    found, once = ({m.step: m.values for m in store.read(f / "metrics.jsonl", StepMetrics)} for f in (out, whole[0]))
    more = {step: sorted(found[step].keys() - once[step].keys()) for step in found}
    assert all("accuracy_t0.7" in more[step] for step in (0, 2, 4))
    assert {step: {k: v for k, v in found[step].items() if k not in more[step]} for step in found} == once
    assert any(found[step]["accuracy_t0.7"] != found[step]["accuracy"] for step in (0, 2, 4))
    assert weights(out, tmp_path / "model") == whole[1]


def test_a_full_disk_while_saving_leaves_the_earlier_checkpoint(skilled_base: Path, whole, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(skilled_base, out)
    wait_for(complete(out, 2), process)
    target = out / "checkpoints" / "global_step_4" / "actor"
    target.mkdir(parents=True)
    (target / "model_world_size_1_rank_0.pt").symlink_to("/dev/full")  # every write to it: no space left on device
    assert process.wait(timeout=300) == 1
    assert "global_step_2" in (out / "log.txt").read_text()  # where it goes on from
    assert [p.name for p in (out / "checkpoints").glob("global_step_*")] == ["global_step_2"]
    assert store.read_json(out / "run.json", Run).status == "failed"
    train(skilled_base, out)
    assert weights(out, tmp_path / "model") == whole[1]


def test_an_alarm_stops_the_run_and_the_same_command_goes_on_past_it(skilled_base: Path, whole, tmp_path: Path) -> None:
    out, low = tmp_path / "run", ["run.silenced_share_reference=1e-6", "trainer.logger=[console,file,tensorboard]"]
    train(skilled_base, out, *low, "alarms.stop=[silenced_share]", expected=1)
    (alarm,) = store.read(out / "alarms.jsonl", Alarm)
    assert alarm.kind == "silenced_share"
    assert alarm.line in (out / "log.txt").read_text()
    assert complete(out, alarm.step).exists()
    assert alarm.line in (out / "STATUS.md").read_text()
    train(skilled_base, out, *low, "alarms.stop=[]")  # alarms may change; the rest of the configuration may not
    assert weights(out, tmp_path / "model") == whole[1]
    same_log(out, whole[0])
    assert len(list((out / "tensorboard").glob("events.*"))) == 2  # one an attempt
    logged = [json.loads(line) for line in (out / "verl-metrics-0.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged] == list(range(alarm.step + 1))
    assert all("silenced_share" in line["data"] for line in logged[1:])


def test_weights_that_do_not_arrive_end_the_run_with_an_error_and_no_process(
    skilled_base: Path, whole, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(skilled_base, out, "run.weight_transfer_limit_s=0.001", expected=1)
    text = (out / "log.txt").read_text()
    assert "step 0: the weights did not reach the rollout" in text
    assert "rank 0 of 1 not done after 0.001 s" in text
    assert survivors(out, patience=20) == []
    train(skilled_base, out)  # the limit may change
    assert weights(out, tmp_path / "model") == whole[1]


def test_two_ranks_end_in_the_same_bytes_after_an_interruption_and_close_to_one_rank(
    skilled_base: Path, whole, tmp_path: Path
) -> None:
    """The second of the two runs is ended by SIGTERM, as a cluster does, in its third step, and goes on."""
    two_ranks = ("cpu.ranks=2", "cpu.train_threads=1")
    train(skilled_base, tmp_path / "a", *two_ranks)
    process = start(skilled_base, tmp_path / "b", *two_ranks)
    wait_for(complete(tmp_path / "b", 2), process)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 130
    assert complete(tmp_path / "b", 3).exists()
    train(skilled_base, tmp_path / "b", *two_ranks)
    assert weights(tmp_path / "a", tmp_path / "ma") == weights(tmp_path / "b", tmp_path / "mb")
    same_log(tmp_path / "b", tmp_path / "a")
    mini_batches = defaultdict(set)
    for row in log_equals_metrics(tmp_path / "a").tokens.to_pylist():
        mini_batches[row["step"], row["prompt_id"]].add(row["mini_batch"])
    assert {len(of) for of in mini_batches.values()} == {1}  # of two ranks, too, a prompt is in one
    one = list(store.read(whole[0] / "metrics.jsonl", StepMetrics))
    two = list(store.read(tmp_path / "a" / "metrics.jsonl", StepMetrics))
    # the first rollout comes from the same weights and seeds, so its reward is the same number
    assert two[1].values["reward"] == one[1].values["reward"]
    assert two[1].values["entropy"] == pytest.approx(one[1].values["entropy"], rel=1e-5)


MASKS = {name for name, m in methods().items() if m.definition.selector.startswith("silence")}


@pytest.mark.parametrize("method", sorted(set(methods()) - {"stapo"}))  # stapo: `whole`
def test_every_method_trains(skilled_base: Path, tmp_path: Path, method: str) -> None:
    out = tmp_path / "run"
    # of so few tokens the lowest 1 % are none that its proxy keeps
    more = ["actor_rollout_ref.proxy.lowest=1.0"] if method == "lp-reg" else []
    train(skilled_base, out, f"method={method}", "run.steps=5", *more)
    _, *logged = store.read(out / "metrics.jsonl", StepMetrics)  # the schema refuses what is not finite
    steps = [m.values for m in logged]
    assert len(steps) == 5
    assert all(v["grad_norm"] > 0 for v in steps)
    assert unexplained((out / "metrics.jsonl").read_text().splitlines()) == set()
    shares = [v["silenced_share"] for v in steps]
    if method == "entropy20":  # four fifths of the tokens of every mini-batch, rounded down
        assert all(0.75 < share <= 0.8 for share in shares)
    else:
        assert (max(shares) > 0) == (method in MASKS)
    assert (max(v.get("actor/lp_reg_share", 0) for v in steps) > 0) == (method == "lp-reg")
    assert ("actor/kl_loss" in steps[-1]) == (method == "grpo")
    log = token_log.read(out)
    if log is not None:  # Lopti keeps none
        silenced = sum(c["tokens"] for c in log.histogram.to_pylist() if c["step"] == 5 and c["silenced"])
        assert silenced == steps[-1].get("actor/selector/silenced_tokens", 0) * 2


def test_dynamic_sampling_trains_and_twice_gives_the_same_bytes(skilled_base: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(skilled_base, tmp_path / name, "method=dapo-dynamic")
    one, other = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("a", "b"))
    assert one == other
    assert unexplained(one.splitlines()) == set()
    steps = [m.values for m in store.read(tmp_path / "a" / "metrics.jsonl", StepMetrics)][1:]
    assert len(steps) == STEPS
    assert sum(v.get("training/filter_groups/evicted_samples", 0) for v in steps) > 0
    # 8 prompts of 4 responses each, none of them all right or all wrong: the mean reward is within 1/2 of 0
    assert all(v["failed_rollouts"] == 0 and abs(v["reward"]) <= 0.5 for v in steps)
