"""Preflight: what is refused before anything expensive starts, by the field that its refusal names."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from driving import nvidia_smi
from ray._private import services
from safetensors.torch import load_file, save_file

from stapo_results import shapes, throughput
from stapo_results.errors import BadInput
from stapo_results.store import write_json
from stapo_training.data.rows import parquet_content_sha256
from stapo_training.start import estimate, inputs, launch, machine, preflight, resolvers, settings
from stapo_training.start.configuration import compose
from stapo_training.start.machine import Node

GPUS = ["size=qwen3-8b", "hardware=8gpu", "method=stapo", "run.data=/nowhere", "run.out=/out"]
MIDDLE = shapes.shape_from(shapes.KNOWN["Qwen/Qwen3-8B-Base"], "")
A = "actor_rollout_ref"


def mini(base: Path, out: Path, *more: str) -> Any:
    return compose(["size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}", *more])


def refusals(checks: Any) -> dict[str, str]:
    return {c.name: str(c.problem) for c in checks.made if c.problem}


# settings


@pytest.mark.parametrize(
    ("overrides", "check", "said"),
    [
        (["data.train_batch_size=100"], "sizes", "100 / 64"),
        ([f"{A}.rollout.tensor_model_parallel_size=3"], "sizes", "8 / 3"),
        ([f"{A}.actor.ppo_mini_batch_size=1", f"{A}.rollout.n=4"], "sizes", "4 / 8"),
        ([f"{A}.actor.use_dynamic_bsz=false", f"{A}.actor.ppo_micro_batch_size_per_gpu=24"], "sizes", "64 / 24"),
        ([f"{A}.actor.ppo_max_token_len_per_gpu=16000"], "sizes", "ppo_max_token_len_per_gpu=16000"),
        ([f"{A}.rollout.log_prob_max_token_len_per_gpu=8192"], "sizes", "at least 16384"),
        (["method=grpo", f"{A}.ref.log_prob_max_token_len_per_gpu=8192"], "sizes", "at least 16384"),
        (["method=clip_cov", f"{A}.actor.ppo_max_token_len_per_gpu=32767"], "sizes", "at least 32768"),
        ([f"{A}.selector.q=75"], "selector", "selector.q"),
        ([f"{A}.token_log.folder=/x"], "token log", "/out/token_log"),
        ([f"{A}.advantage.reweight=2"], "advantage", "reweight"),
        ([f"{A}.proxy.min_p=0.1"], "proxy", "min_p"),
        *(
            ([f"{key}={value}"], key.lstrip("+"), f"{key.lstrip('+')}={cure}")
            for key, value, cure in (
                (f"{A}.model.use_fused_kernels", "true", "false"),
                (f"{A}.nccl_timeout", "3600", "600"),
                (f"{A}.model.lora_rank", "8", "0"),
                (f"{A}.model.lora.rank", "8", "0"),
                (f"{A}.model.lora_adapter_path", "/a", "null"),
                (f"{A}.rollout.top_p", "0.9", "1"),
                (f"{A}.rollout.top_k", "20", "-1"),
                ("data.tool_config_path", "/tools.yaml", "null"),
                ("data.function_tool_path", "/tools.py", "null"),
                ("data.filter_overlong_prompts", "false", "true"),
                ("+algorithm.rollout_correction.rollout_rs", "seq_mean_k1", "null"),
                (f"{A}.rollout.val_kwargs.top_k", "5", "-1"),
                (f"{A}.rollout.val_kwargs.do_sample", "false", "true"),
                ("trainer.resume_mode", "disable", "auto"),
                ("trainer.resume_from_path", "/other/global_step_5", "null"),
            )
        ),
        ([f"{A}.rollout.max_model_len=1024"], "sizes", "at least 16384"),
        *(
            ([f"{A}.actor.checkpoint.{contents}"], "checkpoints", "all of its state")
            for contents in ("save_contents=[modle,optimizer,extra]", "save_contents=[model]", "load_contents=[model]")
        ),
        ([f"{A}.actor.clip_ratio=0.1"], "what veRL reads", "clip_ratio_low"),
        ([f"{A}.actor.grad_clip=0.5"], "what veRL reads", "optim.clip_grad"),
        ([f"+{A}.rollout.engine_kwargs.vlm.use_fp64_gumbel=true"], "what veRL reads", "engine_kwargs.vlm"),
        ([f"{A}.rollout.n=1"], "what veRL reads", "bare reward"),
        (["+reward.custom_reward_function.reward_kwargs.nosie=0.7"], "verifier", "nosie"),
        (["alarms.stop=[fire]"], "alarms", "fire"),
        (["trainer.logger=[mlfow]"], "loggers", "mlfow is unknown"),
        (["reward.custom_reward_function.reward_kwargs.verifier=x"], "verifier", "strict_box"),
        (["method=dapo-dynamic", "algorithm.filter_groups.metric=foo"], "dynamic sampling", "foo"),
    ],
)
def test_settings_that_no_machine_could_run_are_refused(overrides: list[str], check: str, said: str) -> None:
    assert said in refusals(settings.check_settings(compose([*GPUS, *overrides])))[check]


def test_a_loggers_package_and_wandbs_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings.importlib.util, "find_spec", lambda package: None)
    for name, package in (("trackio", "trackio"), ("vemlp_wandb", "volcengine_ml_platform")):
        with pytest.raises(BadInput, match=f"pip install {package}"):
            settings.check_loggers(["console", name])
    monkeypatch.setattr(settings.importlib.util, "find_spec", lambda package: object())
    home = {"HOME": str(tmp_path)}
    with pytest.raises(BadInput, match="WANDB_MODE=offline"):
        settings.check_loggers(["wandb"], home)
    settings.check_loggers("wandb", home | {"WANDB_API_KEY": "x"})


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (f"{A}.actor.loss_agg_mode=token-median", "token-median"),
        ("trainer.v1.trainer_mode=sync", "trainer.v1.trainer_mode"),
        (f"{A}.actor.strategy=fsdp", "strategy=fsdp"),
        (f"{A}.rollout.agent.default_agent_loop=nothing", "default_agent_loop=nothing"),
        ("reward.custom_reward_function.path=/nowhere.py", "/nowhere.py"),
        ("reward.custom_reward_function.path=null", "path"),
        ("algorithm.adv_estimator=grop", "grop"),
        (f"{A}.actor.policy_loss.loss_mode=vanila", "vanila"),
        (f"{A}.actor.fsdp_config.dtype=bf17", "bf17"),
        (f"{A}.rollout.name=vlm", "rollout.name=vlm"),
    ],
)
def test_what_verl_refuses_or_does_not_find(tiny_base: Path, tmp_path: Path, override: str, named: str) -> None:
    with pytest.raises(BadInput) as e:
        launch.ask_verl(mini(tiny_base, tmp_path, override))
    assert named in str(e.value.found)


REWARD = "reward.custom_reward_function"


@pytest.mark.parametrize(
    ("kind", "returned", "refused"),
    [
        ("", "score", ""),
        ("async ", "{'score': score, 'acc': score > 0}", ""),
        ("", "{'score': 1.0}", "[1.0, 1.0]"),
        ("", "{'score': score}", "[False, False] as acc"),  # by which validation counts
        ("", "{'score': score, 'acc': True}", "[True, True] as acc"),
    ],
)
def test_a_reward_of_ones_own_with_verls_signature(tiny_base, tmp_path: Path, kind, returned, refused: str) -> None:
    head = f"{kind}def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    score = "    score = 1.0 if f'{{{ground_truth}}}' in solution_str else -1.0\n"
    (tmp_path / "mine.py").write_text(f"{head}{score}    return {returned}\n")
    config = mini(tiny_base, tmp_path, f"{REWARD}.path={tmp_path}/mine.py")
    if not refused:
        launch.ask_verl(config)
        return
    with pytest.raises(BadInput) as e:
        launch.ask_verl(config)
    assert refused in str(e.value.found)


@pytest.mark.parametrize(
    ("more", "given"),
    [
        ([], {}),
        ([f"{REWARD}.reward_kwargs=null"], {}),
        ([f"~{REWARD}.reward_kwargs.verifier"], {}),
        ([f"+{REWARD}.reward_kwargs.least=2", f"{REWARD}.reward_kwargs.verifier=v"], {"verifier": "v", "least": 2}),
    ],
)
def test_a_reward_of_ones_own_gets_what_is_named(more: list[str], given: dict) -> None:
    config = compose([*GPUS, f"{REWARD}.path=mine.py", *more])
    chosen = config.reward.custom_reward_function
    assert (chosen.path, chosen.reward_kwargs) == (str(Path("mine.py").resolve()), given)
    assert "verifier" not in refusals(settings.check_settings(config))


def test_config_only_needs_no_gpu_no_data_and_no_model(capfd: pytest.CaptureFixture) -> None:
    assert launch.run([*GPUS, "size=qwen3-14b", "hardware=64gpu"], config_only=True) == 0
    assert "tensor_model_parallel_size: 2" in capfd.readouterr().out


# model and data


def test_a_hub_model_that_is_not_cached_while_the_hub_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([*GPUS, f"{A}.model.path=Qwen/no-such-model", "run.model_revision=abc123"])
    config.run.size = "x"
    monkeypatch.setattr(machine.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(machine.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match="hf download Qwen/no-such-model --revision abc123"):
        inputs.check_model(config)
    monkeypatch.setattr(machine.constants, "HF_HUB_OFFLINE", False)
    assert inputs.check_model(config) == "Qwen/no-such-model"


def test_a_model_folder_without_its_weights_a_part_of_them_or_of_another_size(tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_base / "model", folder)
    config = mini(tiny_base, tmp_path / "out", f"{A}.model.path={folder}")
    assert inputs.check_model(config) == str(folder)
    config.run.size = "qwen3-8b"
    with pytest.raises(BadInput, match=r"run\.size=mini"):
        inputs.check_model(config)
    config.run.size = "mini"
    shards = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    with pytest.raises(BadInput, match=f"no model-2.safetensors in {folder}"):
        inputs.check_model(config)
    (folder / "model.safetensors.index.json").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(BadInput, match=r"no readable model\.safetensors\.index\.json"):
        inputs.check_model(config)
    config.actor_rollout_ref.model.path = str(tmp_path / "nothing")
    with pytest.raises(BadInput, match="stapo-train base --out"):
        inputs.check_model(config)
    config.run.size = "mini-costly"
    with pytest.raises(BadInput, match="stapo-train base --world costly --out"):
        inputs.check_model(config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: {f"module.{n}": t for n, t in tensors.items()}, "embed_tokens.weight missing"),
        (lambda tensors: tensors | {"model.embed_tokens.weight": tensors["model.embed_tokens.weight"][:-1]}, "embed"),
        (lambda tensors: {n.removeprefix("model."): t for n, t in tensors.items()}, ""),  # as without its head
        (lambda tensors: tensors | {"model.rotary.inv_freq": tensors["model.norm.weight"] + 1}, ""),
        (None, "is no whole file"),
    ],
)
def test_weights_that_transformers_would_fill_at_random_are_refused(tiny_base, tmp_path: Path, change, said) -> None:
    folder = Path(shutil.copytree(tiny_base / "model", tmp_path / "model"))
    file = folder / "model.safetensors"
    if change is None:
        file.write_text("version https://git-lfs.github.com/spec/v1")
    else:
        save_file(change(load_file(file)), file)
    if not said:
        inputs.check_weights(str(folder))
        return
    with pytest.raises(BadInput, match=said):
        inputs.check_weights(str(folder))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": None}, "architectures"),
        ({"max_position_embeddings": 111}, "max_response_length=47"),  # 64 + 48 tokens are asked
        (
            {
                "max_position_embeddings": 56,
                "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 56},
            },
            "override_config.max_position_embeddings=112",
        ),
    ],
)
def test_a_model_whose_configuration_cannot_serve(tiny_base: Path, tmp_path: Path, changes: dict, said: str) -> None:
    shutil.copytree(tiny_base / "model", tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    found = preflight.examine(mini(tiny_base, tmp_path, f"{A}.model.path={tmp_path}/model"))
    assert said in refusals(found.checks)["the model's configuration"]


def test_a_known_model_that_is_not_here_is_planned_by_its_sizes(tiny_base: Path, tmp_path: Path) -> None:
    found = preflight.examine(mini(tiny_base, tmp_path, f"{A}.model.path=Qwen/Qwen3-1.7B-Base"))
    assert "the model's configuration" not in refusals(found.checks)
    assert found.shape
    assert found.shape.vocab == 151_936


def test_another_model_takes_a_size_of_its_own(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.constants, "HF_HUB_OFFLINE", False)
    shutil.copytree(tiny_base / "model", tmp_path / "model", ignore=shutil.ignore_patterns("stapo.json"))
    other, folder = f"{A}.model.path=Qwen/Qwen3-1.7B", f"{A}.model.path={tmp_path}/model"
    for override, found in ((other, "Qwen/Qwen3-1.7B"), (folder, "num_hidden_layers")):
        with pytest.raises(BadInput, match="not the one of size qwen3-8b") as e:
            inputs.check_model(compose([*GPUS, override]))
        assert found in str(e.value.found)
    with pytest.raises(BadInput, match=r"(?s)not the one of size qwen2\.5-coder-0\.5b.*models/qwen \(no folder here\)"):
        inputs.check_model(compose([*GPUS, "hardware=1gpu", "size=qwen2.5-coder-0.5b", f"{A}.model.path=models/qwen"]))
    row = "+by_size.x={tokens: 16384, tensor_parallel: 1, offload: false, on_host: false}"
    assert inputs.check_model(compose([*GPUS, other, "run.size=x", row])) == "Qwen/Qwen3-1.7B"


def test_data_that_the_size_does_not_read_are_refused() -> None:
    with pytest.raises(BadInput, match=r"does not read run\.data"):  # a forgotten size= is the miniature's
        inputs.check_base(compose(["method=stapo", "hardware=8gpu", "run.data=data", "run.out=out"]))
    with pytest.raises(BadInput, match=r"does not read run\.data"):  # the beginning of another folder's name
        inputs.check_base(compose(["method=stapo", "size=mini", "run.base=/d/base", "run.data=/d/ba", "run.out=out"]))
    inputs.check_base(compose(GPUS))


def test_two_files_that_both_count_from_0(tiny_base: Path, tmp_path: Path) -> None:
    file = tiny_base / "data" / "train.parquet"
    shutil.copy(file, tmp_path / "again.parquet")
    found = preflight.examine(mini(tiny_base, tmp_path, f"data.train_files=[{file},{tmp_path}/again.parquet]"))
    assert "64 such ids" in refusals(found.checks)["ids of data.train_files"]


def test_the_shape_of_a_model_is_in_its_folder_or_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, '
        '"num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32}')  # fmt: skip
    # no head norms, 2 key heads of 4: layer 4*64 + 384 + 16 = 656; root 2*256 + 8
    assert inputs.find_shape(str(tmp_path)).parameters == 2 * 656 + 256 + 256 + 8
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"config\.json"):
        inputs.find_shape(str(tmp_path))
    with pytest.raises(BadInput, match="hf download some/model"):
        inputs.find_shape("some/model")
    with pytest.raises(BadInput, match="model_type mamba"):
        shapes.shape_from({"model_type": "mamba"}, "model")
    with pytest.raises(BadInput, match="hidden_size"):
        shapes.shape_from({"model_type": "qwen3", "hidden_size": "8", "num_attention_heads": 2}, "model")


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
    assert len(inputs.check_data("train_files", file, "MAKE")) == 64
    pq.write_table(table.slice(0, 63), file)
    with pytest.raises(BadInput, match=info["content_sha256"][:16]):
        inputs.check_data("train_files", file, "MAKE")
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(BadInput):
        inputs.check_data("train_files", file, "MAKE")


def test_files_that_hold_no_training_data_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    table, file = pq.read_table(tiny_base / "data" / "train.parquet"), tmp_path / "train.parquet"
    rows, column = table.column("extra_info").to_pylist(), table.schema.names.index("extra_info")
    without = [{k: v for k, v in row.items() if k != "problem_id"} for row in rows]
    for wrong, said in (
        (None, "Parquet"),
        (table.slice(0, 0), "no row"),
        (table.drop_columns(["reward_model"]), "columns"),
        (table.set_column(column, "extra_info", [without]), r"extra_info\.problem_id"),
        (table.set_column(column, "extra_info", [[rows[0] | {"problem_id": None}, *rows[1:]]]), "1 without"),
    ):
        file.write_text("{}\n") if wrong is None else pq.write_table(wrong, file)
        with pytest.raises(BadInput, match=said):
            inputs.check_data("train_files", file, "MAKE")
    with pytest.raises(BadInput, match="Parquet"):
        inputs.check_data("train_files", tmp_path, "MAKE")


def _longer(table: Any, first: int) -> Any:
    """The table with 120 more characters in every prompt from the row `first` on."""
    prompts = table.column("prompt").to_pylist()
    for prompt in prompts[first:]:
        prompt[0]["content"] += " 1 + 2" * 20
    return table.set_column(table.schema.names.index("prompt"), "prompt", [prompts])


def test_prompts_that_verl_would_leave_out(tiny_base: Path, tmp_path: Path) -> None:
    """Of 64 prompts 20 fit: fewer than a batch of 32, and enough for one of 16; no validation problem is left out."""
    table = pq.read_table(tiny_base / "data" / "train.parquet")
    pq.write_table(_longer(table, 20), tmp_path / "train.parquet")
    given = f"data.train_files={tmp_path}/train.parquet"
    found = preflight.examine(mini(tiny_base, tmp_path / "out", given))
    assert (found.prompts, found.longer) == (20, 44)
    assert "20 (44 more" in refusals(found.checks)["prompts"]
    found = preflight.examine(mini(tiny_base, tmp_path / "out", given, "data.train_batch_size=16"))
    assert (found.prompts, found.longer) == (20, 44)
    assert "prompts" not in refusals(found.checks)
    found = preflight.examine(mini(tiny_base, tmp_path / "out", f"data.val_files={tmp_path}/train.parquet"))
    assert "44 of 64" in refusals(found.checks)["lengths of data.val_files"]
    found = preflight.examine(mini(tiny_base, tmp_path / "out", "data.train_max_samples=16"))
    assert "16 (0 more" in refusals(found.checks)["prompts"]


def test_the_prompts_stand_in_the_column_that_is_named(tiny_base: Path, tmp_path: Path) -> None:
    table = _longer(pq.read_table(tiny_base / "data" / "train.parquet"), 20)
    pq.write_table(table.rename_columns({"prompt": "question"}), tmp_path / "train.parquet")
    given = [f"data.train_files={tmp_path}/train.parquet", f"data.val_files={tmp_path}/train.parquet"]
    found = preflight.examine(mini(tiny_base, tmp_path / "out", *given, "data.prompt_key=question"))
    assert (found.prompts, found.longer) == (20, 44)
    assert (
        "question"
        in refusals(preflight.examine(mini(tiny_base, tmp_path, "data.prompt_key=question")).checks)["data.train_files"]
    )


def test_rows_are_taken_before_long_prompts_are_left_out(tiny_base: Path, tmp_path: Path) -> None:
    """As veRL's data set does it; of the validation too. The first 20 of 64 prompts fit."""
    from verl.utils.dataset.rl_dataset import RLHFDataset

    table = pq.read_table(tiny_base / "data" / "train.parquet")
    pq.write_table(_longer(table, 20), tmp_path / "train.parquet")
    given = [f"data.train_files={tmp_path}/train.parquet", "data.train_max_samples=24", "data.val_max_samples=3"]
    config = mini(tiny_base, tmp_path / "out", *given, "data.shuffle=false")
    found = preflight.examine(config)
    assert (found.prompts, found.longer, found.validation) == (20, 4, 3 * config.actor_rollout_ref.rollout.val_kwargs.n)
    given += [f"+data.cache_dir={tmp_path}", "data.filter_overlong_prompts_workers=1"]
    config = mini(tiny_base, tmp_path / "out", *given)
    data = RLHFDataset(config.data.train_files, inputs.find_tokenizer(config), config.data, max_samples=24)
    assert preflight.examine(config).prompts == len(data)


