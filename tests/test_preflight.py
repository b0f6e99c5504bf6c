"""Preflight: what is refused, with which words; what the machine, the disk and the clock are asked; the panel."""

import io
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from stapo_results.errors import BadInput
from stapo_results.schema import StepMetrics
from stapo_results.store import append, write_json
from stapo_training import launch
from stapo_training.data.rows import parquet_content_sha256
from stapo_training.preflight import checks as preflight
from stapo_training.preflight import disk, dry_run, fit, inputs, machine, panel, registration, shapes, steptime
from stapo_training.preflight.differences import ABSENT, Change, method_changes, typed_changes
from stapo_training.preflight.machine import Gpu, Node

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 79.6, 0.5)
PAPER = ["hardware=64gpu", "method=stapo", "run.data=/data", "run.out=/out"]


def mini(base: Path, out: Path, *more: str):
    return launch.compose(["size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}", *more])


# the machine


def test_nvidia_smis_lines_and_what_is_no_card() -> None:
    text = "0, NVIDIA H20, 97871, 4\n1, NVIDIA H20, 97871, 512\n2, NVIDIA H20, [N/A], [N/A]\nNo devices were found\n"
    assert machine.parse_smi(text) == (
        Gpu(0, "NVIDIA H20", 97871 / 1024, 4 / 1024),
        Gpu(1, "NVIDIA H20", 97871 / 1024, 0.5),
    )


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("", []), ("1,7,0", [1]), ("GPU-5f3a,GPU-77b0", [0, 1])],
)
def test_cuda_visible_devices_hides_cards(chosen: str | None, indices: list[int]) -> None:
    cards = tuple(Gpu(i, "x", 80.0, 0.0) for i in range(3))
    assert [g.index for g in machine.visible(cards, chosen)] == indices


def test_the_smallest_card_of_the_nodes_counts() -> None:
    small = Gpu(1, "NVIDIA A100", 40.0, 0.0)
    assert machine.check_gpus([Node("a", (H100, small), 512), Node("b", (H100, H100), 512)], 2, 2) == 40.0
    assert machine.check_gpus([Node("a", (H100,), 512), Node("b", (H100, small), 512)], 1, 2) == 40.0


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([Node("a", (), 64)], r"(?s)no GPU found.*a: 0 .*1 node\(s\) with 2 GPU\(s\) each.*size=mini hardware=cpu"),
        ([Node("a", (H100,), 64)], r"(?s)too few GPUs.*a: 1 "),
        ([Node("a", (H100,), 64, slots=8)], r"(?s)nvidia-smi does not list.*a: 1 listed, 8 offered"),
        (
            [Node("a", (H100, Gpu(1, "NVIDIA H100", 79.6, 41.2)), 64)],
            r"(?s)another program uses a GPU.*a GPU 1 \(NVIDIA H100\): 41\.2 of 79\.6 GiB.*CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_missing_unknown_and_busy_cards_are_refused(nodes: list[Node], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        machine.check_gpus(nodes, 1, 2)


def test_a_real_ray_cluster_is_asked_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that claim 8 and 4 GPUs on a machine without one: counted by Ray, not believed without nvidia-smi."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PATH", "/nowhere")  # no nvidia-smi, whatever machine runs this test
    cluster = Cluster()
    try:
        for gpus in (8, 4):
            cluster.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=80 * 2**20, include_dashboard=False)
        nodes = machine.cluster_nodes(cluster.address)
    finally:
        cluster.shutdown()
    assert sorted((n.slots, n.gpus) for n in nodes) == [(4, ()), (8, ())]
    assert all(n.memory > 0 for n in nodes)
    with pytest.raises(BadInput, match="nvidia-smi does not list the GPUs that Ray offers"):
        machine.check_gpus(nodes, 1, 8)
    with pytest.raises(BadInput, match=r"(?s)too few GPUs.*2 node\(s\) with 8 GPU"):
        machine.check_gpus(nodes, 2, 8)


def test_an_address_where_no_cluster_answers() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        closed = s.getsockname()[1]
    with pytest.raises(BadInput, match=rf"(?s)no Ray cluster answers.*address=127\.0\.0\.1:{closed}.*ray start --head"):
        machine.cluster_nodes(f"127.0.0.1:{closed}")


