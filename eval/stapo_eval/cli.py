"""`stapo-eval`: a function a command.

Imports are inside the functions, where Ctrl-C and a closed pipe are already dealt with: they take most of a second.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stapo_eval.benchmarks import benchmarks
from stapo_eval.options import Judging, Preset, RunOptions
from stapo_eval.show import print_table
from stapo_results.errors import BadInput
from stapo_results.terminal import check_command, duration, run_main

Flags = tyro.conf.arg(name="")  # the fields of a dataclass are flags of the command itself


def run(options: Annotated[RunOptions, Flags], dry_run: bool = False) -> int:
    """Sample, grade and judge: avg@N of one model over benchmarks and decoding settings.

    To resume, repeat the command. A finished run returns at once.

    Args:
        dry_run: Make every check, print model, judge and the samples of each cell, and start nothing.
    """
    from stapo_eval.run import preview
    from stapo_eval.run import run as evaluate

    (preview if dry_run else evaluate)(options)
    return 0


def judge(
    options: Annotated[Judging, Flags], run: Path | None = None, key_variable: str = "", data_dir: str = "",
    benchmarks: str = "",
) -> int:  # fmt: skip
    """Judge the samples of a run folder, or judge them again with another model or scope; nothing is generated.

    To resume, repeat the command: no recorded reply is asked for twice. Without --run the judge's published prompt is
    found, fetched once where it is not here, and printed with its hash and source.

    Args:
        run: Run folder, the --out of stapo-eval run.
        key_variable: Environment variable with the endpoint's key; if empty, that of the run.
        data_dir: Directory with the benchmarks' files; if empty, that of the run.
        benchmarks: Files of benchmarks that the run was given by path, joined by commas.
    """
    if run is None:
        from stapo_eval.judge.published import find_prompt

        print(find_prompt(options.judge_prompt, options.judge_mode))
        return 0
    from stapo_eval.run import judge_again

    judge_again(run, options, key_variable, data_dir, benchmarks)
    return 0


def grade(
    input: str,
    output: str,
    preset: Preset = "ours",
    all_presets: bool = False,
    verdicts: tuple[Path, ...] = (),
    answer_line: bool = False,
    max_tokens: int = 0,
    tokenizer: str = "",
    seconds: float = 5.0,
    memory_mib: int = 1024,
    workers: int = 0,
) -> int:
    """Grade responses from a JSONL file by rule: one verdict a line, in the same order.

    Every line is checked before any work; the output appears whole or not at all.

    Args:
        input: JSONL with the fields id, answer (text or list of texts) and response; optional are unit (text),
            tolerance (a number, absolute) and unordered (true: a list's items in any order).
        output: JSONL with the fields id, extracted, rule, reason, seconds.
        preset: Rule grader: how the answer is found and compared (docs/evaluation.md).
        all_presets: Grade by every preset and show where they differ; --output is then JSON with each response on
            which two do.
        verdicts: With --all-presets: other graders' JSONL on the same responses, with the fields id, grader and rule.
        answer_line: Without a box, take what follows "Answer:", "The answer is" or "#### ".
        max_tokens: Number of tokens of each response that are graded, counted by --tokenizer; if 0, all.
        tokenizer: Folder with the tokenizer.json that --max-tokens counts by: the model's.
        seconds: CPU time that one answer may take; its wall time may be sixty times that.
        memory_mib: Memory that one answer may take.
        workers: Grading processes; if 0, one a core.
    """
    from stapo_eval.grading.file import first_tokens, grade_all, grade_file
    from stapo_eval.grading.pool import Limits
    from stapo_eval.grading.rules import Options

    cut = first_tokens(tokenizer, max_tokens) if max_tokens or tokenizer else None
    limits = Limits(seconds, memory_mib, workers)
    if all_presets:
        report = grade_all(Path(input), Path(output), limits, verdicts, use_answer_line=answer_line, cut=cut)
        title = f"{report['responses']:,} responses; in {report['without_answer']:,} of them `ours` finds no answer"
        columns = ("grader", "calls right", "right, ours wrong", "right, ours finds no answer", "wrong, ours right")
        rows = [[grader, *(f"{n:,}" for n in counts.values())] for grader, counts in report["graders"].items()]
        print_table(title, columns, rows, text_columns=1)
        print(f"written: {output}, with every response on which two differ")
        return 0
    if verdicts:
        raise BadInput("--verdicts are compared with every preset's", found="no --all-presets",
                       next_step="add --all-presets")  # fmt: skip
    began = time.perf_counter()
    reasons = grade_file(input, output, Options(preset=preset), limits, use_answer_line=answer_line, cut=cut)
    others = [f"{n} {reason.replace('_', ' ')}" for reason, n in reasons.items() if "match" not in reason]
    more = f" ({', '.join(others)})" if others else ""
    spent = duration(time.perf_counter() - began)
    print(f"{reasons['match']} of {reasons.total()} correct by rule{more}, {spent}: {output}")
    return 0


def compare(
    first: tyro.conf.Positional[Path], second: tyro.conf.Positional[Path], benchmarks: str = "", out: str = ""
) -> int:
    """Compare two runs, problem by problem: first minus second, at each setting that both have.

    Args:
        first: Run folder.
        second: Run folder.
        benchmarks: Benchmarks joined by commas; if empty, all; both sides must have the same.
        out: JSON file with every number of the table; if empty, the table is printed only.
    """
    from stapo_eval.compare import compare_runs

    compare_runs(first, second, benchmarks, out)
    return 0


def export(run: str, to: Literal["inspect", "responses"], out: str, data_dir: str = "", benchmarks: str = "") -> int:
    """Write a finished run in another harness's format, or its responses for other graders.

    Args:
        run: Folder of a finished `stapo-eval run`.
        to: inspect: a log and its scores for each cell. responses: JSONL for any grader and `stapo-train probe`.
        out: Folder to write into.
        data_dir: Directory with the benchmarks; if empty, that of the run, else $STAPO_DATA_DIR, else the hub.
        benchmarks: Files of benchmarks that the run was given by path, joined by commas.
    """
    from stapo_eval.export import export as write

    print(*write(Path(run), to, Path(out), data_dir, benchmarks), sep="\n")
    return 0


_COMMANDS = {f.__name__: f for f in (run, grade, judge, compare, benchmarks, export)}


def main(args: list[str] | None = None) -> int:
    """Entry point; returns the exit code (see `stapo_results.errors`)."""
    words = sys.argv[1:] if args is None else args
    grades = words[:1] == ["grade"]  # what it needs is small: no model runs
    return run_main(lambda: _command(words), extra="grade" if grades else "eval")


def _command(args: list[str]) -> int:
    check_command("stapo-eval", args, _COMMANDS, ("--url", "--judge-url", "--vllm", "--template"))
    return tyro.extras.subcommand_cli_from_dict(
        _COMMANDS,
        args=args,
        prog="stapo-eval",
        description="Evaluate models: samples, rule, judge, records.",
        config=(tyro.conf.OmitArgPrefixes,),
    )


if __name__ == "__main__":
    raise SystemExit(main())