@pytest.mark.parametrize("gone", ["", "tokenizer_class"])
def test_a_model_of_own_code_is_refused_by_that_name(tiny_base: Path, tmp_path: Path, gone: str) -> None:
    shutil.copytree(tiny_base / "model", tmp_path / "model")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoTokenizer": ["own.T", None]}}
    for name in ("config.json", "tokenizer_config.json"):
        file = tmp_path / "model" / name
        file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != gone} | own))
    found = refusals(preflight.examine(mini(tiny_base, tmp_path / "out", f"{A}.model.path={tmp_path}/model")).checks)
    assert "trust_remote_code" in found["the model's configuration"]
    assert "actor_rollout_ref.model.tokenizer_path" in found["tokenizer"] if gone else "tokenizer" not in found


def test_a_template_that_makes_no_prompt_names_the_row(tiny_base: Path, tmp_path: Path) -> None:
    table = pq.read_table(tiny_base / "data" / "train.parquet")
    texts = [prompt[0]["content"] for prompt in table.column("prompt").to_pylist()]
    strings = table.set_column(table.schema.names.index("prompt"), "prompt", [texts])
    pq.write_table(strings, tmp_path / "train.parquet")
    found = preflight.examine(mini(tiny_base, tmp_path / "out", f"data.train_files={tmp_path}/train.parquet"))
    assert "row 0" in refusals(found.checks)["lengths of data.train_files"]
    model = tmp_path / "model"
    shutil.copytree(tiny_base / "model", model)
    (model / "chat_template.jinja").unlink()
    found = preflight.examine(mini(tiny_base, tmp_path / "out", f"{A}.model.path={model}"))
    assert "chat_template" in refusals(found.checks)["lengths of data.val_files"]
    template = f"{A}.model.custom_chat_template='{{{{ messages[0].content }}}}'"
    found = preflight.examine(mini(tiny_base, tmp_path / "out", f"{A}.model.path={model}", template))
    assert "lengths of data.val_files" not in refusals(found.checks)


