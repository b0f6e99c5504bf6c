"""`stapo-eval judge`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import tyro


@dataclass(frozen=True)
class JudgeCommand:
    """Judge the samples of a run folder, or judge them again with another model or scope; nothing is generated.

    The same command again goes on where it was stopped: no recorded reply is asked for twice.
    """

    run: str
    """Run folder, the --out of stapo-eval run."""
    judge: str
    """Verifier model: folder or hub id, such as opencompass/CompassVerifier-3B."""
    scope: Literal["rule-negatives", "disagreements", "all"] = "rule-negatives"
    """Which samples the judge is asked about; its word counts where it is asked."""
    mode: Literal["compass", "justrl-exact"] = "compass"
    """justrl-exact: JustRL's script with its empty question, the whole response, exactly "A" accepted."""
    revision: str = ""
    """The hub judge's revision."""
    engine: Literal["", "hf", "vllm", "openai"] = ""
    """Engine of the judge (default: that of the run, or openai with --url)."""
    url: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Address of an OpenAI-compatible endpoint that serves the judge; several share the work."""
    data_dir: str = ""
    """Directory with the benchmarks' files (default: that of the run)."""
    benchmarks: str = ""
    """Files of benchmarks that the run was given by path, joined by commas."""
    out: str = ""
    """Leave the run folder as it is and write into this one (default: in place)."""

    def __call__(self) -> int:
        from stapo_eval.rejudge import JudgeOptions, rejudge

        rejudge(JudgeOptions(**{f.name: getattr(self, f.name) for f in fields(JudgeOptions)}))
        return 0