def test_a_port_that_something_listens_on_is_named_with_its_key(tiny_base: Path, tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        metrics = "actor_rollout_ref.rollout.prometheus"
        config = mini(tiny_base, tmp_path, f"{metrics}.enable=true", f"{metrics}.port={port}")
        with pytest.raises(
            BadInput, match=rf"(?s)a port is in use.*prometheus\.port={port}.*prometheus\.port={port + 1}"
        ):
            preflight.check(config)
    assert preflight.check(config).prompts == 64


# the disk


def test_checkpoints_of_8b_by_hand() -> None:
    # 12 B (fp32 weights and two moments) x 8,190,735,360 = 91.539 GiB; every 100 of 3,000 steps
    c = disk.plan_checkpoints(8_190_735_360, ["model", "optimizer", "extra"], 3000, 100, None, free=500.0)
    assert (round(c.each, 3), c.made, c.kept, round(c.whole, 1)) == (91.539, 30, 30, 2747.2)
    kept = disk.plan_checkpoints(8_190_735_360, ["model", "optimizer", "extra", "hf_model"], 250, 100, 2, free=500.0)
    assert (round(kept.each, 3), kept.made, kept.kept) == (122.051, 3, 2)  # 16 B; steps 100, 200 and the last
    assert disk.plan_checkpoints(1, ["model"], 10, -1, None, 1.0).made == 0


def test_under_two_checkpoints_of_free_disk_is_refused() -> None:
    def with_free(gib: float) -> disk.Checkpoints:
        return disk.plan_checkpoints(8_190_735_360, ["model", "optimizer"], 3000, 100, None, gib)

    with pytest.raises(BadInput) as e:
        disk.check_disk(with_free(184.0), "/runs/a")
    assert str(e.value) == (
        "too little disk is free for /runs/a\n"
        "  found:    184.00 GiB\n"
        "  expected: at least 184.08 GiB: two checkpoints of 91.54 GiB and 1 GiB of logs\n"
        "  next:     free some space or choose another run.out"
    )
    disk.check_disk(with_free(184.1), "/runs/a")


# model and data


def test_a_hub_model_that_is_not_cached_while_the_hub_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    config = launch.compose(["size=qwen3-8b", "hardware=8gpu", "method=stapo", "run.data=/d", f"run.out={tmp_path}"])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config.actor_rollout_ref.model.path = "Qwen/no-such-model"
    config.run.model_revision = "abc123"
    with pytest.raises(BadInput, match=r"(?s)hub is switched off.*hf download Qwen/no-such-model --revision abc123"):
        inputs.check_model(config)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert inputs.check_model(config) == "Qwen/no-such-model"


def test_a_model_folder_without_its_weights_or_a_part_of_them(tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_base / "model", folder)
    config = mini(tiny_base, tmp_path / "out", f"actor_rollout_ref.model.path={folder}")
    assert inputs.check_model(config) == str(folder)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
    )
    with pytest.raises(BadInput, match=r"(?s)incomplete.*1 of 2 files missing, the first model-2\.safetensors"):
        inputs.check_model(config)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"no \*\.safetensors in"):
        inputs.check_model(config)


def prepared(tiny_base: Path, folder: Path) -> Path:
    """The miniature's training file with a data.json as `stapo-train data` writes it."""
    folder.mkdir()
    file = folder / "train.parquet"
    shutil.copy(tiny_base / "data" / "train.parquet", file)
    info = {"data_source": "math_dapo", "prompts": 64, "content_sha256": parquet_content_sha256(file)}
    counts = "distinct copies_dropped conflicts_dropped language_dropped contaminated contaminated_dropped answer_line"
    record = {
        "source": {"name": "x", "revision": "", "sha256": "0", "rows": 64, "wrappers": {}},
        "language": "all",
        "exclude_contaminated": False,
        "counts": dict.fromkeys(counts.split(), 0),
        "contamination": {},
        "train": {"file": "train.parquet", **info},
        "validation": {"file": "val.parquet", **info},
    }
    write_json(folder / "data.json", record)
    return file


def test_data_that_differ_from_their_record_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    file = prepared(tiny_base, tmp_path / "data")
    assert inputs.check_data("train_files", file, "MAKE") == 64
    table = pq.read_table(file)
    pq.write_table(table, file, compression="gzip")  # other bytes, the same rows
    assert inputs.check_data("train_files", file, "MAKE") == 64
    pq.write_table(table.slice(0, 63), file)
    with pytest.raises(
        BadInput, match=r"(?s)is not what data\.json beside it says.*found: +content.*expected: content"
    ):
        inputs.check_data("train_files", file, "MAKE")
    (file.parent / "data.json").write_text("{")
    with pytest.raises(BadInput, match=r"data\.json"):
        inputs.check_data("train_files", file, "MAKE")