@pytest.mark.parametrize("gold", ["1,000", "3.0", "5 p.m."])
def test_golds_that_a_box_can_equal_as_they_stand_are_not_refused(tiny_base: Path, tmp_path: Path, gold: str) -> None:
    row = pq.read_table(tiny_base / "data" / "train.parquet").slice(0, 1).drop_columns(["reward_model"])
    pq.write_table(row.append_column("reward_model", [[{"ground_truth": gold}]]), tmp_path / "train.parquet")
    config = mini(tiny_base, tmp_path / "out", f"data.train_files={tmp_path}/train.parquet")
    assert "golds of data.train_files" not in refusals(preflight.examine(config).checks)


def test_epochs_that_end_before_the_last_step_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    """64 prompts are two steps of 32: three steps take two epochs."""
    for epochs, refused in ((1, True), (2, False)):
        config = mini(tiny_base, tmp_path / "out", "run.steps=3", f"trainer.total_epochs={epochs}")
        assert ("prompts" in refusals(preflight.examine(config).checks)) is refused


@pytest.mark.parametrize("gold", ["$0$", r"\boxed{0}", ["0"], None, 0.0])
def test_golds_that_no_box_can_equal_are_refused(tiny_base: Path, tmp_path: Path, gold: object) -> None:
    row = pq.read_table(tiny_base / "data" / "train.parquet").slice(0, 1).drop_columns(["reward_model"])
    pq.write_table(row.append_column("reward_model", [[{"ground_truth": gold}]]), tmp_path / "train.parquet")
    config = mini(tiny_base, tmp_path / "out", f"data.train_files={tmp_path}/train.parquet")
    assert repr(gold) in refusals(preflight.examine(config).checks)["golds of data.train_files"]
    config.reward.custom_reward_function.path = "mine.py"  # which may read them in another way
    assert "golds of data.train_files" not in refusals(preflight.examine(config).checks)


