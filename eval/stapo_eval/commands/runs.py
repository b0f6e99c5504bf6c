"""`stapo-eval run`, `judge` and `export`: what makes a run folder, and what goes on with one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from stapo_eval.options import JudgeOptions, RunOptions
from stapo_results import provenance
from stapo_results.schema import JudgeMode


@dataclass(frozen=True)
class RunCommand(RunOptions):
    """Sample, grade and judge: avg@N of one model over benchmarks and decoding settings.

    The same command again goes on where it was stopped, or returns at once if it had finished.
    """

    resume: bool = True
    """Go on with an unfinished run folder; --no-resume refuses one."""

    def __call__(self) -> int:
        from stapo_eval.run import run

        options = RunOptions(**{f.name: getattr(self, f.name) for f in fields(RunOptions)})
        run(options, command=shlex.join(provenance.command_line()), resume=self.resume)
        return 0


@dataclass(frozen=True)
class JudgeCommand(JudgeOptions):
    """Judge the samples of a run folder, or judge them again with another model or scope; nothing is generated.

    The same command again goes on where it was stopped: no recorded reply is asked for twice.
    """

    def __call__(self) -> int:
        from stapo_eval.judge.rejudge import rejudge

        rejudge(self, command=shlex.join(provenance.command_line()))
        return 0


@dataclass(frozen=True)
class PromptCommand:
    """Say which published prompt a judge would be asked in; it is fetched where it is not on this machine."""

    judge: str = "opencompass/CompassVerifier-3B"
    """As --judge of a run; a model of the hub is not fetched."""
    prompt: str = ""
    """As --judge-prompt of a run."""
    mode: JudgeMode = "compass"
    """As --judge-mode of a run."""

    def __call__(self) -> int:
        from stapo_eval.plan import judge_prompt

        _, prompt = judge_prompt(RunOptions("", judge=self.judge, judge_prompt=self.prompt, judge_mode=self.mode))
        print(prompt)
        return 0


@dataclass(frozen=True)
class ExportCommand:
    """Write a finished run in another harness's format, or its responses for other graders."""

    run: str
    """Folder of a finished `stapo-eval run`."""
    to: Literal["lighteval", "responses"]
    """lighteval: results JSON and details parquet. responses: JSONL with gold answers, for any grader."""
    out: str
    """Folder to write into."""
    data_dir: str = ""
    """Directory with the benchmarks; if empty, that of the run, else $STAPO_DATA_DIR, else the hub."""
    benchmarks: str = ""
    """Files of benchmarks that the run was given by path, joined by commas."""

    def __call__(self) -> int:
        from stapo_eval.interop import lighteval_log, responses

        run, cells = lighteval_log.read(Path(self.run), self.data_dir, self.benchmarks)
        out = Path(self.out)
        print(
            *(responses.write(cells, out) if self.to == "responses" else lighteval_log.write(run, cells, out)), sep="\n"
        )
        return 0
