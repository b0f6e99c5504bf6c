"""`stapo-train probe`: a model's own numbers at the tokens of existing responses, and what a mask would silence.

OUT/run.json                  schema.Run, kind "probe"
OUT/token_log/                the token log (stapo_results.token_log); a step is a mini-batch of responses
OUT/token_log/tokenizer.json  the model's
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from stapo_results import provenance, runs, store, terminal, token_log
from stapo_results.errors import BadInput
from stapo_results.terminal import Display
from stapo_results.token_log import FOLDER, TOKENIZER, LogHeader
from stapo_training.methods import SelectorConfig, validated
from stapo_training.selection import own

_PLACES = ("model", "data", "out")
"""Options that say where something is; a run's revisions say what was there."""


@dataclass(frozen=True)
class ProbeOptions:
    """Options with the help that the command line shows."""

    model: Path
    """Folder with config.json, tokenizer.json and *.safetensors."""
    data: Path
    """Responses, .jsonl or .parquet, such as stapo-eval export --to responses writes."""
    out: Path
    """Folder to make; to resume an interrupted probe, repeat the command."""
    tau_p: float = 0.002
    """A token of a response with a positive advantage is rare below this probability."""
    q: float = 0.75
    """The share of a mini-batch's rare tokens that S2T silences, those of lowest entropy."""
    selector: str = "silence_spurious"
    """The mask: of ours by name, or FILE.py:FUNCTION. tau_p and q are given to it."""
    mini_batch: int = 512
    """Responses, in the order of the file, that share one entropy threshold."""
    group: int = 0
    """Samples of a prompt that are a group, as in a training: by their numbers, the first group of each prompt first.
    If 0, all samples of a prompt are one group."""
    mode: Literal["on", "full"] = "on"
    """on: rows for rare tokens, counts for all. full: rows for all."""
    most_rows: int = 50_000
    """Rows of a mini-batch; of more, as many are kept, evenly spread. The counts have all."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Of weights and hidden states; the statistics are float32."""
    batch_tokens: int = 0
    """Tokens scored at a time, padding included; if 0, 16,384 on a GPU and 1,024 on a CPU, where padding costs."""

    @property
    def mask(self) -> SelectorConfig:
        """Raises BadInput for no such selector, or one that cannot be loaded."""
        given = {"name": self.selector, "tau_p": self.tau_p, "q": self.q}
        return validated(SelectorConfig, given, "--selector", "a selector of ours by name, or FILE.py:FUNCTION")

    def check(self) -> None:
        """Raises BadInput for a number out of range."""
        for flag, value, right, expected in (
            ("--tau-p", self.tau_p, 0 < self.tau_p <= 1, "above 0, at most 1"),
            ("--q", self.q, 0 <= self.q <= 1, "0 to 1"),
            ("--mini-batch", self.mini_batch, self.mini_batch >= 1, "1 or more"),
            ("--group", self.group, self.group != 1 and self.group >= 0, "2 or more, or 0"),
            ("--batch-tokens", self.batch_tokens, self.batch_tokens >= 0, "0 or more"),
            ("--most-rows", self.most_rows, self.most_rows >= 1, "1 or more"),
        ):
            if not right:
                raise BadInput(f"{flag} is out of range", found=value, expected=expected, next_step=f"leave out {flag}")


def probe(o: ProbeOptions, say: Callable[[str], None] = print) -> None:
    """Score the responses of a file into `o.out`, or resume an interrupted probe.

    Raises:
        BadInput: before the model's weights are loaded, for anything that does not fit; while they are, where they are
            damaged or of another kind.
        RunFailed: the model gives numbers that are not finite.
    """
    import torch

    from stapo_training.probe import encoding, responses
    from stapo_training.probe.scoring import Scorer, scored_mini_batch
    from stapo_training.token_log.rows import logged
    from stapo_training.token_log.writer import write_step

    o.check()
    mask = o.mask
    runs.check_folder(o.out, "--out")
    model = encoding.find_model(o.model)
    rows = responses.read(o.data, o.group)
    if all(r.advantage == 0 for r in rows):
        say("note: every advantage is 0: no token is rare. A prompt needs right and wrong responses")
    tokens = encoding.encode(rows, model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    o = replace(o, batch_tokens=o.batch_tokens or (16_384 if device == "cuda" else 1_024))
    named = Path(mask.name).name if own.is_file(mask.name) else mask.name  # its hash says which file
    config = asdict(o) | {p: str(getattr(o, p)) for p in _PLACES} | {"selector": named}
    own_file = {"selector": f"sha256:{store.sha256_file(own.file_of(mask.name))}"} if own.is_own(mask.name) else {}
    run = provenance.new_run(
        "probe",
        config | {"device": device, "threads": torch.get_num_threads()},
        seeds={},
        deterministic=device == "cpu",
        revisions=model.revisions | own_file | {"data": f"sha256:{store.sha256_file(o.data)}"},
    )
    log, total = o.out / FOLDER, len(tokens)
    of_step = dict(enumerate((slice(i, min(i + o.mini_batch, total)) for i in range(0, total, o.mini_batch)), 1))
    if empty := [s for s, m in of_step.items() if not any(len(t.response) for t in tokens[m])]:
        raise BadInput(f"mini-batch {empty[0]} has empty responses alone", found=rows[of_step[empty[0]]][0].where,
                       expected="a token to score", next_step="a larger --mini-batch, or leave them out")  # fmt: skip
    with runs.opened(
        o.out,
        run,
        may_differ=lambda key: key in _PLACES or (key == "revision settings" and runs.lacks(o.out, "settings")),
        older=lambda c: {"selector": "silence_spurious", "group": 0, **c},
        foreign=[FOLDER],
    ) as folder:
        missing = {s: m for s, m in of_step.items() if not all(f.is_file() for f in token_log.shard_files(log, s))}
        done = total - sum(m.stop - m.start for m in missing.values())
        if folder.finished and not missing:
            say(f"{o.out} is finished; nothing was done")
        else:
            kept = "the finished mini-batches are kept; repeat the command to resume"
            with folder.working(f"{done} of {total} responses", kept), Display() as display:
                scorer = Scorer(model, dtype=o.dtype, device=device)
                scorer.check(tokens[0])
                store.write_atomic(log / TOKENIZER, (model.path / TOKENIZER).read_bytes())
                header = LogHeader(mode=o.mode, selector=named, tau_p=o.tau_p, q=o.q, vocabulary=model.vocabulary)
                for step, members in missing.items():

                    def show(in_hand: int, before: int = done) -> None:
                        terminal.report_progress("probe", before + in_hand, total)
                        display.show(f"{before + in_hand:,} of {total:,} responses", (before + in_hand) / total)

                    scores = scorer.score(tokens[members], batch_tokens=o.batch_tokens, done=show)
                    batch = scored_mini_batch(step, rows[members], tokens[members], scores, mask)
                    part = logged(batch, o.mode, header.watch, o.most_rows)
                    write_step(log, step, [part], header, most_rows=o.most_rows)
                    done += members.stop - members.start
        say(f"next: stapo-repro tokens {o.out}")