@pytest.mark.parametrize(
    ("override", "check", "said"),
    [
        ("data.train_batch_size=4096", "prompts", "64"),
        (f"{A}.rollout.log_prob_micro_batch_size_per_gpu=24", "sizes", "64 / 24"),
        ("trainer.nnodes=2", "GPUs", "2 node(s)"),
        ("ray_kwargs.ray_init.num_cpus=4", "cores", "num_cpus=5"),
        ("data.val_files=[/a,/b]", "data.val_files", "/b"),
    ],
)
def test_what_the_miniature_cannot_do(tiny_base: Path, tmp_path: Path, override: str, check: str, said: str) -> None:
    found = preflight.examine(mini(tiny_base, tmp_path, override))
    assert said in refusals(found.checks)[check]


def test_the_miniature_fits_two_ranks(tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_memory", lambda **_: (16 * 2**30, 12 * 2**30))
    c = mini(tiny_base, tmp_path, "cpu.ranks=2", "method=grpo")
    a = c.actor_rollout_ref
    assert a.actor.ppo_micro_batch_size_per_gpu == a.rollout.log_prob_micro_batch_size_per_gpu == 32
    assert a.rollout.tensor_model_parallel_size == c.trainer.n_gpus_per_node == 2
    found = preflight.examine(c)
    assert (found.prompts, found.checks.problems) == (64, [])


# the machine


def test_variables_of_amds_cards_beside_cudas() -> None:
    machine.check_environment({"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": ""})
    with pytest.raises(BadInput) as e:
        machine.check_environment({"ROCR_VISIBLE_DEVICES": "0,1"})
    assert (e.value.found, str(e.value.next_step).split("   ")[0]) == (
        "ROCR_VISIBLE_DEVICES=0,1",
        "unset ROCR_VISIBLE_DEVICES",
    )


@pytest.mark.parametrize(
    ("chosen", "gpus", "gib"),
    [(None, 3, 40), ("2,0", 2, 80), ("", 0, None), ("1,7,0", 1, 40), ("GPU-5f3a,GPU-77b0", 2, 40)],
)
def test_the_cards_that_are_left_to_a_run(tmp_path: Path, monkeypatch, chosen, gpus: int, gib: int | None) -> None:
    broken = ["3, NVIDIA H100, [N/A], [N/A]", "No devices were found"]
    sizes = (81920, 40960, 81920)
    rows = [*(f"{i}, NVIDIA H100 80GB HBM3, {s}, {i * 2000}" for i, s in enumerate(sizes)), *broken]
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "bin", "\n".join(f"echo '{r}'" for r in rows)))
    node = machine.this_node({} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen})
    assert (node.gpus, node.card_gib, node.card) == (gpus, gib, "H100" if gpus else None)
    assert list(node.busy) == (["GPU 2: 3.9 GiB"] if chosen in (None, "2,0") else [])


