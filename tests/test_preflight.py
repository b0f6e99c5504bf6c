"""Preflight: which models, data and sizes are refused."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stapo_results.errors import BadInput
from stapo_results.store import write_json
from stapo_training.data.rows import parquet_content_sha256
from stapo_training.run.configuration import compose
from stapo_training.run.preflight import checks as preflight
from stapo_training.run.preflight import inputs, machine

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
    with pytest.raises(BadInput) as e:
        inputs.check_model(config)
    assert "hf download Qwen/no-such-model --revision abc123" in e.value.next_step
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert inputs.check_model(config) == "Qwen/no-such-model"


def test_a_model_folder_without_its_weights_or_a_part_of_them(tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_base / "model", folder)
    config = mini(tiny_base, tmp_path / "out", f"actor_rollout_ref.model.path={folder}")
    assert inputs.check_model(config) == str(folder)
    shards = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    with pytest.raises(BadInput) as e:
        inputs.check_model(config)
    assert str(e.value.found) == f"no model-2.safetensors in {folder}"
    config.actor_rollout_ref.model.path = str(tmp_path / "nothing")
    with pytest.raises(BadInput) as e:
        inputs.check_model(config)
    assert "stapo-train base --out" in e.value.next_step


def test_data_that_differ_from_their_record_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    """The miniature's training file with a data.json as `stapo-train data` writes it."""
    file = tmp_path / "train.parquet"
    shutil.copy(tiny_base / "data" / "train.parquet", file)
    info = {"data_source": "math_dapo", "prompts": 64, "content_sha256": parquet_content_sha256(file)}
    counts = "distinct copies_dropped conflicts_dropped language_dropped contaminated contaminated_dropped"
    record = {
        "source": {"name": "x", "revision": "", "sha256": "0", "rows": 64},
        "language": "all",
        "exclude_contaminated": False,
        "counts": dict.fromkeys(counts.split(), 0),
        "contamination": {},
        "train": {"file": "train.parquet", **info},
        "validation": {"file": "val.parquet", **info},
    }
    write_json(tmp_path / "data.json", record)
    table = pq.read_table(file)
    pq.write_table(table, file, compression="gzip")  # other bytes, the same rows
    assert inputs.check_data("train_files", file, "MAKE") == 64
    pq.write_table(table.slice(0, 63), file)
    with pytest.raises(BadInput) as e:
        inputs.check_data("train_files", file, "MAKE")
    assert info["content_sha256"][:16] in str(e.value.expected)
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(BadInput):
        inputs.check_data("train_files", file, "MAKE")


def test_a_file_that_is_no_parquet_has_no_row_or_lacks_a_column(tiny_base: Path, tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    file.write_text('{"prompt": "1 + 1"}\n')
    with pytest.raises(BadInput, match="is no Parquet file"):
        inputs.check_data("train_files", file, "MAKE")
    table = pq.read_table(tiny_base / "data" / "train.parquet")
    for wrong, said in ((table.slice(0, 0), "holds no row"), (table.drop_columns(["reward_model"]), "columns")):
        pq.write_table(wrong, file)
        with pytest.raises(BadInput, match=said):
            inputs.check_data("train_files", file, "MAKE")


def test_rows_without_a_problem_id_are_refused_before_a_gpu_starts(tiny_base: Path, tmp_path: Path) -> None:
    table = pq.read_table(tiny_base / "data" / "train.parquet")
    file, column = tmp_path / "train.parquet", table.schema.names.index("extra_info")
    rows = table.column("extra_info").to_pylist()
    without = [{k: v for k, v in row.items() if k != "problem_id"} for row in rows]
    for wrong in (without, [rows[0] | {"problem_id": None}, *rows[1:]]):
        pq.write_table(table.set_column(column, "extra_info", [wrong]), file)
        with pytest.raises(BadInput, match=r"extra_info\.problem_id"):
            inputs.check_data("train_files", file, "MAKE")


def test_without_the_check_of_memory_checkpoints_have_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    given = ["size=qwen3-8b", "hardware=8gpu", "run.data=/nowhere", f"run.out={tmp_path}"]
    found = preflight.examine(compose([*given, "run.check_memory=false", "run.card=H100"]))
    assert found.checkpoints is not None
    assert (round(found.checkpoints.each, 1), found.memory) == (91.5, None)  # 12 B x 8.19e9


def test_a_model_of_unknown_size_starts_without_the_check_of_memory(tmp_path: Path) -> None:
    given = ["size=qwen3-8b", "hardware=8gpu", "run.data=/nowhere", f"run.out={tmp_path}"]
    found = preflight.examine(compose([*given, "run.check_memory=false", "actor_rollout_ref.model.path=some/model"]))
    refused = {c.name for c in found.checks.made if c.problem}
    assert (found.checkpoints, refused & {"shape", "disk"}) == (None, set())


def test_a_model_whose_attention_ours_does_not_compute_is_refused(tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_base / "model", folder)
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"attention_dropout": 0.1}))
    model = "actor_rollout_ref.model"
    ours = [f"{model}.override_config.attn_implementation=stapo_varlen", f"{model}.use_remove_padding=true"]
    config = mini(tiny_base, tmp_path / "out", f"{model}.path={folder}", "run.check_memory=false", *ours)
    with pytest.raises(BadInput, match="attention_dropout"):
        preflight.examine(config).checks.refuse()


