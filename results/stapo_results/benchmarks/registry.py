"""The packaged registry, the one of a data directory, and making entries."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from stapo_results.answers import normalise_gold
from stapo_results.benchmarks.spec import NAME, Problem, Spec, golds_sha256, text_hash
from stapo_results.errors import BadInput
from stapo_results.store import write_atomic

DATA_DIR_VARIABLE = "STAPO_DATA_DIR"
REGISTRY_FILE = "registry.yaml"

_INTEGER = re.compile(r"[+-]?\d+")


def _entries(text: str, where: str) -> dict[str, Spec]:
    try:
        raw = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as e:
        raise BadInput(f"{where} is not YAML", found=e, next_step="correct the file") from None
    if not isinstance(raw, dict) or raw.get("schema_version") != 1 or not isinstance(raw.get("benchmarks"), dict):
        raise BadInput(
            f"{where} is not a benchmark registry",
            found=sorted(raw) if isinstance(raw, dict) else type(raw).__name__,
            expected="the keys schema_version (1) and benchmarks",
            next_step="compare it with stapo_results/benchmarks.yaml",
        )
    specs = {}
    for name, entry in raw["benchmarks"].items():
        check_name(str(name), where)
        try:
            specs[name] = Spec.model_validate(entry)
        except ValidationError as e:
            first = e.errors()[0]
            raise BadInput(
                f"{where}: the entry of {name} is not valid",
                found=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
                next_step="make the entry with `stapo-eval benchmarks --add FILE --data-dir DIR`",
            ) from None
    return specs


def check_name(name: str, where: str) -> None:
    """Raises BadInput for a name that would not do as part of a cell id and a file name."""
    if not NAME.fullmatch(name):
        raise BadInput(
            f"{where}: a benchmark's name is lower case letters, digits and hyphens",
            found=name,
            next_step="choose another name",
        )


@cache
def packaged() -> dict[str, Spec]:
    """The paper's six."""
    text = resources.files("stapo_results").joinpath("benchmarks.yaml").read_text(encoding="utf-8")
    return _entries(text, "stapo_results/benchmarks.yaml")


def find_data_dir(given: str | os.PathLike | None) -> Path | None:
    """The directory with benchmark files: as given, else from STAPO_DATA_DIR, else None (the hub)."""
    path = given or os.environ.get(DATA_DIR_VARIABLE)
    if not path:
        return None
    if not Path(path).is_dir():
        what = "is a file" if Path(path).exists() else "does not exist"
        raise BadInput(
            f"the data directory {what}",
            found=path,
            expected="a folder with the benchmarks' JSONL files",
            next_step=f"check --data-dir, or ${DATA_DIR_VARIABLE} where it is not given",
        )
    return Path(path)


def own_entries(data_dir: str | os.PathLike | None) -> dict[str, Spec]:
    """The entries of a data directory's registry.yaml; none where it has no such file.

    Raises:
        BadInput: for a file that is no registry, or one that redefines a packaged name.
    """
    if data_dir is None or not (path := Path(data_dir) / REGISTRY_FILE).exists():
        return {}
    specs = _entries(path.read_text(encoding="utf-8"), str(path))
    for name in specs.keys() & packaged().keys():
        raise BadInput(
            f"{path} redefines the benchmark {name}",
            found=name,
            expected="a name that the suite does not use",
            next_step="rename the entry: a score must not change its meaning with a directory",
        )
    return specs


def registry(data_dir: str | os.PathLike | None = None) -> dict[str, Spec]:
    """All known benchmarks by name: the packaged six, then those of the data directory's registry.yaml.

    Raises:
        BadInput: for a file that is no registry, or one that redefines a packaged name.
    """
    return packaged() | own_entries(data_dir)


def default_samples(rows: int) -> int:
    """N of a benchmark that names none, as in the paper: 32 for its sets of 30 and 40 problems, 4 for the larger."""
    return 32 if rows <= 100 else 4


def describe(problems: Sequence[Problem], *, title: str, samples: int | None = None, **known: Any) -> Spec:
    """The entry of problems as they are: their count and hashes, the paper's N for their number."""
    golds = [p.answer for p in problems]
    integers = all(isinstance(g, str) and _INTEGER.fullmatch(normalise_gold(g)) for g in golds)
    hashes = [text_hash(p.problem) for p in problems]
    return Spec(
        title=title,
        rows=len(problems),
        golds_sha256=golds_sha256(golds),
        text_hashes=" ".join(hashes),
        samples=samples or default_samples(len(problems)),
        **{"answer_type": "integer" if integers else "math", **known},
    )


def to_entry(spec: Spec) -> dict[str, Any]:
    """An entry as registry.yaml holds it: without what is at its default."""
    return spec.model_dump(mode="json", exclude_defaults=True)


def write_registry(path: str | os.PathLike, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Write `registry.yaml` with the entries (see `registry_entry`) by name, the same bytes each time."""
    value = {"schema_version": 1, "benchmarks": {k: dict(v) for k, v in entries.items()}}
    write_atomic(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120))
