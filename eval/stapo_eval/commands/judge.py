"""`stapo-eval judge`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from stapo_eval.options import JudgeOptions
from stapo_results import provenance


@dataclass(frozen=True)
class JudgeCommand(JudgeOptions):
    """Judge the samples of a run folder, or judge them again with another model or scope; nothing is generated.

    The same command again goes on where it was stopped: no recorded reply is asked for twice.
    """

    def __call__(self) -> int:
        from stapo_eval.judge.rejudge import rejudge

        rejudge(self, command=shlex.join(provenance.command_line()))
        return 0
