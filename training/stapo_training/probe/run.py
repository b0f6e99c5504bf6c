"""`stapo-train probe`: a model's own numbers at the tokens of existing responses, and what S2T would silence.

OUT/run.json                  schema.Run, kind "probe"
OUT/token_log/                the token log (stapo_results.token_log); a step is a mini-batch of responses
OUT/token_log/tokenizer.json  the model's
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stapo_results import provenance, store, targets, token_log
from stapo_results.errors import BadInput, short_hashes
from stapo_results.schema import Run
from stapo_results.token_log import FOLDER, TOKENIZER, Facts
from stapo_training.probe import encoding, model_files, responses, selection
from stapo_training.probe.encoding import Encoded
from stapo_training.probe.model_files import ModelFolder
from stapo_training.probe.options import Options
from stapo_training.probe.responses import Responses
from stapo_training.probe.scoring import Scorer
from stapo_training.probe.telling import Lines, summary
from stapo_training.token_log.rows import joined_counts, joined_rows, logged

_PLACES = ("model", "data", "data_dir", "out")
"""Options that say where something is; what was there stands in the record's revisions."""


@dataclass(frozen=True)
class Plan:
    """What is to be done; everything in it was checked."""

    options: Options
    model: ModelFolder
    found: Responses
    encoded: Encoded
    facts: Facts
    device: str
    run: Run

    @property
    def steps(self) -> int:
        return -(-len(self.found.rows) // self.options.mini_batch)

    def members(self, step: int) -> slice:
        """The responses of a mini-batch, counted from 1."""
        return slice((step - 1) * self.options.mini_batch, step * self.options.mini_batch)


def probe(options: Options, say: Callable[[str], None] = print) -> None:
    """Score the responses of a file into `options.out`, or go on where an earlier call was cut off.

    Raises:
        BadInput: before the model's weights are loaded, for anything that does not fit; while they are, where they are
            damaged or of another kind.
        RunFailed: the model gives numbers that are not finite.
    """
    _check_options(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    plan = _plan(options)
    with targets.one_writer(options.out, "--out"):
        run, spent = _settle(plan)
        todo = [step for step in range(1, plan.steps + 1) if not _is_there(options.out, step)]
        if run.status == "done" and not todo:
            say(f"{options.out} is finished; nothing was done")
        else:
            _carry_out(plan, run.model_copy(update={"status": "running"}), spent, todo, say)
        say(summary(options.out))


def _check_options(o: Options) -> None:
    targets.check_folder(o.out, "--out")
    for flag, value, right, expected in (
        ("--tau-p", o.tau_p, 0 < o.tau_p <= 1, "above 0, at most 1"),
        ("--q", o.q, 0 <= o.q <= 1, "0 to 1"),
        ("--temperature", o.temperature, 0 < o.temperature < float("inf"), "above 0"),
        ("--mini-batch", o.mini_batch, o.mini_batch >= 1, "1 or more"),
        ("--batch-tokens", o.batch_tokens, o.batch_tokens >= 1, "1 or more"),
        ("--most-rows", o.most_rows, o.most_rows >= 1, "1 or more"),
        ("--threads", o.threads, o.threads >= 0, "0 (torch's own number) or more"),
    ):
        if not right:
            raise BadInput(f"{flag} is out of range", found=value, expected=expected, next_step=f"leave out {flag}")
    if o.device == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "--device cuda, and torch finds no GPU",
            found=f"torch {torch.__version__}",
            next_step="leave out --device, or install torch for CUDA (requirements/gpu.txt)",
        )


def _plan(o: Options) -> Plan:
    model = model_files.find(o.model)
    watch = encoding.watched(o.watch, model)
    found = responses.read(o.data, data_dir=o.data_dir, all_positive=o.all_positive)
    encoded = encoding.encode(found.rows, model, end_of_turn=not o.no_eos)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if o.device == "auto" else o.device
    facts = Facts(
        mode=o.mode, selector="silence_spurious", tau_p=o.tau_p, q=o.q, vocabulary=model.vocabulary, watch=watch
    )
    config = asdict(o) | {p: None if getattr(o, p) is None else str(getattr(o, p)) for p in _PLACES}
    config |= {"watch": list(watch), "device": device, "threads": torch.get_num_threads(), "form": found.form}
    data = {"data": f"sha256:{store.sha256_file(o.data)}"}
    run = provenance.new_run(
        "probe",
        config,
        seeds={},
        deterministic=device == "cpu",
        revisions=model.revisions | data | dict(found.revisions),
        parent_run=found.parent_run,
    )
    run = run.model_copy(update={"notes": [*found.notes, *encoded.notes]})
    return Plan(o, model, found, encoded, facts, device, run)


def _is_there(out: Path, step: int) -> bool:
    return all(file.is_file() for file in token_log.shard_files(out / FOLDER, step))


def _settle(plan: Plan) -> tuple[Run, float]:
    """(the record to go on with, seconds that earlier calls took).

    Raises:
        BadInput: the folder holds something else.
    """
    out, new = plan.options.out, plan.run
    if not (out / "run.json").exists():
        if (out / FOLDER).exists():
            raise BadInput(f"{out} holds a token log without a run record", next_step="give another --out")
        return new, 0.0
    old = store.read_json(out / "run.json", Run)
    differing = [
        f"{key}: {before.get(key)!r} there, {now.get(key)!r} now"
        for before, now in ((old.config, new.config), (old.revisions, new.revisions))
        for key in sorted({*before, *now} - (set(_PLACES) if now is new.config else set()))
        if before.get(key) != now.get(key)
    ]
    if old.kind != "probe" or differing:
        raise BadInput(
            f"{out} holds another run",
            found=short_hashes("; ".join(differing)) if old.kind == "probe" else f"a run of kind {old.kind}",
            expected="a probe of the same model and data with the same options, to go on with it",
            next_step="give another --out, or the options of that run",
        )
    if old.status == "done":
        return old, old.wall_seconds or 0.0
    notes = [*old.notes, "resumed after an interruption"]
    if (old.code_commit, old.code_dirty) != (new.code_commit, new.code_dirty):
        notes.append(f"resumed with code {new.code_commit[:12]} {new.code_dirty}".strip())
    return old.model_copy(update={"notes": notes}), old.wall_seconds or 0.0


def _carry_out(plan: Plan, run: Run, spent: float, todo: list[int], say: Callable[[str], None]) -> None:
    out, began, status = plan.options.out, time.perf_counter(), "failed"
    store.sweep(out)
    store.write_json(out / "run.json", run)
    try:
        store.write_atomic(out / FOLDER / TOKENIZER, (plan.model.path / TOKENIZER).read_bytes())
        for note in run.notes:
            say(f"note: {note}")
        _score(plan, todo, say)
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise KeyboardInterrupt("the finished mini-batches are kept; the same command goes on from here") from None
    finally:
        provenance.close_run(run, out / "run.json", status, spent + time.perf_counter() - began)


def _score(plan: Plan, todo: list[int], say: Callable[[str], None]) -> None:
    o, total = plan.options, len(plan.found.rows)
    lines = Lines(total, total - sum(len(plan.found.rows[plan.members(step)]) for step in todo), say)
    scorer = Scorer(plan.model, dtype=o.dtype, device=plan.device)
    scorer.check(plan.encoded.rows[0])
    for step in todo:
        here = plan.members(step)
        rows, tokens = plan.found.rows[here], plan.encoded.rows[here]
        scores = scorer.score(tokens, batch_tokens=o.batch_tokens, temperature=o.temperature, done=lines.tell)
        judged = selection.judge(step, rows, tokens, scores, plan.facts)
        part = logged(judged, plan.facts.mode, plan.facts.watch, o.most_rows)
        kept, _ = joined_rows([part.rows], o.most_rows)
        facts = plan.facts.model_copy(update={"left_out": part.left_out})
        token_log.write(o.out / FOLDER, step, kept, joined_counts([part.counts]), facts)
        lines.finished(len(rows))
