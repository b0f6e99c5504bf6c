"""Fetching a real Qwen: held against its hash, its embeddings tied to the finer copy, after interruptions.

A Qwen2 of two layers stands in for what transformers reads in the real file; the last test, slow, takes that file.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Run
from stapo_results.sizes import REAL
from stapo_training.artifacts import fetch
from stapo_training.miniature.tokenizer import build_tokenizer

NAME = "qwen2.5-coder-0.5b"
ENDS = ("<|im_end|>", "<|endoftext|>")
CONTENT = bytes(range(250)) * 4
ONE = {"1": build_tokenizer()("1")["input_ids"]}


@pytest.fixture(autouse=True)
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file has 1,000 bytes, which are read as a tiny model; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(CONTENT)
    known = REAL[NAME]._replace(size=1000, sha256=store.sha256_file(file))
    monkeypatch.setitem(REAL, NAME, known)
    monkeypatch.setattr(fetch, "ENCODINGS", ONE)
    monkeypatch.setattr(fetch, "_load", tiny)
    monkeypatch.setattr(fetch, "_types", lambda _: {"token_embd.weight": "Q5_0", "output.weight": "Q8_0", "x": "Q5_0"})
    monkeypatch.setattr(fetch, "find_spec", lambda name: name)  # the tests' environment has no gguf
    return file


def tiny(gguf: Path, dtype: str) -> tuple[Any, Any]:
    """A tiny Qwen2 with the miniature's tokenizer; its embeddings are untied, as transformers reads the file."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    assert gguf.read_bytes() == CONTENT
    tokenizer = build_tokenizer()
    tokenizer.init_kwargs["local_files_only"] = False  # transformers 5.9 says how it read: here with a network
    config = Qwen2Config(
        vocab_size=len(tokenizer), num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, tie_word_embeddings=False, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    config._model_name_or_path = "Another AWQ"
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)), tokenizer


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_file_becomes_a_model_tied_to_its_output(dtype: Any, gguf: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out, ids = tmp_path / "out", torch.tensor([[1, 2, 3]])
    found = fetch.fetch(NAME, out, file=gguf, dtype=dtype)
    # 2 layers of q, o 16x16, k, v 16x8, biases, three of 16x32, two norms; one embedding; the last norm
    parameters = 2 * (2 * 256 + 2 * 128 + 32 + 3 * 512 + 2 * 16) + len(build_tokenizer()) * 16 + 16
    assert (found.parameters, found.dtype) == (parameters, dtype)
    assert found.weights == {"Q5_0": 2, "Q8_0": 1}
    assert found.embeddings == {"token_embd.weight": "Q5_0", "output.weight": "Q8_0"}
    assert found.source_sha256 == store.sha256_file(gguf)
    assert found == store.read_json(out / "fetched.json", fetch.Fetched)
    assert found.files == {f.name: store.sha256_file(f) for f in (out / "model").iterdir()}
    assert {p.name for p in out.iterdir()} == {"model", "fetched.json", "run.json", ".lock"}
    run = store.read_json(out / "run.json", Run)
    assert (run.kind, run.status) == ("fetch", "done")
    config = json.loads((out / "model" / "config.json").read_text())
    assert (config["architectures"], config["tie_word_embeddings"]) == (["Qwen2ForCausalLM"], True)
    assert "AWQ" not in json.dumps(config)
    ends = json.loads((out / "model" / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [151645, 151643]
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.model_max_length) == (*ENDS, 256)
    assert json.loads((out / "model" / "tokenizer_config.json").read_text())["local_files_only"]
    loaded, (read, _) = AutoModelForCausalLM.from_pretrained(out / "model"), tiny(gguf, dtype)
    assert torch.equal(loaded.lm_head.weight, read.lm_head.weight)
    read.model.embed_tokens.weight = read.lm_head.weight
    assert torch.equal(loaded(ids).logits, read(ids).logits)


def test_a_second_call_changes_nothing_and_sees_a_changed_file(gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = fetch.fetch(NAME, out, file=gguf)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.name != ".lock"}
    assert fetch.fetch(NAME, out, file=gguf) == first
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.name != ".lock"}

    def refused() -> tuple[object, object]:
        with pytest.raises(BadInput) as e:
            fetch.fetch(NAME, out, file=gguf)
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


def test_without_a_home_the_folder_has_to_be_named(monkeypatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(BadInput) as e:
        fetch.fetch(NAME)
    assert "XDG_CACHE_HOME=DIR" in e.value.next_step


def test_an_interrupted_conversion_is_made_anew(gguf, tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"

    def interrupted(*_):
        (out / ".model").mkdir()
        (out / ".model" / "config.json").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(fetch, "_load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch.fetch(NAME, out, file=gguf)
    assert not (out / "model").exists()
    assert store.read_json(out / "run.json", Run).status == "interrupted"
    assert fetch.fetch(NAME, out, file=gguf) == fetch.check(out)


@pytest.mark.parametrize("content", [None, CONTENT[:-1], b"x" + CONTENT[1:]])
def test_another_file_than_qwens_is_refused_before_it_is_read(content, gguf, tmp_path, monkeypatch) -> None:
    gguf.unlink()
    if content is not None:
        gguf.write_bytes(content)
    monkeypatch.setattr(fetch, "_load", None)
    monkeypatch.setattr(fetch, "_types", None)
    with pytest.raises(BadInput) as e:
        fetch.fetch(NAME, tmp_path / "out", file=gguf)
    assert REAL[NAME].sha256 in str(e.value.expected)
    assert not (tmp_path / "out" / "model").exists()


def test_a_file_that_the_hub_does_not_give_is_named(tmp_path, monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(BadInput) as e:
        fetch.fetch(NAME, tmp_path / "out")
    assert "--file FILE" in e.value.next_step
    assert REAL[NAME].revision in str(e.value.expected)


def test_another_tokenizer_than_qwens_is_refused(gguf, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "ENCODINGS", {"1": [-1]})
    with pytest.raises(RunFailed):
        fetch.fetch(NAME, tmp_path / "out", file=gguf)
    assert not (tmp_path / "out" / "model").exists()


def test_without_gguf_nothing_is_begun(gguf, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    with pytest.raises(BadInput) as e:
        fetch.fetch(NAME, tmp_path / "out", file=gguf)
    assert "gguf==0.19.0" in e.value.next_step
    assert not (tmp_path / "out" / "run.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("gguf") is None or "STAPO_QWEN_FILE" not in os.environ,
    reason="needs requirements/fetch.txt, and in STAPO_QWEN_FILE the file of the 0.5 B",
)
def test_the_real_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GB of memory, 1 GB of disk, a minute."""
    from transformers import AutoTokenizer

    monkeypatch.undo()
    found = fetch.fetch(NAME, tmp_path / "out", file=Path(os.environ["STAPO_QWEN_FILE"]))
    assert found.parameters == 494_032_768
    assert found.embeddings == {"token_embd.weight": "Q5_0", "output.weight": "Q8_0"}
    assert found.weights == {"F32": 121, "Q4_K": 12, "Q5_0": 133, "Q6_K": 12, "Q8_0": 13}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.model_max_length) == (151645, 151643, 32768)
    assert tokenizer("12+3=\n\n hello")["input_ids"] == [16, 17, 10, 18, 68327, 23811]
    assert tokenizer("<|endoftext|><|im_start|><|im_end|>")["input_ids"] == [151643, 151644, 151645]
    said = [{"role": "user", "content": "hi"}]
    turn = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    assert turn.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
