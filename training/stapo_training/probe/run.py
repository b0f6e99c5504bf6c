"""`stapo-train probe`: a model's own numbers at the tokens of existing responses, and what S2T would silence.

OUT/run.json                  schema.Run, kind "probe"
OUT/token_log/                the token log (stapo_results.token_log); a step is a mini-batch of responses
OUT/token_log/tokenizer.json  the model's
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from stapo_results import provenance, runs, store, terminal, token_log
from stapo_results.terminal import Display
from stapo_results.token_log import FOLDER, TOKENIZER, LogHeader
from stapo_training.probe import encoding, responses
from stapo_training.probe.options import Options
from stapo_training.probe.scoring import Scorer, scored_mini_batch
from stapo_training.token_log.rows import joined_counts, joined_rows, logged

_PLACES = ("model", "data", "data_dir", "out")
"""Options that say where something is; a run's revisions say what was there."""


def probe(o: Options, say: Callable[[str], None] = print) -> None:
    """Score the responses of a file into `o.out`, or go on with a probe that was interrupted.

    Raises:
        BadInput: before the model's weights are loaded, for anything that does not fit; while they are, where they are
            damaged or of another kind.
        RunFailed: the model gives numbers that are not finite.
    """
    o.check()
    runs.check_folder(o.out, "--out")
    model = encoding.find_model(o.model)
    source = responses.read(o.data, data_dir=o.data_dir)
    tokens, notes = encoding.encode(source.rows, model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = asdict(o) | {p: None if getattr(o, p) is None else str(getattr(o, p)) for p in _PLACES}
    run = provenance.new_run(
        "probe",
        config | {"device": device, "threads": torch.get_num_threads(), "form": source.form},
        seeds={},
        deterministic=device == "cpu",
        revisions=model.revisions | {"data": f"sha256:{store.sha256_file(o.data)}"} | source.revisions,
        parent_run=source.parent_run,
    )
    run = run.model_copy(update={"notes": [*source.notes, *notes]})
    log, total = o.out / FOLDER, len(tokens)
    of_step = dict(enumerate((slice(i, min(i + o.mini_batch, total)) for i in range(0, total, o.mini_batch)), 1))
    with runs.opened(o.out, run, may_differ=_PLACES.__contains__, foreign=lambda name: name == FOLDER) as folder:
        missing = {s: m for s, m in of_step.items() if not all(f.is_file() for f in token_log.shard_files(log, s))}
        done = total - sum(m.stop - m.start for m in missing.values())
        if folder.finished and not missing:
            say(f"{o.out} is finished; nothing was done")
        else:
            kept = "the finished mini-batches are kept; the same command goes on from here"
            with folder.working(f"{done} of {total} responses", kept), Display() as display:
                store.write_atomic(log / TOKENIZER, (model.path / TOKENIZER).read_bytes())
                for note in folder.record.notes:
                    say(f"note: {note}")
                scorer = Scorer(model, dtype=o.dtype, device=device)
                scorer.check(tokens[0])
                header = LogHeader(
                    mode=o.mode, selector="silence_spurious", tau_p=o.tau_p, q=o.q, vocabulary=model.vocabulary
                )
                for step, members in missing.items():

                    def show(in_hand: int, before: int = done) -> None:
                        terminal.report_progress("probe", before + in_hand, total)
                        display.show(f"{before + in_hand:,} of {total:,} responses", (before + in_hand) / total)

                    scores = scorer.score(tokens[members], batch_tokens=o.batch_tokens, done=show)
                    batch = scored_mini_batch(step, source.rows[members], tokens[members], scores, header)
                    part = logged(batch, o.mode, header.watch, o.most_rows)
                    rows, _ = joined_rows([part.rows], o.most_rows)
                    own = header.model_copy(update={"left_out": part.left_out})
                    token_log.write(log, step, rows, joined_counts([part.counts]), own)
                    done += members.stop - members.start
        say(f"next: stapo-repro tokens {o.out}")