def test_a_node_as_ray_describes_it() -> None:
    found = machine._described("a", {"GPU": 8.0, "CPU": 32.0, "accelerator_type:H20": 1.0, "node:10.0.0.1": 1.0})
    assert (found.gpus, found.cpus, found.card, found.card_gib) == (8, 32, "H20", throughput.CARDS["H20"].gib)
    assert machine._described("b", {"CPU": 2.0}) == Node("b", 0, 2)
    kinds = {"GPU": 8.0, "accelerator_type:A100": 1.0, "accelerator_type:A100-40G": 1.0}
    assert machine._described("c", kinds).card_gib == 39.5


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([Node("a", 0, 64)], "a: 0"),
        ([Node("a", 8, 64), Node("b", 7, 64)], "a: 8, b: 7"),
        ([Node("a", 8, 64, busy=["GPU 1: 41.2 GiB"]), Node("b", 8, 64)], "a GPU 1: 41.2 GiB"),
    ],
)
def test_missing_and_busy_cards_are_refused(nodes: list[Node], found: str) -> None:
    with pytest.raises(BadInput) as e:
        machine.check_gpus(compose([*GPUS, "trainer.nnodes=2"]), nodes)
    assert e.value.found == found


def test_a_card_is_shared_where_memory_is_not_checked() -> None:
    nodes = [Node("a", 1, 64, busy=["GPU 0: 38.0 GiB"])]
    assert machine.check_gpus(compose([*GPUS, "hardware=1gpu", "run.check_memory=false"]), nodes) == nodes


