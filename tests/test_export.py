"""Export of a checkpoint that three ranks wrote: every tensor in its place, both types, the card, what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from whole_records import whole_record

from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Labels, StepMetrics
from stapo_training import pages as config_docs
from stapo_training.artifacts import export as module
from stapo_training.artifacts import weights
from stapo_training.artifacts.export import export, find_checkpoint, find_shards, model_card, write_weights
from stapo_training.folder.training_folder import TrainingFolder

RANKS = 3  # divides neither the hidden size nor the vocabulary evenly, so the last shard of a tensor is shorter


def shards(model: Path, out: Path) -> None:
    """The model as FSDP2 shards it over RANKS ranks, saved as veRL names its files: every rank of a made-up group."""
    for rank in range(RANKS):
        dist.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
        mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
        whole = load_file(model / "model.safetensors")
        state = {n: DTensor.from_local(_local(t, rank), mesh, [Shard(0)], shape=t.shape, stride=t.stride(),
                                       run_check=False) for n, t in whole.items()}  # fmt: skip
        torch.save(state, out / f"model_world_size_{RANKS}_rank_{rank}.pt")
        dist.destroy_process_group()


def _local(t: torch.Tensor, rank: int) -> torch.Tensor:
    parts = t.chunk(RANKS)
    return parts[rank].clone() if rank < len(parts) else t[:0].clone()


@pytest.fixture(scope="module")
def run_folder(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the checkpoint of step 2, of three ranks, veRL's `hf_model` in it; a record of a real run."""
    out = tmp_path_factory.mktemp("run")
    actor = out / "checkpoints" / "global_step_2" / "actor"
    actor.mkdir(parents=True)
    shutil.copytree(tiny_base / "model", actor / "huggingface", ignore=shutil.ignore_patterns("stapo*"))
    config = actor / "huggingface" / "config.json"
    named = {"attn_implementation": "known_nowhere", "_attn_implementation": "known_nowhere"}
    config.write_text(json.dumps(json.loads(config.read_text()) | named))
    shards(tiny_base / "model", actor)
    (out / "run.json").write_text(whole_record().model_dump_json())
    folder = TrainingFolder(out)
    folder.complete_checkpoint(2)
    store.append(
        folder.metrics_file, [StepMetrics(step=1, values={"reward": 0.1}), StepMetrics(step=2, values={"reward": 0.2})]
    )
    with open(folder.metrics_file, "ab") as f:
        f.write(b'{"step": 3, "val')  # killed while it logged the next step
    return out


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_shards_of_three_ranks_are_the_model(
    run_folder: Path, tiny_base: Path, tmp_path: Path, name, dtype
) -> None:
    export(run_folder, tmp_path / "model", name)
    expected = load_file(tiny_base / "model" / "model.safetensors")
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert {k for k in found if found[k].dtype != dtype or not torch.equal(found[k], expected[k].to(dtype))} == set()
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    assert "known_nowhere" not in config.values()  # the attention of its training
    labels = store.read_json(tmp_path / "model" / "stapo.json", Labels)
    assert (labels.method, labels.size, labels.train_seed, labels.step) == ("stapo", "mini", 0, 2)
    assert labels.weights_sha256 == store.sha256_file(tmp_path / "model" / "model.safetensors")


def test_tensors_of_another_model_are_refused(run_folder: Path, tmp_path: Path) -> None:
    """As a LoRA's, which transformers would fill with random numbers; or of another shape."""
    for name, renamed, shape in (
        ("model.norm.weight", "base_model.model.model.norm.weight", None),
        ("model.norm.weight", "model.norm.weight", 7),
    ):
        run = tmp_path / f"run-{shape}"
        shutil.copytree(run_folder, run)
        step = run / "checkpoints" / "global_step_2"
        for file in find_shards(step / "actor"):
            state = torch.load(file, weights_only=True)
            tensor = state.pop(name)
            torch.save(state | {renamed: torch.zeros(shape) if shape else tensor}, file)
        (step / "COMPLETE.json").unlink()
        TrainingFolder(run).complete_checkpoint(2)
        with pytest.raises(BadInput, match=renamed):
            export(run, tmp_path / "model")
        assert list(tmp_path.glob("*model*")) == []


def test_shards_of_two_runs_are_refused(tmp_path: Path) -> None:
    for world, rank in ((2, 0), (2, 1), (1, 0)):
        (tmp_path / f"model_world_size_{world}_rank_{rank}.pt").touch()
    with pytest.raises(BadInput, match="not those of one run"):
        find_shards(tmp_path)


