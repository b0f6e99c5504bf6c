"""`stapo-train fetch`: a Qwen of the hub as a Hugging Face folder, from the GGUF file that Qwen publishes.

What `fetch` leaves in its folder:

    model/         config, safetensors, tokenizer with chat template, generation config
    fetched.json   where it comes from, what the conversion lost and mended, the hash of every file
    run.json       the run record

The model gets no stapo.json: it is nobody's base, and the evaluation calls it external.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput, RunFailed, message_of
from stapo_results.schema import Record
from stapo_results.sizes import REAL, WeightsFile
from stapo_results.terminal import duration
from stapo_training.artifacts.weights import made_whole

RECORD = "fetched.json"
LICENSE = "Apache-2.0"
DType = Literal["bfloat16", "float32"]


END_OF_TURN, END_OF_TEXT = ("<|im_end|>", 151645), ("<|endoftext|>", 151643)
ENCODINGS = {
    "12+3=\n\n hello": [16, 17, 10, 18, 68327, 23811],
    "hello world": [14990, 1879],
    "<|im_start|>user\n": [151644, 872, 198],
    "<|im_end|><|endoftext|>": [151645, 151643],
}
"""Texts and their token ids in Qwen2.5's vocabulary."""


class Fetched(Record):
    """fetched.json.

    weights: number of tensors of the GGUF file by type; all but F32 are rounded, so scores of the original do not
    apply. embeddings: its types of the input's and the output's copy; where there are two, the model has the output's
    in both places. files: those of model/ with their SHA-256.
    """

    model: str
    repo: str
    revision: str
    file: str
    source_sha256: str
    license: str
    converter: dict[str, str]
    weights: dict[str, int]
    embeddings: dict[str, str]
    dtype: str
    parameters: int
    files: dict[str, str]


def fetch(name: str, out: Path | None = None, *, file: Path | None = None, dtype: DType = "bfloat16") -> Fetched:
    """Bring a model into `out`; one that is there is checked by its hashes and left as it is.

    Args:
        name: a key of REAL.
        file: its GGUF file where it is there already; None takes the hub's.

    Raises:
        BadInput: gguf is not installed, the file cannot be had or is not Qwen's, `out` holds other or changed files.
        RunFailed: the converted tokenizer does not encode as Qwen's.
    """
    source, out = REAL[name], out or store.cache_folder() / name
    config = {"model": name, "file": f"{source.repo}/{source.file}", "dtype": dtype}
    revisions = {source.repo: source.revision, source.file: source.sha256}
    run = provenance.new_run("fetch", config, seeds={}, deterministic=True, revisions=revisions)
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished:
            record = check(out)
            print(f"{name} is there: {out / 'model'}, {len(record.files)} files with the hashes of {RECORD}")
            return record
        _check_tools()
        gguf = _checked(file or _downloaded(source), source)
        with folder.working("the start", resume="the same command makes it anew"):
            record = _converted(gguf, name, out, dtype)
            store.write_json(out / RECORD, record)
    seconds = duration(folder.record.wall_seconds)
    print(f"{name}: {record.parameters:,} parameters in {dtype}, {seconds}")
    print(f"next: stapo-eval run --model {out / 'model'} --size {name} --benchmarks math500 --out EVAL")
    return record


def check(out: Path) -> Fetched:
    """The record of a fetched model whose files are those of the record, and no others.

    Raises:
        BadInput: a file is missing, is not of the record, or has another hash; or there is no record.
    """
    next_step = f"delete {out}, then the same stapo-train fetch again"
    if not (out / RECORD).is_file():
        raise BadInput(f"{out} is no fetched model", found="no record", expected=RECORD, next_step=next_step)
    known, folder = store.read_json(out / RECORD, Fetched), out / "model"
    hashes = {f.name: store.sha256_file(f) if f.is_file() else "no file" for f in folder.glob("*")}
    for name in sorted(hashes.keys() | known.files.keys()):
        found, expected = hashes.get(name, "nothing"), known.files.get(name, "nothing")
        if found != expected:
            what = f"{folder / name} is not what {RECORD} says"
            raise BadInput(what, found=found, expected=expected, next_step=next_step)
    return known


def _check_tools() -> None:
    """Refuse before the download what its conversion would fail for."""
    if find_spec("gguf") is None:
        raise BadInput(
            "a GGUF file cannot be read",
            found=f"no module gguf in {sys.prefix}",
            expected="the packages of requirements/fetch.txt",
            next_step="pip install gguf==0.19.0, or tox -e fetch -- with the same words",
        )


