"""From a file or a dataset on the hub to distinct prompts: rows checked one by one, wrapper off, copies merged.

Two forms are read:

hub   veRL's columns, as DAPO-Math-17k is published: prompt (one user message), reward_model.ground_truth
flat  problem, answer; optionally id, level, and conflicting_answers (further golds that a merged copy had). Without an
      answer it is the last box of `solution`, as MATH has it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Len
from pydantic import AliasPath, BaseModel, Field, StringConstraints, ValidationError, model_validator

from stapo_results.answers import INSTRUCTION, last_boxed, normalise_gold
from stapo_results.benchmarks import normal_text, read_jsonl
from stapo_results.errors import BadInput, message_of
from stapo_results.store import sha256_file
from stapo_training.artifacts.weights import is_hub_id
from stapo_training.data.options import DAPO
from stapo_training.data.rows import plain_gold

PARTS = {"DigitalLearningGmbH/MATH-lighteval": ("data/train-*.parquet", "0530c78699ea5e8eb5530600900e1f328b48acad")}
"""Datasets of several files: the one that is for training, and the commit that is read where none is named."""

Text = Annotated[str, StringConstraints(pattern=r"\S")]


class _Message(BaseModel):
    role: Literal["user"]
    content: Text


class _HubRow(BaseModel):
    """The hub's own ids (extra_info.index) repeat with every copy of a row, so they identify nothing."""

    prompt: Annotated[list[_Message], Len(1, 1)]
    gold: Text = Field(validation_alias=AliasPath("reward_model", "ground_truth"))


class _FlatRow(BaseModel):
    problem: Text
    answer: Text
    id: Text | None = None
    level: str | int | None = None
    conflicting_answers: list[Text] | None = None

    @model_validator(mode="before")
    @classmethod
    def _solved(cls, row: dict[str, Any]) -> dict[str, Any]:
        solution = row.get("solution")
        return {"answer": last_boxed(solution), **row} if isinstance(solution, str) else row


_COLUMNS = {"prompt", "reward_model", "solution", *_FlatRow.model_fields}


@dataclass(frozen=True)
class SourceFile:
    """A file with prompts and what identifies it. `revision` is the hub's commit, "" for a local file."""

    path: Path
    name: str
    revision: str
    sha256: str


class SourceRow(NamedTuple):
    """One row. `number` counts from 1; `golds` holds one `plain_gold`, or several where the copy says that they
    differed; `level` is the number in its level, "" where it has none."""

    number: int
    where: str
    id: str
    prompt: str
    golds: tuple[str, ...]
    level: str = ""


def find(source: str, revision: str | None = None) -> SourceFile:
    """The file behind `--source`: a path, or the one data file of a dataset on the hub.

    The hub's file is fetched by huggingface_hub, not by `datasets`: that names the commit also where only the cache is
    at hand, and both kinds of source go through one reader.

    Raises:
        BadInput: for a path that does not exist, a hub that does not answer, or a dataset of several files.
    """
    path = Path(source)
    if path.is_file():
        return SourceFile(path, path.name, "", sha256_file(path))
    if path.suffix in (".jsonl", ".parquet") or not is_hub_id(source):
        raise BadInput(
            "the source is not there",
            found=source,
            expected="a .jsonl or .parquet file, or a dataset's id on the hub (owner/name)",
            next_step=f"check --source (default: {DAPO})",
        )
    return _from_hub(source, revision)


def _from_hub(name: str, revision: str | None) -> SourceFile:
    """The one data file of a dataset's snapshot in the hub's cache; the folder's name is the commit."""
    from huggingface_hub import constants, snapshot_download

    part, pinned = PARTS.get(name, ("", "main"))
    patterns, revision = [part] if part else ["*.parquet", "*.jsonl"], revision or pinned
    # offline it would ask for a commit's list of files, though they are all there
    how: dict[str, Any] = {"allow_patterns": patterns, "local_files_only": constants.HF_HUB_OFFLINE}
    try:
        folder = Path(snapshot_download(name, repo_type="dataset", revision=revision, **how))
    except Exception as e:  # noqa: BLE001  the library raises many kinds; each means that the hub gave no data
        raise BadInput(
            f"the dataset {name} could not be loaded from the hub",
            found=message_of(e),
            expected=f"revision {revision}, from the network or the cache in HF_HOME",
            next_step="check the network and HF_HUB_OFFLINE, or download the file and give --source FILE",
        ) from None
    files = sorted(p for pattern in patterns for p in folder.rglob(pattern))
    if len(files) != 1:
        raise BadInput(
            f"the dataset {name} is not one file",
            found=", ".join(p.relative_to(folder).as_posix() for p in files[:5]) or "no .parquet and no .jsonl file",
            expected="exactly one .parquet or .jsonl file",
            next_step="download the file that you mean and give --source FILE",
        )
    return SourceFile(files[0], name, folder.name, sha256_file(files[0]))