def test_fewer_cores_than_slots_are_a_warning_and_fewer_slots_are_refused() -> None:
    config = compose([*GPUS, "hardware=1gpu"])
    assert machine.check_cores(config, [Node("a", 1, 5)]) is None
    assert (machine.check_cores(config, [Node("a", 1, 4)]) or "").startswith("4 cores for 1 GPU(s), 1 fewer than 5")
    config.ray_kwargs.ray_init.num_cpus = 4  # as a batch system may ask for
    with pytest.raises(BadInput) as e:
        machine.check_cores(config, [Node("a", 1, 4)])
    assert (e.value.found, e.value.next_step) == ("a: 4", "ray_kwargs.ray_init.num_cpus=5")


def test_every_node_of_a_cluster_has_the_slots_of_its_ranks_and_storage_units() -> None:
    config, nodes = compose([*GPUS, "hardware=64gpu"]), [Node("a", 8, cpus=26)] * 8
    assert machine.check_cores(config, nodes) is None
    for wrong, said in (
        ([*nodes[:7], Node("b", 8, cpus=25)], "--num-cpus=26"),
        ([*nodes, Node("head", 0, cpus=0)], "1 on another"),  # a storage unit is meant for each node
    ):
        with pytest.raises(BadInput, match=said):
            machine.check_cores(config, wrong)


@pytest.mark.parametrize("auto", [False, True])
def test_an_address_where_no_cluster_answers(auto: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a dead cluster, which Ray's `auto` would ask for minutes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(services, "find_gcs_addresses", set)  # of other tests
    (tmp_path / "ray").mkdir()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        closed = s.getsockname()[1]
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{closed}")
    with pytest.raises(BadInput, match=f"127.0.0.1:{closed}"):
        machine.cluster_nodes("auto" if auto else f"127.0.0.1:{closed}")


def test_under_two_checkpoints_of_free_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8B: 12 B (fp32 weights and two moments) x 8,190,735,360 = 91.539 GiB, and 1 + 2 GiB of logs."""
    config = compose([*GPUS, f"run.out={tmp_path}/a/b"])
    each = machine.checkpoint_gib(config, 8_190_735_360)
    assert round(each, 3) == 91.539
    whole = compose([*GPUS, f"{A}.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"])
    assert round(machine.checkpoint_gib(whole, 8_190_735_360), 3) == 122.051  # 16 B
    monkeypatch.setattr(machine.psutil, "disk_usage", lambda path: type("D", (), {"free": 186.0 * 2**30}))
    with pytest.raises(BadInput) as e:
        machine.check_disk(config, each)
    # 1 of Ray, whose folder is on this disk
    assert (e.value.found, "187.08 GiB" in str(e.value.expected)) == ("186.00 GiB", True)
    elsewhere = compose([*GPUS, f"run.out={tmp_path}/a/b", "+ray_kwargs.ray_init._temp_dir=/dev/shm/ray"])
    with pytest.raises(BadInput) as e:
        machine.check_disk(elsewhere, each)
    assert "186.08 GiB" in str(e.value.expected)
    monkeypatch.setattr(machine.constants, "HF_HUB_CACHE", "/dev/shm/hub")  # another disk
    shares = {"/dev/shm": 15.0}
    monkeypatch.setattr(
        machine.psutil, "disk_usage", lambda path: type("D", (), {"free": shares.get(path, 553.0) * 2**30})
    )
    with pytest.raises(BadInput, match=r"15\.26 GiB of weights") as e:
        machine.check_disk(config, each, 15.26)
    assert e.value.found == "15.00 GiB"
    line = machine.check_disk(
        config, each
    )  # every 100 of 3,000 steps, three, the best and a timed one kept, for a moment six
    config_without = compose([*GPUS, "trainer.save_freq=-1"])
    assert "nothing is left of the training" in machine.check_disk(config_without, 9.0)
    assert ("30 checkpoints and one every 60 minutes" in line, "552.2 GiB" in line, "NOT" in line) == (
        True,
        True,
        False,
    )
    config.trainer.max_actor_ckpt_to_keep = None
    assert "2840.7 GiB" in (line := machine.check_disk(config, each))
    assert "NOT ENOUGH" in line


# memory and time


def test_parameters_and_saved_bytes_are_what_transformers_builds_and_keeps() -> None:
    """What a norm or the attention keeps beside, one number a token, and the angles are left out of the formula."""
    import torch
    from transformers import Qwen2Config, Qwen3Config
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

    sizes: Any = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
                  "intermediate_size": 768, "vocab_size": 64, "attn_implementation": "sdpa"}  # fmt: skip
    qwen3 = Qwen3Config(**sizes, head_dim=32, tie_word_embeddings=False)
    for config in (qwen3, Qwen2Config(**sizes, tie_word_embeddings=True)):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert shapes.shape_from(config.to_dict(), "").parameters == sum(p.numel() for p in model.parameters())
    shape, tokens = shapes.shape_from(qwen3.to_dict(), ""), 64
    for width, dtype in ((2, torch.bfloat16), (4, torch.float32)):
        layer, kept = Qwen3DecoderLayer(qwen3, 0).to(dtype), {}
        x = torch.randn(1, tokens, 256, dtype=dtype, requires_grad=True)
        angles = Qwen3RotaryEmbedding(qwen3)(x, torch.arange(tokens)[None])
        weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}

        def keep(t: torch.Tensor, weights=weights, kept=kept) -> torch.Tensor:
            if t.untyped_storage().data_ptr() not in weights:
                kept[t.untyped_storage().data_ptr()] = t
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            layer(x, position_embeddings=angles, attention_mask=None)
        measured = sum(t.untyped_storage().nbytes() for t in kept.values()) / tokens
        assert measured == shape.saved_bytes_per_token(width) + 4 * (2 + 8 + 4 + 8) + 2 * 32 * width


def test_memory_and_checkpoints_of_8b_on_a_card_that_is_not_here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = preflight.examine(compose([*GPUS, "run.card=H20", f"run.out={tmp_path}/out"]))
    assert (found.card, found.memory and found.memory.limit) == ("H20", 95.6)
    assert "GPUs" in refusals(found.checks)
    assert not (tmp_path / "out").exists()
    unknown = preflight.examine(compose([*GPUS, "run.card=H21"]))
    assert "H21" in refusals(unknown.checks)["run.card"]


def test_without_the_check_of_memory_the_disk_is_still_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(machine, "check_disk", lambda config, *gib: asked.append(gib))
    given = [*GPUS, "run.check_memory=false", "run.card=H100"]
    assert preflight.examine(compose(given)).memory is None
    assert [round(gib, 1) for gib in asked.pop()] == [91.5, 15.3]  # 12 bytes a parameter, and 2 to fetch
    found = preflight.examine(compose([*given, f"{A}.model.path=some/model"]))  # a model of unknown size may start
    assert (asked, "shape" in refusals(found.checks)) == ([], False)


def test_passes_of_a_planned_step() -> None:
    """10 x P a token, and 2 for the selector's pass over three of the four mini-batches."""
    steps = [estimate.step(compose([*GPUS, f"method={m}"]), MIDDLE, 960) for m in ("justrl", "stapo")]
    assert [(s.passes, s.logits) for s in steps] == [(10, "compiled"), (11.5, "compiled")]
    assert estimate.step(compose([*GPUS, f"{A}.logits_form=eager"]), MIDDLE, 960).logits == "eager"


def test_an_update_of_1_7b_on_8_cards_by_hand() -> None:
    """16 bytes of an eighth of 1,720,574,976 parameters, 3.205 GiB; activations of 28 layers 3.5, logits 9.273; root
    and two layers in bf16 0.768; 3 and 1.5 of contexts and the sleeping rollout. veRL's entropy is not asked for."""
    shape = shapes.shape_from(shapes.KNOWN["Qwen/Qwen3-1.7B-Base"], "")
    update, *_ = estimate._of_gpus(compose([*GPUS, "size=qwen3-1.7b"]), shape, 79.6, 512.0)
    assert (update.moment, round(update.gib, 1)) == ("update", 21.2)


def test_memory_of_the_update_that_an_h100_has_run() -> None:
    """1.7B on one card, nothing offloaded, 32,768 tokens: 37.9 GiB allocated, without contexts and a rollout."""
    offload = [f"{A}.actor.fsdp_config.{part}_offload=false" for part in ("param", "optimizer")]
    shape = shapes.shape_from(shapes.KNOWN["Qwen/Qwen3-1.7B-Base"], "")
    update, *_ = estimate._of_gpus(compose([*GPUS, "size=qwen3-1.7b", "hardware=1gpu", *offload]), shape, 79.6, 128.0)
    planned = update.gib - estimate.CONTEXT_GIB - estimate.ASLEEP_GIB
    assert 37.9 <= planned == pytest.approx(37.9, rel=0.05)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (["run.steps=3000", "trainer.test_freq=5"], 601),
        (["run.steps=10", "trainer.test_freq=100"], 2),  # before it, and after its last step
        (["run.steps=10", "trainer.test_freq=4", "trainer.val_before_train=false"], 3),  # 4, 8, 10
        (["run.steps=10", "trainer.test_freq=-1"], 0),
        (["run.steps=10", "trainer.test_freq=0"], 0),
    ],
)
def test_the_validations_of_a_run_are_planned(given: list[str], count: int) -> None:
    config = compose([*GPUS, *given])
    found = preflight.Preflight(preflight.Checks(), validation=960)
    assert estimate.validations(config) == count
    assert launch._validations(config, found).startswith(f"{count} validations of 960 samples" if count else "no ")
    every = estimate.step(config, MIDDLE, 960).every
    assert every == (int(given[0].split("=")[1]) / count if count else 0)