def _downloaded(source: WeightsFile) -> Path:
    """The file in the hub's cache. Raises: BadInput where it is not there and the hub does not give it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source.repo, source.file, revision=source.revision))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as e:
        raise BadInput(
            f"{source.file} cannot be taken from the hub",
            found=message_of(e),
            expected=f"{source.repo} at commit {source.revision}",
            next_step="HF_HUB_OFFLINE=0 in front of the same command, or --file FILE with the same bytes",
        ) from None


def _checked(file: Path, source: WeightsFile) -> Path:
    """The file, which is Qwen's byte for byte. Raises: BadInput for any other."""
    size = file.stat().st_size if file.is_file() else None
    found = f"{size:,} bytes" if size is not None else "no file"
    if size == source.size and (found := store.sha256_file(file)) == source.sha256:
        return file
    expected = f"{source.size:,} bytes, SHA-256 {source.sha256}"
    raise BadInput(f"{file} is not Qwen's {source.file}", found=found, expected=expected,
                   next_step="delete it; without --file it comes from the hub")  # fmt: skip


def _converted(gguf: Path, name: str, out: Path, dtype: DType) -> Fetched:
    """model/ in one step, and its record."""
    source, partial, target = REAL[name], out / ".model", out / "model"
    shutil.rmtree(target, ignore_errors=True)
    types = _types(gguf)
    model, tokenizer = _load(gguf, dtype)
    _mend(model, tokenizer, source.repo.removesuffix("-GGUF"))
    for text, ids in ENCODINGS.items():
        if (found := tokenizer(text)["input_ids"]) != ids:
            raise RunFailed(f"the tokenizer does not encode {text!r} as Qwen's", found=found, expected=ids,
                            next_step="pip install -r requirements/fetch.txt, then the same command")  # fmt: skip
    with made_whole(partial, target):
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    versions = provenance.package_versions()
    return Fetched(
        model=name,
        repo=source.repo,
        revision=source.revision,
        file=source.file,
        source_sha256=source.sha256,
        license=LICENSE,
        converter={p: versions[p] for p in ("torch", "transformers", "tokenizers", "gguf") if p in versions},
        weights=dict(sorted(Counter(types.values()).items())),
        embeddings={t: types[t] for t in ("token_embd.weight", "output.weight") if t in types},
        dtype=dtype,
        parameters=sum(p.numel() for p in model.parameters()),
        files={f.name: store.sha256_file(f) for f in sorted(target.iterdir())},
    )


def _types(gguf: Path) -> dict[str, str]:
    """Tensor -> its type in the file, such as Q4_K."""
    from gguf import GGUFReader  # pyright: ignore[reportMissingImports]

    return {t.name: t.tensor_type.name for t in GGUFReader(gguf).tensors}


def _load(gguf: Path, dtype: DType) -> tuple[Any, Any]:
    """(model, tokenizer) as transformers reads them."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers, which no terminal of ours shows
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=getattr(torch, dtype), gguf_file=gguf.name)
    return model, AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


def _mend(model: Any, tokenizer: Any, original: str) -> None:
    """Put right, in place, what the file or transformers 5.9 has otherwise than the original.

    The original ties its embeddings; the file rounds them twice, the input's copy coarser than the output's. The
    output's takes both places. The tokenizer would end a turn with the end of text, and would say how it was read.
    """
    from transformers import GenerationConfig

    config = model.config
    if not config.tie_word_embeddings:
        model.model.embed_tokens.weight = model.lm_head.weight
        config.tie_word_embeddings = True
    config.architectures = [type(model).__name__]
    if hasattr(config, "_model_name_or_path"):
        config._model_name_or_path = original
    (turn, turn_id), (text, text_id) = END_OF_TURN, END_OF_TEXT
    model.generation_config = GenerationConfig(
        do_sample=True, bos_token_id=text_id, eos_token_id=[turn_id, text_id], pad_token_id=text_id
    )
    tokenizer.eos_token, tokenizer.pad_token = turn, text
    tokenizer.model_max_length = config.max_position_embeddings
    # transformers writes how it read the file: with a network the same file would not give the bytes of the records
    tokenizer.init_kwargs |= {"is_local": True, "local_files_only": True}