def on_two_by_two(model: Path, folder: Path, parts: int, *placements: Placement) -> dict[str, torch.Tensor]:
    """Save the shards of four ranks, a mesh of ddp x fsdp; returns the whole tensors. parts: that a tensor has."""
    whole = load_file(model / "model.safetensors")
    for rank in range(4):
        dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
        state = {n: DTensor.from_local(t.chunk(parts)[rank % parts].clone(), mesh, placements, shape=t.shape,
                                       stride=t.stride(), run_check=False) for n, t in whole.items()}  # fmt: skip
        torch.save(state, folder / f"model_world_size_4_rank_{rank}.pt")
        dist.destroy_process_group()
    return whole


def test_shards_of_two_replicas_are_the_model_once(tiny_base: Path, tmp_path: Path) -> None:
    """`fsdp_config.fsdp_size=2` over four ranks: every part is there twice."""
    whole = on_two_by_two(tiny_base / "model", tmp_path, 2, Replicate(), Shard(0))
    (out := tmp_path / "out").mkdir()
    write_weights(find_shards(tmp_path), out, torch.float32)
    found = load_file(out / "model.safetensors")
    assert {n for n, t in whole.items() if not torch.equal(found[n], t)} == set()


def test_two_sharded_dimensions_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    on_two_by_two(tiny_base / "model", tmp_path, 4, Shard(0), Shard(0))
    (out := tmp_path / "out").mkdir()
    with pytest.raises(BadInput, match="not the whole tensor") as e:
        write_weights(find_shards(tmp_path), out, torch.float32)
    assert "fsdp_size=-1" in str(e.value.next_step)


