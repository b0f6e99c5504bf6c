"""The one list of methods, `methods.yaml`: an entry for every overlay in training/stapo_training/configs/method."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def methods() -> dict[str, dict[str, Any]]:
    """Name -> its entry as it is written; `stapo_training.methods.Method` says what each field means."""
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