def test_a_file_that_is_no_parquet_or_has_no_row(tiny_base: Path, tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    file.write_text('{"prompt": "1 + 1"}\n')
    with pytest.raises(BadInput, match=r"(?s)is no Parquet file.*make it again: MAKE"):
        inputs.check_data("train_files", file, "MAKE")
    pq.write_table(pq.read_table(tiny_base / "data" / "train.parquet").slice(0, 0), file)
    with pytest.raises(BadInput, match=r"(?s)holds no row.*at least 1"):
        inputs.check_data("train_files", file, "MAKE")


# sizes


def test_a_packing_limit_below_one_sequence_is_refused() -> None:
    config = launch.compose(["size=qwen3-8b", *PAPER, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16000"])
    with pytest.raises(BadInput, match=r"(?s)does not hold one sequence.*16000 tokens.*= 16384.*per_gpu=16384"):
        preflight.check_sizes(config)


def test_tensor_parallelism_has_to_divide_the_ranks() -> None:
    config = launch.compose(["size=qwen3-8b", *PAPER, "actor_rollout_ref.rollout.tensor_model_parallel_size=3"])
    with pytest.raises(BadInput, match=r"(?s)tensor_model_parallel_size does not divide.*64 / 3"):
        preflight.check_sizes(config)


def test_a_model_too_large_for_this_machines_memory_is_refused(tiny_base: Path, tmp_path: Path, monkeypatch) -> None:
    """The miniature with a vocabulary of a million: 12,288 tokens x 1,000,000 x 4 B x 3 = 137.3 GiB of logits."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_base / "model", folder)
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"vocab_size": 1_000_000}))
    monkeypatch.setattr(preflight.psutil, "virtual_memory", lambda: type("M", (), {"available": 24 * 2**30}))
    config = mini(tiny_base, tmp_path / "out", f"actor_rollout_ref.model.path={folder}")
    with pytest.raises(
        BadInput, match=r"(?s)too little memory \(update\).*137\.33 GiB  logits: 12288 tokens x 1000000"
    ):
        preflight.check(config)
    config.run.check_memory = False
    assert preflight.check(config).prompts == 64


# GPUs, end to end, with a nvidia-smi of our own


def with_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    lines = "".join(f"{i}, NVIDIA H100 80GB HBM3, {mib}, 3\\n" for i in range(8))
    script.write_text(f"#!{sys.executable}\nprint('''{lines}''', end='')\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def paper_on_eight(tiny_base: Path, tmp_path: Path, *more: str):
    data = tmp_path / "data"
    data.mkdir()
    table = pq.read_table(tiny_base / "data" / "train.parquet").take([i % 64 for i in range(256)])
    for name in ("train", "val"):
        pq.write_table(table, data / f"{name}.parquet")
    return launch.compose(
        ["size=qwen3-8b", "hardware=8gpu", "method=stapo", f"run.data={data}", f"run.out={tmp_path / 'out'}", *more]
    )


def test_eight_cards_of_80_gb_hold_8b(tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_smi(tmp_path, monkeypatch, 81559)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: type("M", (), {"available": 1024 * 2**30}))
    report = preflight.examine(paper_on_eight(tiny_base, tmp_path))
    assert (report.card, round(report.card_gib or 0, 2), report.facts.prompts) == ("H100", 79.65, 256)
    assert report.moments is not None
    assert all(m.fits for m in report.moments)
    assert not (tmp_path / "out").exists()


def test_eight_cards_of_24_gb_do_not(tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_smi(tmp_path, monkeypatch, 24576)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: type("M", (), {"available": 1024 * 2**30}))
    report = preflight.examine(paper_on_eight(tiny_base, tmp_path))
    (memory,) = [p for p in report.problems if p.what.startswith("too little memory")]
    assert "of 24.0 GiB" in str(memory.found)
    assert report.moments is None


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    config = launch.compose(["size=qwen3-8b", "hardware=8gpu", "run.data=/nowhere", f"run.out={tmp_path}"])
    with pytest.raises(BadInput) as e:
        preflight.check(config)
    text = str(e.value)
    for said in (
        "things stand in the way",
        "data.train_files is not there",
        "data.val_files is not there",
        "no GPU found",
    ):
        assert said in text
    assert "2. " in text
    assert e.value.exit_code == 2


def test_a_card_to_plan_for_stands_in_for_one_that_is_not_here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    one = ["size=qwen3-14b", "hardware=8gpu", "run.data=/nowhere", f"run.out={tmp_path}"]
    report = preflight.examine(launch.compose([*one, "run.card=H20"]))
    assert (report.card, report.card_gib) == ("H20", 95.6)
    assert report.moments is not None
    assert "no GPU found" in [p.what for p in report.problems]
    report = preflight.examine(launch.compose([*one, "run.card=H21"]))
    assert "unknown run.card" in [p.what for p in report.problems]
    assert report.card_gib is None


# veRL's own opinion, and what is registered


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor_rollout_ref.actor.loss_agg_mode=token-median", "Invalid loss_agg_mode: token-median"),
        ("actor_rollout_ref.rollout.mode=sync", "'sync' has been removed"),
        ("+actor_rollout_ref.actor.no_such=1", "unexpected keyword argument 'no_such'"),
    ],
)
def test_what_verl_refuses_is_bad_input(tiny_base: Path, tmp_path: Path, override: str, said: str) -> None:
    config = mini(tiny_base, tmp_path, override)
    with pytest.raises(BadInput, match=rf"(?s)veRL refuses the configuration.*{said}.*--config-only"):
        preflight.validate(config, ask_worker=False)


def test_a_workers_environment_has_what_runtime_env_names_and_not_the_launchers_own(tiny_base: Path) -> None:
    config = mini(tiny_base, Path("/out"))
    own = {"PATH": "/bin", "VERL_PLATFORM": "npu", "STAPO_TRAIN_THREADS": "9", "HOME": "/h"}
    assert registration.worker_environment(config, own) == {
        "PATH": "/bin",
        "HOME": "/h",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform",
        "STAPO_TRAIN_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def test_an_environment_that_lacks_our_module_is_found_before_ray_starts(tiny_base: Path) -> None:
    config = mini(tiny_base, Path("/out"), "~ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES")
    with (
        registration.asked(config) as answer,
        pytest.raises(
            BadInput, match=r"(?s)worker's process: platform.*Unknown platform 'cpu'.*VERL_USE_EXTERNAL_MODULES"
        ),
    ):
        answer()


# time


def test_seconds_a_step_from_the_runs_own_timings(tmp_path: Path) -> None:
    assert steptime.own_steps(tmp_path) is None
    # the first step is slow and leaves the window of 20
    seconds = [90.0] + [4.0, 5.0, 6.0, 7.0] * 5
    append(tmp_path / "timings.jsonl", [StepMetrics(step=i, values={"seconds": s}) for i, s in enumerate(seconds, 1)])
    assert steptime.own_steps(tmp_path) == steptime.Estimate(5.5, ("measured: median of this run's last 20 steps",))


def test_seconds_a_step_from_the_committed_records(tiny_base: Path) -> None:
    config = mini(tiny_base, Path("/out"))
    found = steptime.recorded(config, dry_run.RECORDS)
    record = json.loads((dry_run.RECORDS / "miniature" / "train" / "stapo-s0" / "run.json").read_text())
    assert found is not None
    assert found.seconds == record["wall_seconds"] / 40
    assert found.basis[0].startswith("measured: stapo took ")
    config.trainer.n_gpus_per_node = 2
    assert steptime.recorded(config, dry_run.RECORDS) is None


def test_the_formula_by_hand() -> None:
    """14B on 64 H20: 2,048 sequences of 1,920 + 150 tokens; 8 P + 2 P a token; replicas of two cards, 64 sequences."""
    config = launch.compose(["size=qwen3-14b", *PAPER])
    plan = fit.plan_from(config, shapes.find_shape("Qwen/Qwen3-14B-Base"))
    # 10 * 14768307200 * 2048 * 2070 / (64 * 148e12 * 0.4) = 165.25 s
    # (15360 * 2 * 14768307200 / 2 + 64 * 1920 * (150 + 960) * 163840 / 2) / (4e12 * 0.5) = 113.42 + 5.59 s
    found = steptime.formula(config, plan, "H20")
    assert found.seconds == pytest.approx(165.25 + 113.42 + 5.59, abs=0.02)


def test_the_numbers_beside_the_papers_statement_are_the_formulas() -> None:
    seconds = []
    for size in ("1.7B", "8B", "14B"):
        config = launch.compose([f"size=qwen3-{size.lower()}", *PAPER])
        plan = fit.plan_from(config, shapes.find_shape(f"Qwen/Qwen3-{size}-Base"))
        seconds.append(steptime.formula(config, plan, "H20").seconds)
    days = sum(s or 0 for s in seconds) / 3 * 3000 / 86400
    assert "{:.0f}, {:.0f} and {:.0f} s there".format(*seconds) in steptime.PAPER
    assert f"{days:.1f} days" in steptime.PAPER


@pytest.mark.parametrize(
    ("name", "card"),
    [("NVIDIA H20", "H20"), ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("Tesla T4", None)],
)
def test_the_card_in_a_name(name: str, card: str | None) -> None:
    assert steptime.card_named(name) == card


# what is printed


def test_what_was_typed_and_what_the_method_sets() -> None:
    typed = ["size=qwen3-8b", *PAPER, "actor_rollout_ref.actor.optim.lr=2e-6", "+data.note=x"]
    config = launch.compose(typed)
    assert typed_changes(typed, config, launch.compose) == [
        Change("actor_rollout_ref.actor.optim.lr", 2e-6, 1e-6, 1e-6),
        Change("data.note", "x", ABSENT, ABSENT),
    ]
    changes = method_changes(["size=qwen3-8b", "method=grpo", *PAPER[:1], *PAPER[2:]], launch.compose)
    assert Change("actor_rollout_ref.actor.clip_ratio_high", 0.2, 0.28, 0.2) in changes
    assert Change("actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-mean", "token-mean", "token-mean") in changes


def test_the_panel_is_plain_text_of_80_columns(tiny_base: Path, tmp_path: Path) -> None:
    config = mini(tiny_base, tmp_path / "out")
    report = preflight.examine(config)
    report.command = "stapo-train run size=mini"
    out = io.StringIO()
    panel.show(
        Console(file=out, width=80, highlight=False),
        config,
        report,
        typed=[Change("actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking", True, False, ABSENT)],
        method=[],
        registered={"platform": "x"},
        time=steptime.Estimate(7.4, ("measured",)),
        step=20,
    )
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for said in (
        "stapo on mini, seed 0, 40 steps",
        "32 prompts x 8 responses a step, 4 update(s), 64 prompts (2.0 steps an epoch)",
        "one every 10 steps: 4 made, 4 kept",
        "about 7 s a step, 5 minutes for 40 steps",
        "To go on after step 20\n  stapo-train run size=mini\n",
    ):
        assert said in text
    assert not (tmp_path / "out").exists()


def test_a_dry_run_passes_prints_and_writes_nothing(tiny_base: Path, tmp_path: Path) -> None:
    words = ["size=mini", "hardware=cpu", f"run.base={tiny_base}", f"run.out={tmp_path / 'out'}", "run.seed=3"]
    done = subprocess.run(
        [sys.executable, "-m", "stapo_training.cli", "run", *words, "--dry-run"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "All checks passed; nothing was started (--dry-run)." in done.stdout
    assert "  run.seed\n      3   (otherwise 0, no such key in veRL)\n" in done.stdout
    ours = "stapo_training.verl_ext"
    for said in (  # what a fresh process has registered
        f"platform: {ours}.platform.CpuPlatform",
        f"worker and engine: {ours}.worker.",
        f"rollout: {ours}.rollout.CpuRolloutAdapter with",
        f"trainer mode: {ours}.trainer.StapoTrainer",
        f"agent loop: {ours}.agent_loop.SeededAgentLoopManager",
        "{'verifier': 'fallback'}: +1 and -1",
        "selector: silence_spurious",
    ):
        assert said in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_dry_run_that_cannot_start_prints_the_panel_before_it_refuses(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = ["size=qwen3-8b", "hardware=8gpu", "method=grpo", "run.card=H20", "run.data=/nowhere"]
    with pytest.raises(BadInput, match=r"(?s)stand in the way.*data\.train_files.*no GPU found") as e:
        launch.run([*words, f"run.out={tmp_path / 'out'}"], dry_run=True)
    assert e.value.exit_code == 2
    printed = capfd.readouterr().out
    for said in (
        "grpo on qwen3-8b",
        "tightest: saving a checkpoint",
        "0.2   (otherwise 0.28, veRL 0.2)",
        "formula, not measured",
        "To start it",
    ):
        assert said in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor_rollout_ref.selector.q=75", "selector.q: Input should be less than or equal to 1"),
        ("actor_rollout_ref.selector.tau=0.1", r"(?s)selector.tau.*expected: name, policy, scope"),
        ("data.train_batch_size=100", "100 / 64"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "(?s)does not go with.*form=two_pass"),
        ("alarms.stop=[fire]", "fire"),
    ],
)
def test_config_only_refuses_what_no_machine_could_run(override: str, said: str) -> None:
    prefix = "+" if override.startswith("actor_rollout_ref.selector.tau=") else ""
    with pytest.raises(BadInput, match=said):
        launch.run(["size=qwen3-14b", *PAPER, prefix + override], config_only=True)


def test_config_only_needs_no_gpu_no_data_and_no_model(capfd: pytest.CaptureFixture) -> None:
    assert launch.run(["size=qwen3-14b", *PAPER], config_only=True) == 0
    assert "tensor_model_parallel_size: 2" in capfd.readouterr().out
