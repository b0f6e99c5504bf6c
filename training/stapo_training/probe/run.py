"""`stapo-train probe`: a model's own numbers at the tokens of existing responses, and what S2T would silence.

OUT/run.json                  schema.Run, kind "probe"
OUT/token_log/                the token log (stapo_results.token_log); a step is a mini-batch of responses
OUT/token_log/tokenizer.json  the model's
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from stapo_results import provenance, runs, store, terminal, token_log
from stapo_results.schema import Run
from stapo_results.terminal import Display
from stapo_results.token_log import FOLDER, TOKENIZER, LogHeader
from stapo_training.probe import encoding, responses
from stapo_training.probe.encoding import ModelFolder, Tokens
from stapo_training.probe.options import Options
from stapo_training.probe.responses import Response
from stapo_training.probe.scoring import Scorer, scored_mini_batch
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
        say(f"next: stapo-repro tokens {options.out}")


def _plan(o: Options) -> ProbePlan:
    model = encoding.find_model(o.model)
    source = responses.read(o.data, data_dir=o.data_dir)
    tokens, notes = encoding.encode(source.rows, model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    header = LogHeader(mode=o.mode, selector="silence_spurious", tau_p=o.tau_p, q=o.q, vocabulary=model.vocabulary)
    config = asdict(o) | {p: None if getattr(o, p) is None else str(getattr(o, p)) for p in _PLACES}
    config |= {"device": device, "threads": torch.get_num_threads(), "form": source.form}
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
    done = total - plan.count(steps)
    scorer = Scorer(plan.model, dtype=o.dtype, device=plan.device)
    scorer.check(plan.tokens[0])
    with Display() as display:
        for step in steps:
            rows, tokens = plan.responses[plan.members(step)], plan.tokens[plan.members(step)]

            def show(in_hand: int, before: int = done) -> None:
                terminal.report_progress("probe", before + in_hand, total)
                display.show(f"{before + in_hand:,} of {total:,} responses", (before + in_hand) / total)

            scores = scorer.score(tokens, batch_tokens=o.batch_tokens, done=show)
            batch = scored_mini_batch(step, rows, tokens, scores, plan.header)
            part = logged(batch, o.mode, plan.header.watch, o.most_rows)
            kept, _ = joined_rows([part.rows], o.most_rows)
            header = plan.header.model_copy(update={"left_out": part.left_out})
            token_log.write(o.out / FOLDER, step, kept, joined_counts([part.counts]), header)
            done += len(rows)