def read(source: SourceFile) -> Iterator[SourceRow]:
    """The rows in the order of the file, each checked.

    Raises:
        BadInput: naming file, row and field, for a file that cannot be read, a missing field, an empty prompt, or a
            gold that is not text, or that no response can equal.
    """
    jsonl, number = source.path.suffix == ".jsonl", 0
    for number, row in enumerate(read_jsonl(source.path) if jsonl else _parquet(source.path), 1):
        where = f"{source.path}:{number}" if jsonl else f"{source.path}, row {number}"
        try:
            if "prompt" in row:
                hub = _HubRow.model_validate(row)
                id, prompt, golds, level = "", hub.prompt[0].content, (hub.gold,), ""
            else:
                flat = _FlatRow.model_validate(row)
                id, prompt, golds = flat.id or "", flat.problem, (flat.answer, *(flat.conflicting_answers or ()))
                level = "".join(filter(str.isdigit, str(flat.level or "")))
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            what = f"{'.'.join(map(str, first['loc']))} is missing or of another kind"
            raise _bad(where, what, repr(first["input"]), first["msg"]) from None
        plain = {gold: plain_gold(gold) for gold in golds}
        if wrong := [gold for gold in golds if plain[gold] is None]:
            raise _bad(where, "a gold that no box of a response can equal", wrong[0], "one answer, braces that close")
        yield SourceRow(number, where, id, prompt, tuple(filter(None, plain.values())), level)
    if not number:
        raise BadInput(f"{source.path} holds no row", next_step="check --source")


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        file = pq.ParquetFile(path)
        columns = set(file.schema_arrow.names)
        if not columns & _COLUMNS:
            forms = "prompt and reward_model, or problem and answer"
            raise _bad(str(path), "these are not the columns of a prompt set", sorted(columns), forms)
        for batch in file.iter_batches(batch_size=1 << 15, columns=sorted(columns & _COLUMNS)):
            yield from batch.to_pylist()
            done += batch.num_rows
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as e:
        raise BadInput(
            f"{path} is not a Parquet file, or is damaged after row {done}",
            found=message_of(e),
            next_step="download it again",
        ) from None


def _bad(where: str, what: str, found: object, expected: str) -> BadInput:
    next_step = "correct the row, or get the file again"
    return BadInput(f"{where}: {what}", found=str(found)[:200], expected=expected, next_step=next_step)


# What DAPO puts around a problem: it asks for an "Answer:" line, which the boxed instruction contradicts.
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
_TRACES = ("Solve the following math problem step by step.", "Remember to put your answer on its own line after")
_EMPTY_BOX = re.compile(r"\\boxed\s*\{\s*\}")  # of an instruction: no problem of DAPO or MATH holds one

# Ideographs: Unicode's unified block, its extension A, the compatibility block.
_CJK = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


@dataclass
class Prompt:
    """A distinct problem: its text as it stood first, each gold with the row where it stood first, and its copies."""

    problem: str
    row: int
    source_id: str
    golds: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    level: str = ""

    @property
    def gold(self) -> str:
        """The first gold."""
        return next(iter(self.golds))

    @property
    def conflicting(self) -> bool:
        """Whether the golds differ by more than boxes, dollars and white space."""
        return len(self.golds) > 1 and len({normalise_gold(g) for g in self.golds}) > 1

    @property
    def problem_id(self) -> str:
        """`problem-` and 12 hex digits of the normal text's SHA-256: the same in every copy, order and selection."""
        return "problem-" + hashlib.sha256(normal_text(self.problem).encode()).hexdigest()[:12]


def unwrap(text: str, where: str) -> str:
    """The problem, without DAPO's wrapper or this suite's own instruction at the end (of data prepared before).

    Raises:
        BadInput: naming the row, for half of DAPO's wrapper, another wording of it, another suite's instruction, or
            nothing inside it: such a text equals no benchmark problem, and a model would get two instructions.
    """
    text = text.strip()
    if text.startswith(DAPO_PREFIX) and text.endswith(DAPO_SUFFIX):
        text = text[len(DAPO_PREFIX) : -len(DAPO_SUFFIX)].strip()
    text = text.removesuffix(INSTRUCTION).strip()
    if _EMPTY_BOX.search(text):
        raise _bad(where, "the problem has an instruction with it", repr(text[-120:]), "the problem alone")
    if not text or any(trace in text for trace in _TRACES):
        found = f"{text[:90]!r} ... {text[-70:]!r}" if len(text) > 160 else repr(text)
        expected = f"{DAPO_PREFIX[:46]!r} ... {DAPO_SUFFIX!r}, or neither, around a problem"
        raise _bad(where, "not a problem in DAPO's whole wrapper, nor one without it", found, expected)
    return text


def distinct(rows: Iterable[SourceRow]) -> list[Prompt]:
    """Merge rows whose problems agree up to white space and Unicode composition, in order of first occurrence.

    Raises:
        BadInput: for a damaged wrapper, or one id on two problems, naming the row.
    """
    prompts: dict[str, Prompt] = {}
    seen: dict[str, Prompt] = {}  # by the text as it is: the hub's copy holds each about 100 times
    ids: dict[str, tuple[Prompt, str]] = {}
    for row in rows:
        if row.prompt not in seen:
            problem = unwrap(row.prompt, row.where)
            seen[row.prompt] = prompts.setdefault(
                normal_text(problem), Prompt(problem, row.number, row.id, level=row.level)
            )
        prompt = seen[row.prompt]
        prompt.copies += 1
        for gold in row.golds:
            prompt.golds.setdefault(gold, row.number)
        other, where = ids.setdefault(row.id, (prompt, row.where)) if row.id else (prompt, "")
        if other is not prompt:
            found = f"{row.id}, also in {where}"
            raise _bad(row.where, "an id of two problems", found, "an id of its own for every problem")
    return list(prompts.values())


def has_cjk(text: str) -> bool:
    """Whether a text holds a Chinese, Japanese or Korean ideograph: the rule of `--language en`, which drops those."""
    return _CJK.search(text) is not None
