"""`stapo-train`: the training wing's commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stapo_results.errors import BadInput
from stapo_results.terminal import check_command, run_main
from stapo_training.data.options import DataOptions
from stapo_training.probe.run import ProbeOptions

_RUN_HELP = """usage: stapo-train run method=M size=S hardware=H [task=T] run.out=DIR [KEY=VALUE ...]
                       [--dry-run] [--config-only]

Train with veRL. Every KEY=VALUE is a Hydra override of the composed configuration.
To resume an interrupted run, repeat the command. A finished run returns at once.

  method=     {method}
  size=       {size}
  hardware=   {hardware}
  task=       {task}
  run.base=   the base folder of the miniature (stapo-train base --out DIR)
  run.data=   the folder of training data for the paper's sizes (stapo-train data --benchmarks DIR --out DIR)
  run.seed=, run.steps=, run.out=
  --dry-run       check everything, print plan, memory, disk and time; start and write nothing
  --config-only   print the composed configuration; looks for no GPU, data or model"""


Flag = tyro.conf.FlagCreatePairsOff


def base(out: Path, seed: int = 0, world: str = "paper", rebuild_base: Annotated[bool, Flag] = False) -> None:
    """Write the miniature's base model, training data and benchmarks. The repository carries the weights.

    Args:
        out: Folder to make; a whole build of the same seed is left as it is.
        seed: Decides problems, words and weights; other than 0 with --rebuild-base alone.
        world: paper, mixed, inverted, costly or costly-inverted: at which entropy useful and spurious tokens occur, and
            what these cost (docs/testbed.md).
        rebuild_base: Train the model anew (about 2 minutes) instead of taking the carried weights.
    """
    from stapo_training.miniature.build import build_base

    build_base(out, seed, world=world, rebuild=rebuild_base)


def fetch(
    model: Annotated[Literal["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"], tyro.conf.Positional],
    out: Path | None = None,
    file: Path | None = None,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
) -> None:
    """Fetch Qwen2.5-Coder-Instruct from the hub and write it as a Hugging Face folder.

    The hub has it as a GGUF file with 4-bit weights (0.5 or 1.1 GB), pinned by commit and SHA-256. A second call
    compares the hashes of all files.

    Args:
        model: The model.
        out: Folder to make; by default one in ~/.cache/stapo (XDG_CACHE_HOME).
        file: The GGUF file, where it is on this machine already.
        dtype: Of the weights that are written.
    """
    from stapo_training.artifacts.fetch import fetch

    fetch(model, out, file=file, dtype=dtype)


def data(options: Annotated[DataOptions, tyro.conf.arg(name="")]) -> None:
    """Prepare a prompt set: veRL's training and validation files, and a report of the benchmark problems in it."""
    from stapo_training.prepare import prepare

    prepare(options)


def export(checkpoint: Path, out: Path, dtype: Literal["fp32", "bf16"] = "fp32") -> None:
    """Write a checkpoint as a Hugging Face folder (safetensors, tokenizer, stapo.json).

    Args:
        checkpoint: A run folder (its last checkpoint) or one global_step_N folder of it.
        out: Folder to make; an export of the same checkpoint is left as it is.
        dtype: Type of the written weights.
    """
    from stapo_training.artifacts.export import export

    export(checkpoint, out, dtype)


def probe(options: Annotated[ProbeOptions, tyro.conf.arg(name="")]) -> None:
    """Score existing responses with a model: the token log of a training, without a training. See docs/tokens.md."""
    from stapo_training.probe.run import probe

    probe(options)


def methods(method: Annotated[str | None, tyro.conf.Positional] = None, records: Path | None = None) -> None:
    """List every method: its paper, what it masks or weighs, its numbers, their sources, where it was trained.

    Args:
        method: An overlay's name: this one alone.
        records: Folder with records. Default: results/records, where it is there.
    """
    from stapo_training.methods import listing

    if records and not records.is_dir():
        raise BadInput("no such folder of records", found=records, next_step="leave --records out")
    print(listing(records or Path("results/records"), method))


def check(
    method: Annotated[str, tyro.conf.Positional] = "stapo",
    overrides: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
) -> int:
    """Hold a method's objective in the real veRL worker against its calculation by hand, on a fixed mini-batch.

    Micro-batches of one, of four and packed, on one rank and on two; half a minute. Exit code 1 when one differs.

    Args:
        method: An overlay's name, or a YAML file like one.
        overrides: Hydra overrides, KEY=VALUE.
    """
    from stapo_training.exact import check

    return check(method, overrides)


def configs(results: Path = Path("results"), check: bool = False) -> int:
    """Write the generated tables of methods, decided defaults, sizes and machines.

    Args:
        results: The folder with records/ and tables/.
        check: Compare instead of writing; exit code 1 when a page is stale.
    """
    from stapo_training import pages

    return pages.write(results, check=check)


_COMMANDS = {f.__name__: f for f in (base, fetch, data, export, probe, methods, check, configs)}


def main() -> int:
    return run_main(lambda: _command(sys.argv[1:]), extra="train")


def _command(argv: list[str]) -> int:
    check_command("stapo-train", argv, ["run", *_COMMANDS])
    if argv[:1] == ["run"]:  # Hydra's overrides are no flags, so tyro does not see them
        return _run(argv[1:])
    if not argv or argv[0] not in _COMMANDS:
        print("usage: stapo-train COMMAND ...   (each with --help)\n")
        print("  run      Train with veRL: stapo-train run method=stapo size=mini hardware=cpu ...")
        for name, command in _COMMANDS.items():
            print(f"  {name:8} {(command.__doc__ or '').splitlines()[0]}")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    return tyro.cli(_COMMANDS[argv[0]], args=argv[1:], prog=f"stapo-train {argv[0]}") or 0


def _run(argv: list[str]) -> int:
    from stapo_training.start import configuration

    if not argv or "-h" in argv or "--help" in argv:
        print(_RUN_HELP.format(**{g: " | ".join(configuration.choices(g)) for g in configuration.GROUPS}))
        return 0 if argv else 2
    flags = {a for a in argv if a.startswith("--")}
    if unknown := flags - {"--dry-run", "--config-only"}:
        raise BadInput(
            "unknown option",
            found=", ".join(sorted(unknown)),
            expected="--dry-run | --config-only",
            next_step="stapo-train run --help",
        )
    from stapo_training.start import launch  # here: help needs no torch

    overrides = [a for a in argv if not a.startswith("--")]
    return launch.run(overrides, dry_run="--dry-run" in flags, config_only="--config-only" in flags)


if __name__ == "__main__":
    sys.exit(main())
