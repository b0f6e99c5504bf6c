"""How pages are filled: what stands in a value is text, and a name that is not there is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

# C0 and C1 controls, line and paragraph separators, and what steers the direction of text or has no width; a response
# with them would not show what a grader read
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The same text with control characters, marks of direction and lone surrogates written as their code point."""
    return _UNSEEN.sub(lambda m: f"⟨U+{ord(m[0]):04X}⟩", text.replace("\r\n", "\n"))


@cache
def template(package: str, name: str, finalize: Callable[[object], object] | None = None) -> Template:
    """A template below `package`/templates.

    Args:
        finalize: what is written in the place of each value, before it is escaped.
    """
    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
