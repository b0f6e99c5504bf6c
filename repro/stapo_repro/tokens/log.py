"""A token log with what is beside it: the run's record, its metrics, the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from stapo_repro import labels
from stapo_repro.read import TrainingRun, read_steps, run_part
from stapo_repro.text import model_text, visible
from stapo_results import store, token_log
from stapo_results.errors import BadInput, RecordError, message_of
from stapo_results.schema import Run, StepMetrics
from stapo_results.sizes import is_miniature_size

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Mapping[str, np.ndarray]
_NOT_SCALAR = ("prompt_id", "top_tokens", "top_logprobs", "before", "after")
_MARKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
_OTHER_SPACE = re.compile(r"[^\S \n\t]")


class Vocabulary:
    """A tokenizer's vocabulary as text. A token that is a part of a character is shown as U+FFFD."""

    def __init__(self, path: Path):
        """Raises: RecordError when there is no such file, or it is no tokenizer."""
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as e:  # noqa: BLE001  the library raises no narrower class
            raise RecordError(
                f"{path}: not a tokenizer",
                found=message_of(e),
                next_step="copy the model's tokenizer.json there: the log's ids cannot be read without it",
            ) from None

    @cache  # noqa: B019  a vocabulary lives as long as the command
    def one(self, token: int) -> str:
        """The token alone; an id without a token as its number."""
        if token < 0 or self._tokenizer.id_to_token(token) is None:
            return f"⟨id {token}⟩"
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def several(self, tokens: Sequence[int]) -> str:
        """Consecutive tokens. A character that begins or ends outside of them is U+FFFD."""
        if any(self.one(t) == f"⟨id {t}⟩" for t in tokens):
            return "".join(map(self.one, tokens))
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


def marked(text: str) -> str:
    """A text on one line with a mark for all white space: ␣ a space, ⏎ a line's end, ⇥ a tab, others their code."""
    shown = _OTHER_SPACE.sub(lambda m: f"⟨U+{ord(m[0]):04X}⟩", visible(text))
    return shown.translate(_MARKS) or "(empty)"


def in_text(before: str, token: str, after: str) -> str:
    """A token in its text, in bold, as a Markdown cell."""
    return f"{model_text(before)}<b>{model_text(marked(token))}</b>{model_text(after)}"


@dataclass(frozen=True)
class LoggedRun:
    """A token log of R rows and B counts, with its run.

    Attributes:
        folder: of the run.
        method, size: as its record says, else the log's selector and "".
        record: the run's own, None where there is none.
        metrics: by step, the last attempt of each; empty for a probe.
        table: the logged tokens, `token_log.TOKENS`.
        rows: its scalar columns, (R,) each; `tau_h` is NaN where the mini-batch has no rare token.
        counts: the columns of `token_log.HISTOGRAM`, which counts all tokens, (B,) each.
        inputs: file -> SHA-256 of everything that was read.
    """

    folder: Path
    method: str
    size: str
    record: Run | None
    metrics: dict[int, StepMetrics]
    table: pa.Table
    rows: Columns
    counts: Columns
    header: token_log.LogHeader
    vocabulary: Vocabulary
    inputs: dict[str, str]

    @property
    def name(self) -> str:
        """The run folder's own."""
        return self.folder.resolve().name

    @property
    def masks_rare(self) -> bool:
        """Whether the method is a mask over rare tokens, one of ours or one that silenced no other token; of other
        methods it is shown what S2T would silence."""
        silenced = self.counts["silenced"].astype(bool)
        other = silenced & ~(self.counts["rare"].astype(bool) & (self.counts["sign"] > 0))
        return self.header.selector in token_log.RARE_SELECTORS or bool(silenced.any() and not other.any())

    @property
    def is_probe(self) -> bool:
        """Whether nothing was trained: a model was asked about responses, and a step is a mini-batch of them."""
        return self.record is not None and self.record.kind == "probe"

    @property
    def part_names(self) -> tuple[str, str]:
        """What the two parts of the rare tokens are called: those silenced, those kept."""
        if self.masks_rare and not self.is_probe:
            return "silenced", "kept"
        who = "the mask" if self.masks_rare and self.header.selector != "silence_spurious" else "S2T"
        return f"{who} would silence", f"{who} would keep"

    @cached_property
    def below(self) -> np.ndarray:
        """(R,) whether the entropy is below the mini-batch's tau_h; False where there is none."""
        return self.rows["entropy"].astype(np.float64) < self.rows["tau_h"]

    @cached_property
    def silenced(self) -> np.ndarray:
        """(R,) rare tokens that are silenced; those S2T would silence where the method is no mask over them."""
        return self.rows["rare"] & (self.rows["silenced"] if self.masks_rare else self.below)

    @cached_property
    def kept(self) -> np.ndarray:
        """(R,) the other rare tokens."""
        return self.rows["rare"] & ~self.silenced

    @cached_property
    def thresholds(self) -> np.ndarray:
        """tau_h in nats of every mini-batch with a rare token, infinite where q is 0 or 1."""
        known = ~np.isnan(self.rows["tau_h"])
        _, first = np.unique(batch_keys(self.rows)[known], return_index=True)
        return self.rows["tau_h"][known][first]

    def heading(self, text: str) -> str:
        """A figure's title; a miniature says so in it, a probe that it is one."""
        if self.is_probe:
            return f"{text}: a probe"
        size = f", {labels.size_label(self.size)}" if self.size else ""
        size = " (miniature)" if is_miniature_size(self.size) else size
        return f"{text}: {labels.method_label(self.method)}{size}"

    @property
    def caption_opening(self) -> str:
        """What a caption says of a model that is none of the paper's, and which training it is."""
        seed = run_part(self.record).get("seed") if self.record else None
        status = self.record.status if self.record else "done"
        parts = [labels.what_it_is(self.size), f"Seed {seed}." if seed is not None else "",
                 f"The training is not finished ({status})." if status != "done" else ""]  # fmt: skip
        return "".join(f"{part} " for part in parts if part)

    def records(self, index: np.ndarray) -> list[dict[str, Any]]:
        """Rows of the log with all columns, in the order of `index`."""
        return self.table.take(index).to_pylist()


