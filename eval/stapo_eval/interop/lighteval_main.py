"""lighteval's command line with the suite's tasks alone.

    STAPO_DATA_DIR=BENCHMARKS python -m stapo_eval.interop.lighteval_main accelerate MODEL_ARGS "stapo_aime24|0"

lighteval 0.13.0 imports every task that it ships before it looks at custom ones, and one of these downloads a pickle
when it is imported: without a network no command starts. Here the registry holds the custom tasks and nothing else.

Its transformers path ends a batch of P problems with N samples each when the first P of the P x N responses have ended,
and cuts the others off (`MultiTokenEOSCriteria`). Here each ends by its own end-of-turn token, which is set there too.
"""

# pyright: reportMissingImports=false
# lighteval is in an environment of its own

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from lighteval.models.transformers import transformers_model
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.registry import Registry
from transformers import StoppingCriteriaList

TASKS = "stapo_eval.interop.lighteval_tasks"


def custom_only(
    custom_tasks: str | Path | ModuleType | None = None, load_multilingual: bool = False
) -> dict[str, LightevalTaskConfig]:
    """Takes the place of `Registry.load_all_task_configs`: the tasks of one module, the suite's by default."""
    return Registry._extract_configs(Registry.create_custom_tasks_module(custom_tasks or TASKS))


def main() -> None:
    """Entry point: lighteval's own, after its registry and its end of a batch were replaced."""
    Registry.load_all_task_configs = staticmethod(custom_only)  # type: ignore[method-assign]
    transformers_model.stop_sequences_criteria = lambda *a, **k: StoppingCriteriaList()
    from lighteval.__main__ import app

    app()


if __name__ == "__main__":
    main()