def test_the_card_beside_the_weights_is_of_this_step_and_loads(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.chdir(run_folder / "checkpoints")
    export(Path("global_step_2"), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "# stapo-mini-s0, step 2\n" in card
    assert "| metrics of step 2 | reward 0.2 |\n" in card
    # as the record says it
    row = next(line for line in card.splitlines() if line.startswith("| selector | "))
    values = row.removeprefix("| selector | ").removesuffix(" |").split(", ")
    assert {"name silence_spurious", "form speculative", "tau_p 0.002"} <= set(values)
    assert "runs/" not in card  # no folder of the machine that trained
    assert "base_model:" not in card
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 100_000
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("1+2")["input_ids"]


def test_a_large_model_is_several_files_that_load_and_hash_as_one(
    run_folder: Path, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    from stapo_eval.models import find_model

    monkeypatch.setattr(module, "_FILE_BYTES", 300_000)  # of 1.5 MB
    export(run_folder, tmp_path / "model")
    files = sorted(p.name for p in (tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    expected = load_file(tiny_base / "model" / "model.safetensors")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(loaded[k], expected[k]) for k in expected)
    labels = store.read_json(tmp_path / "model" / "stapo.json", Labels)
    assert find_model(str(tmp_path / "model")).weights_sha256 == labels.weights_sha256


PEAK = """
import resource, sys
from pathlib import Path
import torch
from stapo_training.artifacts.export import find_shards, write_weights

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = Path(sys.argv[2])
out.mkdir()
write_weights(find_shards(Path(sys.argv[1])), out, torch.float32)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.slow
def test_memory_of_a_large_export_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """6.4 GB of two ranks, the largest tensor 1.6 GB: the peak is less than two files."""
    (actor := tmp_path / "actor").mkdir()
    rows = {"embed": 100_000, **{f"layer.{i}": 12_500 for i in range(24)}}  # x 4,096 fp32: 1.6 GB, 0.2 GB each
    for rank in range(2):
        dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        state = {n: DTensor.from_local(torch.full((r // 2, 4096), float(rank + i)), mesh, [Shard(0)], run_check=False)
                 for i, (n, r) in enumerate(rows.items())}  # fmt: skip
        torch.save(state, actor / f"model_world_size_2_rank_{rank}.pt")
        dist.destroy_process_group()
        del state
    command = [sys.executable, "-c", PEAK, str(actor), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = float(done.stdout)
    print(f"peak {peak:.2f} GiB above the start")
    assert peak < 2 * 2e9 / 2**30
    found = {k: v for f in (tmp_path / "out").glob("*.safetensors") for k, v in load_file(f).items()}
    assert {n: t.shape[0] for n, t in found.items()} == rows
    assert all(t[0, 0] == i and t[-1, 0] == i + 1 for i, t in ((list(rows).index(n), t) for n, t in found.items()))


def test_a_disk_that_fills_leaves_no_part_of_a_model(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(module, "write_weights", full)
    with pytest.raises(RunFailed, match="os error 28"):
        export(run_folder, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_card_names_the_hubs_model_whose_files_the_run_was_given() -> None:
    run = whole_record()
    run.config["actor_rollout_ref"]["model"]["path"] = f"/hub/models--Qwen--Qwen3-8B-Base/snapshots/{COMMIT}"
    card = model_card(run, Labels(method="stapo", size="qwen3-8b", train_seed=0, step=2), "fp32", None)
    assert "\nbase_model: Qwen/Qwen3-8B-Base\n" in card
    assert f"| base model | Qwen/Qwen3-8B-Base at {COMMIT} |" in card


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"half")])
def test_a_missing_or_damaged_shard_is_refused(run_folder: Path, tmp_path: Path, damage) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    checkpoint = copy / "checkpoints" / "global_step_2"
    damage(checkpoint / "actor" / "model_world_size_3_rank_1.pt")
    for named in (checkpoint, copy, copy / "checkpoints", checkpoint / "actor"):
        with pytest.raises(BadInput) as e:
            export(named, tmp_path / "model")
        assert "model_world_size_3_rank_1.pt" in str(e.value.found)


def test_a_copy_under_another_steps_name_is_refused_and_no_optimizer_needed(run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    checkpoints = copy / "checkpoints"
    for name in ("global_step_9", "global_step_2.bak"):
        shutil.copytree(checkpoints / "global_step_2", checkpoints / name)
        with pytest.raises(BadInput, match="not the checkpoint of its name"):
            find_checkpoint(checkpoints / name)
    shutil.rmtree(checkpoints / "global_step_9")
    for file in (checkpoints / "global_step_2" / "actor").glob("optim_*"):
        file.unlink()
    assert find_checkpoint(copy)[1].name == "global_step_2"
    checkpoints.rename(tmp_path / "disk")
    checkpoints.symlink_to(tmp_path / "disk")
    for named in (copy, checkpoints, checkpoints / "global_step_2", checkpoints / "global_step_2" / "actor"):
        assert find_checkpoint(named) == (copy, checkpoints / "global_step_2")
    (checkpoints / "global_step_2" / "COMPLETE.json").write_text("{}")
    with pytest.raises(BadInput, match=r"COMPLETE\.json is damaged"):
        find_checkpoint(copy)


def test_an_export_again_is_left_and_anything_else_is_refused_before_a_shard_is_read(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(run_folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    before = file.stat().st_mtime_ns
    monkeypatch.setattr(module, "find_shards", None)
    export(run_folder, tmp_path / "model")
    assert file.stat().st_mtime_ns == before
    with pytest.raises(BadInput):
        export(run_folder, tmp_path / "model", "bf16")
    file.write_bytes(file.read_bytes()[:-4])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    for folder in ("model", "other"):
        with pytest.raises(BadInput):
            export(run_folder, tmp_path / folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "other"]


# weights by hub id

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def config(model: str, revision: str | None = COMMIT):
    return OmegaConf.create({"actor_rollout_ref": {"model": {"path": model}}, "run": {"model_revision": revision}})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one commit of one model, offline."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "models--some--model"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    )
    (snapshot / "one.safetensors").write_text("")
    (snapshot / "two.safetensors").write_text("")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("f" * 40)  # the hub has moved on
    return tmp_path


@pytest.mark.parametrize("download", [True, False])
def test_the_commit_is_read_from_the_cache_and_not_the_newest(cache: Path, download: bool) -> None:
    c = config("some/model")
    weights.pin(c, download=download)
    assert c.actor_rollout_ref.model.path == str(cache / "models--some--model" / "snapshots" / COMMIT)


def test_what_is_not_there_is_named_with_the_command_that_fetches_it(cache: Path) -> None:
    with pytest.raises(BadInput, match=f"hf download other/model --revision {COMMIT}"):
        weights.pin(config("other/model"), download=True)


def test_a_download_that_was_interrupted_is_not_a_model(cache: Path) -> None:
    (cache / "models--some--model" / "snapshots" / COMMIT / "two.safetensors").unlink()
    with pytest.raises(BadInput, match=r"lacks two\.safetensors"):
        weights.pin(config("some/model"), download=True)


def test_a_dry_run_fetches_nothing_and_folders_and_unpinned_models_stay(cache: Path) -> None:
    for model, revision, download in (
        ("other/model", COMMIT, False),
        ("/a/folder", COMMIT, True),
        ("some/model", None, True),
    ):
        c = config(model, revision)
        weights.pin(c, download=download)
        assert c.actor_rollout_ref.model.path == model


def test_the_papers_models_are_pinned() -> None:
    for size in ("qwen3-1.7b", "qwen3-8b", "qwen3-14b"):
        c = config_docs.compose(config_docs.place(size, "8gpu"))
        assert weights.is_hub_id(c.actor_rollout_ref.model.path)
        assert len(c.run.model_revision) == 40
