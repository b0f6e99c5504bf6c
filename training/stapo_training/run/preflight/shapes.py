"""Where the shape of a model is found: a local folder, the hub's cache, or the facts that come with this suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stapo_results.errors import BadInput
from stapo_results.shapes import KNOWN, Shape, shape_from


def find_shape(model: str) -> Shape:
    """The shape of a local model folder, of a hub model in the cache, or of one whose facts stand here.

    Raises:
        BadInput: when none of the three is there.
    """
    folder = Path(model)
    if (folder / "config.json").exists():
        return shape_from(_read(folder / "config.json"), str(folder))
    cached = _cached_config(model)
    if cached is not None:
        return shape_from(_read(cached), model)
    if model in KNOWN:
        return shape_from(KNOWN[model], model)
    raise BadInput(
        f"the size of {model} is not known before it is downloaded",
        expected=f"a local folder, a model in the hub's cache, or one of {', '.join(KNOWN)}",
        next_step=f"hf download {model}",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as e:
        raise BadInput(f"{path} is not JSON", found=str(e), next_step="take the model's folder again") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path} is not a JSON object", next_step="take the model's folder again")
    return value


def _cached_config(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # a path, not an id
        return None
    return Path(found) if isinstance(found, str) else None