def run_label(run: TrainingRun) -> str:
    """Such as "STAPO, seed 0"; of a run that is not done with its status."""
    status = "" if run.status == "done" else f" ({run.status})"
    return f"{labels.method_label(run.method)}, seed {run.seed}{status}"


def batch_keys(columns: Columns) -> np.ndarray:
    """One number for each row's step and mini-batch, in their order."""
    return columns["step"].astype(np.int64) << 16 | columns["mini_batch"].astype(np.int64)


def load(folder: Path) -> LoggedRun:
    """Read a run folder.

    Raises:
        BadInput: no token log there.
        RecordError: a damaged file (`token_log.read`), run record or line of the metrics, or a finished training of
            which the log lacks steps.
    """
    log = token_log.read(folder)
    if log is None:
        raise BadInput(
            f"{folder} has no token log",
            found=f"no {token_log.FOLDER}/*.parquet there",
            expected="a training run that logged its tokens, a collected record of one, or the folder of a probe",
            next_step="name such a folder, or score responses with stapo-train probe",
        )
    tokenizer, run_file, metrics_file = token_log.tokenizer_file(folder), folder / "run.json", folder / "metrics.jsonl"
    shards = token_log.shards(folder / token_log.FOLDER)
    read = {file.relative_to(folder).as_posix(): file for shard in shards for file in shard}
    read[f"{token_log.FOLDER}/{token_log.TOKENIZER}"] = tokenizer
    read |= {file.name: file for file in (run_file, metrics_file) if file.is_file()}
    record = store.read_json(run_file, Run) if run_file.is_file() else None
    part = run_part(record) if record else {}
    live = record is not None and record.status != "done" and record.cut is None
    metrics = {m.step: m for m in read_steps(metrics_file, live)} if metrics_file.is_file() else {}
    done = record is not None and record.status == "done" and not record.synthetic
    if done and (lost := {step for step in metrics if step} - {*log.histogram["step"].to_pylist()}):
        raise RecordError(f"{folder}: the token log lacks steps", found=f"none of step {min(lost)}",
                          expected=f"all of {min(set(metrics) - {0})} to {max(metrics)}",
                          next_step="copy the folder whole")  # fmt: skip
    return LoggedRun(
        folder=folder,
        method=str(part.get("method") or log.header.selector),
        size=str(part.get("size") or ""),
        record=record,
        metrics=metrics,
        table=log.tokens,
        rows={name: log.tokens[name].to_numpy() for name in token_log.TOKENS if name not in _NOT_SCALAR},
        counts={name: log.histogram[name].to_numpy() for name in token_log.HISTOGRAM},
        header=log.header,
        vocabulary=Vocabulary(tokenizer),
        inputs={name: store.sha256_file(file) for name, file in read.items()},
    )


def log_of(run: TrainingRun) -> LoggedRun | None:
    """The token log of a run; None where its folder has none."""
    return load(run.folder) if (run.folder / token_log.FOLDER).is_dir() else None
