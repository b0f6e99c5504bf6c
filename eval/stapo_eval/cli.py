"""The console command `stapo-eval`."""

from __future__ import annotations

from typing import Annotated

import tyro

from stapo_eval.commands.bench import BenchCommand
from stapo_eval.commands.benchmarks import BenchmarksCommand
from stapo_eval.commands.compare import CompareCommand
from stapo_eval.commands.export import ExportCommand
from stapo_eval.commands.grade import GradeCommand
from stapo_eval.commands.judge import JudgeCommand
from stapo_eval.commands.run import RunCommand
from stapo_results.console import run_main

Command = (
    Annotated[RunCommand, tyro.conf.subcommand("run")]
    | Annotated[GradeCommand, tyro.conf.subcommand("grade")]
    | Annotated[JudgeCommand, tyro.conf.subcommand("judge")]
    | Annotated[CompareCommand, tyro.conf.subcommand("compare")]
    | Annotated[BenchmarksCommand, tyro.conf.subcommand("benchmarks")]
    | Annotated[ExportCommand, tyro.conf.subcommand("export")]
    | Annotated[BenchCommand, tyro.conf.subcommand("bench")]
)


def main(args: list[str] | None = None) -> int:
    """Entry point; returns the exit code (see `stapo_results.errors`)."""
    command = tyro.cli(
        Command,  # type: ignore[arg-type]
        args=args,
        prog="stapo-eval",
        description="Evaluate models: samples, rule, judge, records.",
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )
    return run_main(command)  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main())
