"""A pytest plugin: STAPO_WALKS=FILE puts the tests that walk a path (`@pytest.mark.path(NAME, ...)`) on record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stapo_results import store
from stapo_results.walks import Walked, new_walks

_WALKED = pytest.StashKey[dict[str, Walked]]()
_SECONDS = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_WALKED] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    report: Any = yield
    marks, walked, name = list(item.iter_markers("path")), item.config.stash[_WALKED], item.nodeid
    seconds = item.stash[_SECONDS] = item.stash.get(_SECONDS, 0.0) + report.duration  # fixtures are most of some tests
    ended = report.failed or (report.when == "call" and report.passed and not hasattr(report, "wasxfail"))
    if not marks or not ended:  # a skipped test's setup and teardown pass
        return report
    walked[name] = Walked(
        name=name,
        paths=list(dict.fromkeys(p for m in reversed(marks) for p in m.args)),
        level=marks[0].kwargs.get("level", "ran"),
        outcome="failed" if report.failed else "passed",
        seconds=round(seconds, 1),
        error=call.excinfo.typename if report.failed else "",
    )
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    walked, file = list(session.config.stash[_WALKED].values()), os.environ.get("STAPO_WALKS")
    if file and walked:
        name = os.environ.get("TOX_ENV_NAME")
        record = new_walks(f"tox -e {name}" if name else "pytest", "cpu", walked)
        store.write_json(Path(session.config.rootpath, file), record)
