"""`stapo-eval judge`."""

from __future__ import annotations

from dataclasses import dataclass

from stapo_eval.options import JudgeOptions


@dataclass(frozen=True)
class JudgeCommand(JudgeOptions):
    """Judge the samples of a run folder, or judge them again with another model or scope; nothing is generated.

    The same command again goes on where it was stopped: no recorded reply is asked for twice.
    """

    def __call__(self) -> int:
        from stapo_eval.judge.rejudge import rejudge

        rejudge(self)
        return 0
