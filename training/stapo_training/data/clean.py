"""From rows to distinct prompts: wrapper off, copies merged, conflicting golds set aside, languages told apart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from stapo_results.answers import normalise_gold
from stapo_results.benchmarks import normal_text
from stapo_results.errors import BadInput
from stapo_training.data.rows import INSTRUCTION
from stapo_training.data.source import SourceRow

# What DAPO puts around a problem: it asks for an "Answer:" line, which the boxed instruction contradicts.
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
_TRACES = ("Solve the following math problem step by step.", "Remember to put your answer on its own line after")

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
        """`dapo-` and 12 hex digits of the normal text's SHA-256: the same in every copy, order and selection."""
        return "dapo-" + hashlib.sha256(normal_text(self.problem).encode()).hexdigest()[:12]


def unwrap(text: str, where: str) -> str:
    """The problem, without DAPO's wrapper or this suite's own instruction at the end (of data prepared before).

    Raises:
        BadInput: naming the row, for half of DAPO's wrapper, another wording of it, or nothing inside it.
    """
    text = text.strip()
    if text.startswith(DAPO_PREFIX) and text.endswith(DAPO_SUFFIX):
        text = text[len(DAPO_PREFIX) : -len(DAPO_SUFFIX)].strip()
    text = text.removesuffix(INSTRUCTION).strip()
    if not text or any(trace in text for trace in _TRACES):
        raise BadInput(
            f"{where}: not a problem in DAPO's whole wrapper, nor one without it",
            found=f"{text[:90]!r} ... {text[-70:]!r}" if len(text) > 160 else repr(text),
            expected=f"{DAPO_PREFIX[:46]!r} ... {DAPO_SUFFIX!r}, or neither, around a problem",
            next_step="correct the row, or get the file again",
        )
    return text


def distinct(rows: Iterable[SourceRow]) -> list[Prompt]:
    """Merge rows whose problems agree up to white space and Unicode composition, in order of first occurrence.

    Raises:
        BadInput: for a damaged wrapper, or one id on two problems, naming the row.
    """
    prompts: dict[str, Prompt] = {}
    seen: dict[str, Prompt] = {}  # by the text as it stands: the hub's copy holds each about 100 times
    ids: dict[str, tuple[Prompt, str]] = {}
    for row in rows:
        if row.prompt not in seen:
            problem = unwrap(row.prompt, row.where)
            seen[row.prompt] = prompts.setdefault(normal_text(problem), Prompt(problem, row.number, row.id))
        prompt = seen[row.prompt]
        prompt.copies += 1
        for gold in row.golds:
            prompt.golds.setdefault(gold.strip(), row.number)
        other, where = ids.setdefault(row.id, (prompt, row.where)) if row.id else (prompt, "")
        if other is not prompt:
            raise BadInput(
                f"{row.where}: an id stands on two problems",
                found=f"{row.id}, also in {where}",
                expected="an id of its own for every problem",
                next_step="correct the row, or get the file again",
            )
    return list(prompts.values())


def has_cjk(text: str) -> bool:
    """Whether a text holds a Chinese, Japanese or Korean ideograph: the rule of `--language en`, which drops those."""
    return _CJK.search(text) is not None
