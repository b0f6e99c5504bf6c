"""`stapo-train probe`: a model's own numbers at the tokens of existing responses, and what S2T would silence.

OUT/run.json                  schema.Run, kind "probe"
OUT/token_log/                the token log (stapo_results.token_log); a step is a mini-batch of responses
OUT/token_log/tokenizer.json  the model's
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stapo_results import provenance, runs, store, terminal, token_log
from stapo_results.schema import Run
from stapo_results.terminal import Display, duration
from stapo_results.token_log import FOLDER, TOKENIZER, LogHeader
from stapo_training.probe import encoding, forms, model_files
from stapo_training.probe.encoding import Tokens
from stapo_training.probe.mini_batch import scored_mini_batch
from stapo_training.probe.model_files import ModelFolder
from stapo_training.probe.options import Options
from stapo_training.probe.responses import Response
from stapo_training.probe.scoring import Scorer
from stapo_training.token_log.rows import joined_counts, joined_rows, logged

_PLACES = ("model", "data", "data_dir", "out")
"""Options that say where something is; a run's revisions say what was there."""


@dataclass(frozen=True)
class ProbePlan:
    """A probe whose inputs were all checked: the responses, their ids, and the record to begin with."""

    options: Options
    model: ModelFolder
    responses: list[Response]
    tokens: list[Tokens]
    header: LogHeader
    device: str
    run: Run

    @property
    def steps(self) -> range:
        """The mini-batches, counted from 1."""
        return range(1, -(-len(self.responses) // self.options.mini_batch) + 1)

    def members(self, step: int) -> slice:
        """The responses of a mini-batch."""
        return slice((step - 1) * self.options.mini_batch, step * self.options.mini_batch)

    def count(self, steps: Sequence[int]) -> int:
        """The responses of some mini-batches."""
        return sum(len(self.responses[self.members(step)]) for step in steps)


def probe(options: Options, say: Callable[[str], None] = print) -> None:
    """Score the responses of a file into `options.out`, or go on with a probe that was interrupted.

    Raises:
        BadInput: before the model's weights are loaded, for anything that does not fit; while they are, where they are
            damaged or of another kind.
        RunFailed: the model gives numbers that are not finite.
    """
    options.check()
    if options.threads:
        torch.set_num_threads(options.threads)
    runs.check_folder(options.out, "--out")
    plan = _plan(options)
    log = options.out / FOLDER
    with runs.opened(
        options.out, plan.run, may_differ=_PLACES.__contains__, foreign=lambda name: name == FOLDER
    ) as folder:
        missing = [s for s in plan.steps if not all(file.is_file() for file in token_log.shard_files(log, s))]
        if folder.finished and not missing:
            say(f"{options.out} is finished; nothing was done")
        else:
            total = len(plan.responses)
            start = f"{total - plan.count(missing)} of {total} responses"
            with folder.working(start, "the finished mini-batches are kept; the same command goes on from here"):
                store.write_atomic(log / TOKENIZER, (plan.model.path / TOKENIZER).read_bytes())
                for note in folder.record.notes:
                    say(f"note: {note}")
                _score(plan, missing)
        say(_summary(options.out))


def _plan(o: Options) -> ProbePlan:
    model = model_files.find(o.model)
    watch = encoding.watched(o.watch, model)
    source = forms.read(o.data, data_dir=o.data_dir, all_positive=o.all_positive)
    tokens, notes = encoding.encode(source.rows, model, end_of_turn=not o.no_eos)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if o.device == "auto" else o.device
    header = LogHeader(
        mode=o.mode, selector="silence_spurious", tau_p=o.tau_p, q=o.q, vocabulary=model.vocabulary, watch=watch
    )
    config = asdict(o) | {p: None if getattr(o, p) is None else str(getattr(o, p)) for p in _PLACES}
    config |= {"watch": list(watch), "device": device, "threads": torch.get_num_threads(), "form": source.form}
    data = {"data": f"sha256:{store.sha256_file(o.data)}"}
    run = provenance.new_run(
        "probe",
        config,
        seeds={},
        deterministic=device == "cpu",
        revisions=model.revisions | data | source.revisions,
        parent_run=source.parent_run,
    )
    run = run.model_copy(update={"notes": [*source.notes, *notes]})
    return ProbePlan(o, model, source.rows, tokens, header, device, run)


def _score(plan: ProbePlan, steps: Sequence[int]) -> None:
    o, total = plan.options, len(plan.responses)
    before, scored = total - plan.count(steps), 0
    scorer = Scorer(plan.model, dtype=o.dtype, device=plan.device)
    scorer.check(plan.tokens[0])
    began = time.monotonic()

    def show(in_hand: int) -> None:
        new = scored + in_hand
        done = before + new
        terminal.report_progress("probe", done, total)
        left = (time.monotonic() - began) / new * (total - done)
        display.show(f"{done:,} of {total:,} responses, about {duration(left)} left", done / total)

    with Display() as display:
        for step in steps:
            responses, tokens = plan.responses[plan.members(step)], plan.tokens[plan.members(step)]
            scores = scorer.score(tokens, batch_tokens=o.batch_tokens, temperature=o.temperature, done=show)
            part = logged(
                scored_mini_batch(step, responses, tokens, scores, plan.header), o.mode, plan.header.watch, o.most_rows
            )
            rows, _ = joined_rows([part.rows], o.most_rows)
            header = plan.header.model_copy(update={"left_out": part.left_out})
            token_log.write(o.out / FOLDER, step, rows, joined_counts([part.counts]), header)
            scored += len(responses)
            show(0)


def _summary(out: Path) -> str:
    """The log in a few lines, and the next command."""
    log = token_log.read(out)
    assert log is not None
    h = {name: log.histogram[name].to_numpy() for name in ("sign", "rare", "silenced", "tokens")}
    tokens, positive = h["tokens"], h["sign"] > 0
    counts = {
        "response tokens": tokens.sum(),
        "in responses with a positive advantage": tokens[positive].sum(),
        f"of these with p < {log.header.tau_p:g} (rare)": tokens[h["rare"]].sum(),
        "of these silenced by S2T": tokens[h["silenced"]].sum(),
    }
    width = max(len(f"{n:,}") for n in counts.values())
    lines = [f"{n:>{width},}  {name}" for name, n in counts.items()]
    if log.header.left_out:
        lines.append(f"{log.header.left_out:,} rows were left out by --most-rows; the counts have them")
    if not positive.any():
        lines.append("no response has a positive advantage, so that no token is rare (docs/tokens.md, Advantages)")
    return "\n".join([*lines, f"next: stapo-repro tokens {out}"])
