"""`stapo-train check`: what is compared, and how it is said (`verl_ext.exactness` does the comparing)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

from stapo_training.methods import definition_of, methods
from stapo_training.start.configuration import compose, in_full
from stapo_training.start.settings import check_attention

_PLACE = ("size=mini", "hardware=cpu", "run.base=unused", "run.out=unused")


def check(method: str, overrides: Sequence[str]) -> int:
    """Print every difference; 1 when one is larger than rounding explains.

    Raises:
        BadInput: for an unknown method, or a configuration that cannot be worked out by hand.
    """
    # before the composition, which imports veRL for its configuration
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "stapo_training.verl_ext.platform"}
    warnings.filterwarnings("ignore")  # veRL's, of engines that are not installed
    chosen = [in_full(f"method={method}"), *overrides]
    config = compose([*chosen, *_PLACE])
    check_attention(config)
    composed = definition_of(config)
    known = methods().get(chosen[0].partition("=")[2])
    # which tokens make the quantile is open: each reading is held against its own calculation
    definition = composed if known is None else known.definition.model_copy(update={"among": composed.among})
    if known is None:
        print(f"{method} is not in the registry: it is held against its own overlay's numbers.")
        print("Which tokens a user's selector silences is taken from its file, and is not checked.")
    elif composed != definition:
        different = [k for k in type(composed).model_fields if getattr(composed, k) != getattr(definition, k)]
        print("\n".join(f"{k}: {getattr(composed, k)}, in the registry {getattr(definition, k)}" for k in different))
    from stapo_training.verl_ext import exactness  # imports veRL

    print("ranks  micro-batch   loss      gradient norm  gradient  kept tokens")
    cases = []
    for case in exactness.check(compose, chosen, definition):
        cases.append(case)
        numbers = f"{case.loss:<9.1e} {case.norm:<14.1e} {case.gradient:<9.1e} {case.tokens:+d}"
        print(f"{case.ranks:<6} {case.split:<13} {numbers}{'' if case.exact else '  DIFFERS'}", flush=True)
    largest = max(max(c.loss, c.norm, c.gradient) for c in cases)
    exact = all(c.exact for c in cases)
    print(
        f"{method}: largest relative difference {largest:.1e}, "
        + ("exact" if exact else f"above {exactness.LIMIT:g}")
        + f"; {cases[0].silenced} of {cases[0].counted} tokens silenced"
    )
    return 0 if exact else 1
