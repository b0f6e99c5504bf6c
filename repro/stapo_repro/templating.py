"""The one way in which pages are filled: what stands in a value is text, and a name that is not there is an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


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
