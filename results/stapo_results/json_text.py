"""What a JSON text says beyond its value: where a field stands, whether a name stands twice, what is no number."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import yaml


class NameTwice(Exception):
    """An object holds one name twice, of which a JSON reader takes the last without a word."""

    def __init__(self, name: str, lines: Sequence[int]):
        super().__init__(name)
        self.name, self.lines = name, lines


class NotFinite(Exception):
    """NaN, an infinity, or a number too large for one, which a reader of JSON may take and no record holds."""


def check(data: bytes) -> None:
    """Look for what a validator lets pass where a record says nothing of it (an object with names of its own).

    Raises:
        NameTwice: with the lines on which the name stands (all of them, in whatever object).
        NotFinite: with the text that stands for the number.
    """
    json.loads(data, object_pairs_hook=lambda pairs: _check(pairs, data), parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotFinite(text)
    return number


def _check(pairs: list[tuple[str, object]], data: bytes) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(n for n in names if names.count(n) > 1)
        quoted = json.dumps(name, ensure_ascii=False).encode()
        raise NameTwice(name, [i for i, line in enumerate(data.splitlines(), 1) if quoted in line])
    return found


def place(path: Path, data: bytes, field: Sequence[str | int]) -> str:
    """Where a field of a JSON text stands, as file:line; a field that is not there stands where its object does.

    JSON is nearly YAML, whose nodes know their lines; the file alone where a text is the one and not the other.
    """
    try:
        node = yaml.compose(data.decode(), Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return str(path)
    line = 0
    for part in field:
        if isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == part]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = [(v, v) for v in node.value[part : part + 1]]
        else:
            break
        if not found:
            break
        key, node = found[-1]
        line = key.start_mark.line
    return f"{path}:{line + 1}"
