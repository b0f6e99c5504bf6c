#!/usr/bin/env python3
"""Makes the build in DIR the base model that the repository carries of its world, for a release: .ci/carry.py DIR."""

import shutil
import sys
from pathlib import Path

from stapo_results import runs, store
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_training.miniature.carried import FOLDER, CarriedBase, tokenizer_sha256


def carry(out: Path, folder: Path = FOLDER) -> CarriedBase:
    """Make a finished build the carried one of its world.

    Raises:
        BadInput: the build is not finished, is not of committed code and seed 0, or did not train its model.
    """
    run = store.read_json(out / runs.RECORD, Run)
    found = {"status": run.status, "weights": run.config["weights"], "seed": run.seeds["base"], "code": run.code_dirty}
    expected = {"status": "done", "weights": "", "seed": 0, "code": ""}
    if found != expected:
        next_step = "commit, then stapo-train base --rebuild-base --out DIR"
        raise BadInput("the build cannot be carried", found=found, expected=expected, next_step=next_step)
    world, source = run.config["plan"]["world"], out / "model" / "model.safetensors"
    plain = run.model_copy(update={"command": [*run.command[:1], "base", "--world", world, "--rebuild-base"]})
    known = CarriedBase(weights_sha256=store.sha256_file(source), tokenizer_sha256=tokenizer_sha256(), run=plain)
    shutil.copyfile(source, folder / f"{world}.safetensors")
    store.write_json(folder / f"{world}.json", known)
    return known


if __name__ == "__main__":
    carry(Path(sys.argv[1]))