HALF_BILLION = {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
                "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151_936,
                "tie_word_embeddings": True}  # fmt: skip


def test_ray_lets_a_twentieth_of_the_memory_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_memory", lambda **_: (20 * 2**30, 15 * 2**30))
    assert machine.free_memory({}) == pytest.approx(14.0)
    assert machine.free_memory({"RAY_memory_usage_threshold": "0.9"}) == pytest.approx(13.0)
    assert machine.free_memory({"RAY_memory_monitor_refresh_ms": "0"}) == 15.0
    # in a job Ray counts the machine's 500, of which 30 are left; of the job's 100 so many are
    for left, free in ((100, 5.0), (3, 3.0)):
        job = {True: (500 << 30, 30 << 30), False: (100 << 30, left << 30)}
        monkeypatch.setattr(machine, "usable_memory", lambda job=job, **given: job["own" in given])
        assert machine.free_memory({}) == pytest.approx(free)


@pytest.mark.parametrize(("method", "longest", "gib"), [("stapo", 96, 17.3), ("grpo", 512, 20.0)])
def test_memory_without_a_gpu_is_a_little_more_than_a_training_took(
    method: str, longest: int, gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2.5-Coder-0.5B in float32, two steps of 8 responses: so many GiB more than before were in use at most (two
    cores of a Xeon, 2026-11-28 and 29). STAPO's run made a checkpoint."""
    monkeypatch.setattr(resolvers, "fast_bf16", lambda: False)
    given = [f"method={method}", "size=qwen2.5-coder-0.5b", "hardware=cpu", "run.data=data", "run.out=out"]
    given += ["data.train_batch_size=2", f"{A}.rollout.n=4", f"data.max_response_length={longest}"]
    plan = estimate.memory(compose(given), shapes.shape_from(HALF_BILLION, ""), None, 22.5)
    assert gib <= plan.gib <= 1.15 * gib


def test_a_training_that_memory_ended_is_refused() -> None:
    """Qwen2.5-0.5B in float32, untied, 16 responses of 256 tokens in micro-batches of two, on 23.5 GiB."""
    shape = shapes.shape_from(HALF_BILLION | {"tie_word_embeddings": False}, "")
    given = [f"{A}.actor.ppo_micro_batch_size_per_gpu=2", "data.max_prompt_length=200", "data.max_response_length=256"]
    given += [f"{A}.rollout.max_num_seqs=16", f"{A}.actor.fsdp_config.reshard_after_forward=true"]  # it was run so
    config = mini(Path("B"), Path("O"), *given, f"{A}.model.enable_gradient_checkpointing=true")
    with pytest.raises(BadInput) as e:
        estimate.memory(config, shape, None, 22.5)
    for key in ("ppo_micro_batch_size_per_gpu=1", "run.cpu_dtype=bfloat16", "data.max_response_length"):
        assert key in str(e.value.next_step)


@pytest.mark.parametrize(("method", "gib"), [("stapo", (17.23, 14.89)), ("grpo", (18.15, 15.81))])
def test_memory_of_the_half_billion_size_by_hand(method: str, gib: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 494,032,768 parameters 16 bytes of state, 4 of two copies in bf16: 9.202 GiB, and 4 of processes.
    1,024 tokens of (2 x 896 x 24 + 63,104 of a layer + 12 x 151,936) bytes are 1.840; 12 of the root's 136,135,552 are
    1.521, and 2 of the layers' 357,896,448 are 0.667. 64 rows of 1,024 x 12,288 bytes and of 151,936 logits take 0.768
    beside 0.920 of packed weights. GRPO's reference has 0.920 in bf16."""
    monkeypatch.setattr(resolvers, "fast_bf16", lambda: True)
    config = compose([f"method={method}", "size=qwen2.5-coder-0.5b", "hardware=cpu", "run.data=data", "run.out=out"])
    update, sampling = estimate._of_cpu(config, shapes.shape_from(HALF_BILLION, ""), 24.0, 64)
    assert (round(update.gib, 2), round(sampling.gib, 2)) == gib
    config.actor_rollout_ref.rollout.max_num_seqs = 57  # a step has a multiple of 8 rows
    assert estimate._of_cpu(config, shapes.shape_from(HALF_BILLION, ""), 24.0, 64)[1].gib == sampling.gib
    config.actor_rollout_ref.rollout.max_num_seqs = 8  # the least
    least = estimate._of_cpu(config, shapes.shape_from(HALF_BILLION, ""), 24.0, 64)[1]
    assert ("max_num_seqs" in sampling.lower, "max_num_seqs" in least.lower) == (True, False)


@pytest.mark.parametrize(
    ("method", "seconds"),
    [("stapo", 122.88 + 184.32 + 491.52), ("justrl", 122.88 + 122.88 + 491.52), ("grpo", 122.88 + 245.76 + 491.52)],
)
def test_seconds_of_a_step_without_a_gpu_by_hand(method: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 responses of 384 tokens at 100 a second, sampled, scored, trained with checkpoints; half of STAPO's step has a
    pass of its own, GRPO's a reference."""
    monkeypatch.setattr(estimate, "forward_tokens", lambda shape, dtype: 100.0)
    config = compose([f"method={method}", "size=qwen2.5-coder-0.5b", "hardware=cpu", "run.data=data", "run.out=out"])
    assert estimate.cpu_seconds(config, shapes.shape_from(HALF_BILLION, "")) == pytest.approx(seconds)


def test_a_refusal_for_memory_has_both_numbers_and_the_settings_that_lower_it() -> None:
    config = compose([*GPUS, "trainer.n_gpus_per_node=1"])
    # fp32 weights, gradients and moments, 16 bytes each of 8,190,735,360 parameters, are 122 GiB alone
    with pytest.raises(BadInput, match="offload_policy=true") as e:
        estimate.memory(config, MIDDLE, 79.6, 512.0)
    assert "79.6 GiB" in str(e.value.expected)
    config.actor_rollout_ref.actor.fsdp_config.offload_policy = True
    fits = estimate.memory(config, MIDDLE, 79.6, 512.0)
    assert 0 < fits.gib < fits.limit
    with pytest.raises(BadInput, match="host memory"):
        estimate.memory(config, MIDDLE, 79.6, 64.0)


def test_a_dry_run_that_cannot_start_prints_all_it_knows_before_it_refuses(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(launch, "ask_verl", lambda config: None)  # seconds
    with pytest.raises(BadInput) as e:
        launch.run([*GPUS, "method=grpo", "run.card=H20", f"run.out={tmp_path / 'out'}"], dry_run=True)
    assert "data.train_files" in str(e.value)
    assert "8 GPU(s)" in str(e.value)
    printed = capfd.readouterr().out
    for part in ("grpo on qwen3-8b", "GiB on H20", " a step, ", "formula"):
        assert part in printed


@pytest.mark.slow
def test_a_dry_run_passes_prints_and_writes_nothing(tiny_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["size=mini", "hardware=cpu", f"run.base={tiny_base}", f"run.out={out}", "run.seed=3"]
    done = subprocess.run(
        [sys.executable, "-m", "stapo_training.cli", "run", *words, "--dry-run"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for printed in ("seed 3, 30 steps", "3 checkpoints", "4 update(s), 64 prompts", launch.resume_command(words)):
        assert printed in done.stdout
    assert not out.exists()
