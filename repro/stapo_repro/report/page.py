"""The report's value as one HTML page.

Everything is escaped by the template engine, and every text passes `visible` on its way. Should that ever fail, the
page's content security policy still runs nothing: the one style sheet and the one script are allowed by their hashes,
and no address of any kind is.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from markupsafe import Markup

from stapo_repro import labels
from stapo_repro.audit.findings import NOTE, with_reasons
from stapo_repro.driver.readiness import FILLING
from stapo_repro.report.build import ReportPage
from stapo_repro.templating import template, visible


def _made_visible(value: object) -> object:
    """What the template writes in the place of a value: a text that is no markup yet, made visible."""
    return visible(value) if type(value) is str else value


@cache
def _asset(name: str) -> str:
    return resources.files("stapo_repro.report").joinpath("templates", name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The hash by which a policy allows an element's text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(style: str, script: str) -> str:
    """The page's content security policy."""
    return (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _bars(solved: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(x, y, height) of each bar of a picture 24 high; a bar that stands for something is at least 1 high."""
    top = max(max(solved), 1)
    heights = [-(-22 * n // top) for n in solved]
    return [(8 * i, 24 - h, h) for i, h in enumerate(heights)]


def to_html(report: ReportPage) -> str:
    """The page. A pure function of the report: the same bytes each time."""
    style, script = _asset("style.css"), _asset("script.js")
    return template("stapo_repro.report", "report.html.jinja", _made_visible).render(
        r=report,
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        methods=(labels.method_label(labels.BASE), *labels.METHODS.values()),
        audit_note=NOTE,
        filling=FILLING,
        with_reasons=with_reasons,
        bars=_bars,
    )
