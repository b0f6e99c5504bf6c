"""The base models that the repository carries, so that every machine starts from the same weights.

`bases/WORLD.safetensors` is what `stapo-train base --world WORLD --rebuild-base` trained once, on the machine and with
the code that the record `bases/WORLD.json` beside it names.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Literal

from stapo_results import runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Record, Run
from stapo_training.miniature.tokenizer import pieces

FOLDER = Path(__file__).with_name("bases")


class CarriedBase(Record):
    """`run` is the record of the build, without its command's folder; its configuration has plan, recipe and world."""

    schema_version: Literal[1] = 1
    weights_sha256: str
    tokenizer_sha256: str
    run: Run


def tokenizer_sha256() -> str:
    """Of the vocabulary's order, which the rows of the embedding follow."""
    return hashlib.sha256(json.dumps(pieces()).encode()).hexdigest()


def weights(world: str, config: dict[str, Any], folder: Path = FOLDER) -> tuple[Path, str]:
    """The carried weights of a world and their SHA-256.

    Args:
        config: plan, recipe and world of the build that asks for them.

    Raises:
        BadInput: there are none, they are not the bytes that their record names, or they were made for another
            vocabulary, other problems or another model.
    """
    path, record = folder / f"{world}.safetensors", folder / f"{world}.json"
    rebuild = f"stapo-train base --world {world} --rebuild-base --out DIR trains them anew"
    if not (path.exists() and record.exists()):
        raise BadInput(
            f"the repository carries no base model of the world {world}",
            found="no file",
            expected=path.name,
            next_step=rebuild,
        )
    known = store.read_json(record, CarriedBase)
    trained_for = {key: known.run.config.get(key) for key in config}
    checks: list[tuple[str, Any, Any]] = [
        ("weights", store.sha256_file(path), known.weights_sha256),
        ("tokenizer", tokenizer_sha256(), known.tokenizer_sha256),
        *((key, config[key], trained_for[key]) for key in config),
    ]
    for what, found, expected in checks:
        if found != expected:
            raise BadInput(
                f"the carried base model {path.name} does not fit its record: {what}",
                found=found,
                expected=expected,
                next_step=f"git checkout -- {folder} restores the file; {rebuild}",
            )
    return path, known.weights_sha256


def carry(out: Path, folder: Path = FOLDER) -> CarriedBase:
    """Make a finished build the carried one of its world.

    Raises:
        BadInput: the build is not finished, or did not train its model.
    """
    run = store.read_json(out / runs.RECORD, Run)
    taken, seed = run.config.get("weights") or run.config.get("noise", ""), run.seeds.get("base")
    if (run.status, taken, seed, run.code_dirty) != ("done", "", 0, ""):
        raise BadInput(
            "only a finished build of committed code that trained its model from seed 0 can be carried",
            found=f"{out}: {run.status}, weights {taken or 'trained'}, seed {seed}, changes {run.code_dirty or 'none'}",
            expected="done, weights trained, seed 0, changes none",
            next_step="commit, then stapo-train base --carry --out DIR",
        )
    world, source = run.config["plan"]["world"], out / "model" / "model.safetensors"
    plain = run.model_copy(update={"command": [*run.command[:1], "base", "--world", world, "--rebuild-base"]})
    known = CarriedBase(weights_sha256=store.sha256_file(source), tokenizer_sha256=tokenizer_sha256(), run=plain)
    folder.mkdir(exist_ok=True)
    shutil.copyfile(source, folder / f"{world}.safetensors")
    store.write_json(folder / f"{world}.json", known)
    return known
