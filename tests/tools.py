"""What tests need beside Python. Where it is missing they are skipped; with STAPO_TEST_TOOLS=1 they fail instead."""

from __future__ import annotations

import os
import shutil

import pytest

VARIABLE = "STAPO_TEST_TOOLS"


def required() -> bool:
    """Whether what is missing, program or module, is a failure: `tox -e report` says so, since it installs them."""
    return os.environ.get(VARIABLE) == "1"


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips a test where a program is missing; where tools are required it runs and fails on the missing one."""
    absent = [name for name in programs if shutil.which(name) is None]
    reason = f"{' and '.join(absent)} not found: tox -e report installs what is missing"
    return pytest.mark.skipif(bool(absent) and not required(), reason=reason)
