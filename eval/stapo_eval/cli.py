"""The console command `stapo-eval`.

Imports stand where Ctrl-C and a closed pipe are already dealt with: those of the commands take most of a second.
"""

from __future__ import annotations

from stapo_results.terminal import check_command, run_main


def main(args: list[str] | None = None) -> int:
    """Entry point; returns the exit code (see `stapo_results.errors`)."""
    return run_main(lambda: _command(args), extra="eval")


def _command(args: list[str] | None) -> int:
    import tyro

    from stapo_eval.commands.bench import BenchCommand
    from stapo_eval.commands.benchmarks import BenchmarksCommand
    from stapo_eval.commands.compare import CompareCommand
    from stapo_eval.commands.grade import GradeCommand
    from stapo_eval.commands.runs import ExportCommand, JudgeCommand, PromptCommand, RunCommand

    commands = {
        "run": RunCommand,
        "grade": GradeCommand,
        "judge": JudgeCommand,
        "prompt": PromptCommand,
        "compare": CompareCommand,
        "benchmarks": BenchmarksCommand,
        "export": ExportCommand,
        "bench": BenchCommand,
    }
    check_command("stapo-eval", args, commands)
    command = tyro.extras.subcommand_cli_from_dict(
        commands,
        args=args,
        prog="stapo-eval",
        description="Evaluate models: samples, rule, judge, records.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return command()


if __name__ == "__main__":
    raise SystemExit(main())