# sizes


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("data.train_batch_size=100", "100 / 64"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=3", "64 / 3"),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16000", "ppo_max_token_len_per_gpu 16000 tokens"),
    ],
)
def test_sizes_that_do_not_divide_or_hold_no_sequence(override: str, found: str) -> None:
    with pytest.raises(BadInput) as e:
        preflight.check_sizes(compose(["size=qwen3-8b", *PAPER, override]))
    assert found in str(e.value.found)


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("data.train_batch_size=4096", "64"),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=24", "64 / 24"),
        ("trainer.nnodes=2", "trainer.nnodes=2"),
    ],
)
def test_what_the_miniature_cannot_do_is_refused_with_the_numbers(
    tiny_base: Path, tmp_path: Path, override: str, found: str
) -> None:
    prefix = "+" if "address" in override else ""
    with pytest.raises(BadInput) as e:
        preflight.examine(mini(tiny_base, tmp_path, prefix + override)).checks.refuse()
    assert found in str(e.value.found)


def test_the_miniature_fits_two_ranks(tiny_base: Path, tmp_path: Path) -> None:
    c = mini(tiny_base, tmp_path, "cpu.ranks=2", "method=grpo", "data.train_batch_size=32")
    a = c.actor_rollout_ref
    assert a.actor.ppo_micro_batch_size_per_gpu == 32
    assert a.rollout.log_prob_micro_batch_size_per_gpu == a.ref.log_prob_micro_batch_size_per_gpu == 32
    assert a.rollout.tensor_model_parallel_size == c.trainer.n_gpus_per_node == 2
    found = preflight.examine(c)
    assert (found.prompts, found.checks.problems) == (64, [])


# GPUs, end to end, with a nvidia-smi of our own


@pytest.mark.parametrize(("mib", "fits"), [(81559, True), (24576, False)])
def test_eight_cards_of_80_gb_hold_8b_and_of_24_gb_do_not(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int, fits: bool
) -> None:
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    lines = "".join(f"{i}, NVIDIA H100 80GB HBM3, {mib}, 3, 580.65.06\\n" for i in range(8))
    script.write_text(f"#!{sys.executable}\nprint('''{lines}''', end='')\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "lacking", list)  # whatever this machine has
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: type("M", (), {"available": 1024 * 2**30}))
    table = pq.read_table(tiny_base / "data" / "train.parquet").take([i % 64 for i in range(256)])
    for name in ("train", "val"):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    out = tmp_path / "out"
    found = preflight.examine(compose(["size=qwen3-8b", "hardware=8gpu", f"run.data={tmp_path}", f"run.out={out}"]))
    assert (found.card, round(found.card_gib or 0, 2), found.prompts) == ("H100", round(mib / 1024, 2), 256)
    refused = {c.name for c in found.checks.made if c.problem}
    assert ("memory" in refused, found.memory is None) == (not fits, not fits)
    assert not out.exists()


def test_a_card_to_plan_for_stands_in_for_one_that_is_not_here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    config = compose(["size=qwen3-14b", "hardware=8gpu", "run.data=/nowhere", f"run.out={tmp_path}", "run.card=H20"])
    found = preflight.examine(config)
    assert (found.card, found.card_gib) == ("H20", 95.6)
    assert found.memory is not None
    assert "GPUs" in {c.name for c in found.checks.made if c.problem}
    with pytest.raises(BadInput):
        preflight.planned_card("H21")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("actor_rollout_ref.selector.q=75", "selector.q"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "form=two_pass"),
        ("alarms.stop=[fire]", "fire"),
        ("trainer.logger=[mlflow]", "mlflow"),
    ],
)
def test_settings_that_no_machine_could_run_are_refused(override: str, key: str) -> None:
    with pytest.raises(BadInput) as e:
        preflight.check_settings(compose(["size=qwen3-14b", *PAPER, "hardware=8gpu", override])).refuse()
    assert key in str(e.value)
