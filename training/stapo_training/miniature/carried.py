"""The base models that the repository carries, so that every machine starts from the same weights.

`bases/WORLD.safetensors` is what `stapo-train base --world WORLD --rebuild-base` trained once, on the machine and with
the code that the record `bases/WORLD.json` beside it names; `.ci/carry.py` made it the carried one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Record, Run
from stapo_training.miniature.tokenizer import pieces

FOLDER = Path(__file__).with_name("bases")


class CarriedBase(Record):
    """`run` is the record of the build, without its command's folder; its configuration has plan, recipe and world."""

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
        BadInput: they are not the bytes that their record names, or they were made for another vocabulary, other
            problems or another model.
    """
    path, known = folder / f"{world}.safetensors", store.read_json(folder / f"{world}.json", CarriedBase)
    hashes = {"weights": store.sha256_file(path), "tokenizer": tokenizer_sha256()} | config
    expected = known.run.config | {"weights": known.weights_sha256, "tokenizer": known.tokenizer_sha256}
    for what in hashes:
        if hashes[what] != expected.get(what):
            raise BadInput(
                f"the carried base model {path.name} does not fit its record: {what}",
                found=hashes[what],
                expected=expected.get(what),
                next_step=f"git checkout -- {folder}   (or stapo-train base --world {world} --rebuild-base --out DIR)",
            )
    return path, known.weights_sha256
