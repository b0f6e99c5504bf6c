"""Preflight: which models, data and sizes are refused, with which words."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stapo_results.errors import BadInput
from stapo_results.store import write_json
from stapo_training.data.rows import parquet_content_sha256
from stapo_training.run import launch
from stapo_training.run.configuration import compose
from stapo_training.run.preflight import checks as preflight
from stapo_training.run.preflight import inputs, machine
from stapo_training.run.preflight.machine import Gpu

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 79.6, 0.5)
PAPER = ["hardware=64gpu", "method=stapo", "run.data=/data", "run.out=/out"]


def mini(base: Path, out: Path, *more: str):
    return compose(["size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}", *more])


# model and data


def test_a_hub_model_that_is_not_cached_while_the_hub_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    config = compose(["size=qwen3-8b", "hardware=8gpu", "method=stapo", "run.data=/d", f"run.out={tmp_path}"])
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
    config = compose(["size=qwen3-8b", *PAPER, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16000"])
    with pytest.raises(BadInput, match=r"(?s)does not hold one sequence.*16000 tokens.*= 16384.*per_gpu=16384"):
        preflight.check_sizes(config)


def test_tensor_parallelism_has_to_divide_the_ranks() -> None:
    config = compose(["size=qwen3-8b", *PAPER, "actor_rollout_ref.rollout.tensor_model_parallel_size=3"])
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
    return compose(
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
    config = compose(["size=qwen3-8b", "hardware=8gpu", "run.data=/nowhere", f"run.out={tmp_path}"])
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
    report = preflight.examine(compose([*one, "run.card=H20"]))
    assert (report.card, report.card_gib) == ("H20", 95.6)
    assert report.moments is not None
    assert "no GPU found" in [p.what for p in report.problems]
    report = preflight.examine(compose([*one, "run.card=H21"]))
    assert "unknown run.card" in [p.what for p in report.problems]
    assert report.card_gib is None


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
