"""The token log: what single tokens of a training, or of responses that a model was asked about, looked like.

    RUN/token_log/00000012.parquet            step 12: one row a logged token (TOKENS)
    RUN/token_log/histogram/00000012.parquet  step 12: counts of all response tokens (HISTOGRAM)
    RUN/token_log/tokenizer.json              the model's, so that ids can be read without it

A token is *rare* when its response has a positive advantage and its probability is below tau_p: S2T's candidates,
whatever the method does with them. Of rare tokens, those with an entropy below tau_h (`tau_h`: the q-quantile of the
mini-batch's rare tokens) are what S2T silences; `silenced` says what this method did. Sampler and trainer give a
sampled token slightly different probabilities: `mismatched` marks where these differ most. In mode "on" the rows are
the rare tokens and those of the ids in `LogHeader.watch` whose response has a positive advantage; in mode "full" all.

Each file is written in one step and holds its schema version and `LogHeader` in its metadata. Several steps may stand
in one file (`stapo-repro collect` joins them): `step` is a column.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict

from stapo_results import store
from stapo_results.errors import RecordError, message_of
from stapo_results.methods import methods
from stapo_results.schema import Run

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER, HISTOGRAMS, TOKENIZER = "token_log", "histogram", "tokenizer.json"
RARE_SELECTORS = {e["definition"]["selector"] for e in methods().values() if e.get("rare")}
"""The selectors that choose among the rare tokens, which all have a row: a log's silenced rows are all that they
silenced. What another selector silenced is in the histogram alone."""
_KEY = b"stapo_token_log"

LOG10_P_EDGES = np.arange(-12.0, 0.01, 0.25)
"""Edges of the histogram's bins of log10 p; bin i begins at edge i. What lies below the first edge is in bin 0."""
ENTROPY_EDGES = np.arange(0.0, 12.51, 0.125)
"""Edges of its bins of entropy, nats; what lies above the last edge is in the last bin."""

TOKENS: dict[str, str] = {
    "step": "int32",
    "mini_batch": "int16",  # of the step, from 1
    "prompt_id": "string",
    "sample": "int16",  # of the prompt's responses, from 0
    "position": "int32",  # in the response, from 0
    "token": "int32",
    "advantage": "float32",
    "logprob": "float32",  # nats, under the policy that the selector judges by, as is entropy
    "entropy": "float32",
    "ratio": "float32",  # p / p_old as the update saw it
    "old_logprob": "float32",  # nats, what the trainer gave the token before the step's first update
    "sampler_logprob": "float32",  # and what the sampler gave it, with the same weights; null where that is not known
    "mismatched": "bool",  # of its mini-batch's largest |old - sampler|: as many tokens with A > 0 as S2T would silence
    "clipped": "bool",  # the clip leaves the token no gradient (False where `LogHeader.loss` is not vanilla)
    "collision": "float32",  # sum of squared probabilities under the current policy, as are the top tokens
    "rare": "bool",
    "silenced": "bool",
    "tau_h": "float64",  # null where the mini-batch has no rare token
    "top_tokens": "int32s",
    "top_logprobs": "float32s",
    "before": "int32s",  # the ids before it, prompt included, and after it
    "after": "int32s",
}
HISTOGRAM: dict[str, str] = {
    "step": "int32",
    "mini_batch": "int16",
    "sign": "int8",  # of the advantage: -1, 0, 1
    "rare": "bool",
    "below": "bool",  # entropy below tau_h
    "silenced": "bool",
    "mismatched": "bool",
    "rises": "bool",  # log p + H < 0: a gradient step on it raises the entropy where A > 0 (the lemma)
    "log10_p": "int16",  # index of the bin
    "entropy": "int16",
    "tokens": "int64",
    "norm_sum": "float64",  # of their gradient norms with respect to the logits: |w| sqrt(1 - 2 p + sum of p_n^2)
}

# values that hardly repeat: a dictionary of them only costs room, and their bytes compress better column by column
_MEASURED = (
    "logprob", "entropy", "ratio", "old_logprob", "sampler_logprob", "collision", "top_logprobs", "norm_sum",
)  # fmt: skip


class LogHeader(BaseModel):
    """What holds for all rows of a file.

    selector: its name; of a file of one's own FILE.py:FUNCTION, without the folder, which is this machine's.
    policy: whose log-probabilities and entropies the rows have: the policy that the selector judges by. loss: veRL's
    policy loss; the clip and with it w of the gradient norm are known of "vanilla" alone, of others the norm is that of
    the surrogate without a clip.
    watch: where words were planted, the spurious ones; useful: the useful ones.
    left_out: rows that the bound on a step's rows, or on the log's size, kept out of this file; the histogram counts
    them. not_finite: response tokens without finite statistics, which are in neither.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[2] = 2
    mode: Literal["on", "full"]
    selector: Annotated[str, AfterValidator(lambda name: name.rpartition("/")[2])]
    tau_p: float
    q: float
    vocabulary: int
    policy: Literal["current", "old"] = "current"
    loss: str = "vanilla"
    watch: tuple[int, ...] = ()
    useful: tuple[int, ...] = ()
    left_out: int = 0
    not_finite: int = 0


@dataclass(frozen=True)
class TokenLog:
    """A log that was read whole: rows and histogram (TOKENS, HISTOGRAM), header (`left_out`, `not_finite` summed)."""

    tokens: pa.Table
    histogram: pa.Table
    header: LogHeader


def bins(logprob: np.ndarray, entropy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The histogram's bins (indices) of tokens: of log10 p and of entropy."""
    log10_p = np.searchsorted(LOG10_P_EDGES, logprob.astype(np.float64) / np.log(10.0), side="right") - 1
    in_nats = np.searchsorted(ENTROPY_EDGES, entropy.astype(np.float64), side="right") - 1
    return log10_p.clip(0, len(LOG10_P_EDGES) - 2), in_nats.clip(0, len(ENTROPY_EDGES) - 2)


def schema(columns: Mapping[str, str], header: LogHeader | None = None) -> pa.Schema:
    """The Arrow schema of TOKENS or HISTOGRAM, with the header in its metadata."""
    import pyarrow as pa

    def arrow(kind: str) -> pa.DataType:
        one = pa.type_for_alias(kind.removesuffix("s"))
        return pa.list_(one) if kind.endswith("s") else one

    return pa.schema(
        [(name, arrow(kind)) for name, kind in columns.items()], metadata=header and {_KEY: header.model_dump_json()}
    )


def to_bytes(columns: Mapping[str, str], values: Mapping[str, Any], header: LogHeader) -> bytes:
    """A table as Parquet. The same values give the same bytes (of one version of pyarrow)."""
    import pyarrow as pa

    wanted = schema(columns, header)
    # NaN in the place of a number that is not known becomes null: two logs that know as little are equal
    arrays = [pa.array(values[f.name], type=f.type, from_pandas=f.name == "sampler_logprob") for f in wanted]
    return _parquet(pa.Table.from_arrays(arrays, schema=wanted))


def _parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    leaves = {f.name: f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in table.schema}
    measured = [leaves[name] for name in _MEASURED if name in leaves]
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=9,
        use_dictionary=[leaf for leaf in leaves.values() if leaf not in measured],  # pyright: ignore[reportArgumentType]
        column_encoding=dict.fromkeys(measured, "BYTE_STREAM_SPLIT"),
        write_page_checksum=True,
    )
    return buffer.getvalue()


def shard_files(folder: Path, step: int) -> tuple[Path, Path]:
    """Where a step's rows and its histogram stand below a log's folder."""
    return folder / f"{step:08d}.parquet", folder / HISTOGRAMS / f"{step:08d}.parquet"


def read(run: Path) -> TokenLog | None:
    """The log of a run folder, in the order of its steps; None where there is none.

    A last step with counts and without rows is one whose writing was interrupted: it is left out, and training writes
    it again.

    Raises:
        RecordError: naming the file: it is damaged, of another schema, was written with other settings than the first,
            or a step's files are missing, one or both; or a step stands in two files.
    """
    rows, counts = shards(run / FOLDER)
    if not rows:
        return None
    tokens, header = _join(rows, TOKENS)
    histogram, _ = _join(counts, HISTOGRAM)
    there = np.unique(histogram["step"].to_numpy())
    if gap := sorted(set(range(*there[[0, -1]].tolist())) - set(there.tolist())) if len(there) else []:
        raise _missing(run / FOLDER, f"no counts of step {', '.join(map(str, gap[:5]))}")
    return TokenLog(tokens, histogram, header)


def join(run: Path) -> dict[str, bytes]:
    """The log of a run folder as one pair of files that can stand among records: the same rows, counts and header.

    Of a log in mode "full", which is too large for that, the rows of mode "on" are kept; the counts have all tokens.

    Returns:
        Path below the run's folder -> content: rows and counts, named after the first step, and the tokenizer where
        there is one, without its blanks and merges (no text becomes ids any more). The same log gives the same bytes,
        however its steps were split into files. Empty without a log.

    Raises:
        RecordError: as `read`.
    """
    log = read(run)
    if log is None:
        return {}
    folder, files = run / FOLDER, dict[Path, bytes]()
    first = int(min(folder.glob("*.parquet")).stem)
    tokens, header = log.tokens, log.header
    if header.mode == "full":
        token, advantage, rare = (tokens[name].to_numpy() for name in ("token", "advantage", "rare"))
        watched = np.isin(token, header.watch) & (advantage > 0)
        tokens = tokens.take(np.flatnonzero(rare | watched))
        counted = log.histogram["tokens"].to_numpy()[log.histogram["rare"].to_numpy()].sum()
        header = header.model_copy(update={"mode": "on", "left_out": int(counted - rare.sum())})
    metadata = schema(TOKENS, header).metadata
    for path, table in zip(shard_files(folder, first), (tokens, log.histogram), strict=True):
        files[path] = _parquet(table.combine_chunks().replace_schema_metadata(metadata))
    if (tokenizer := folder / TOKENIZER).exists():
        settings = json.loads(tokenizer.read_bytes())
        if "merges" in settings.get("model", ()):
            settings["model"]["merges"] = []
        files[tokenizer] = json.dumps(settings, ensure_ascii=False, separators=(",", ":")).encode()
    return {path.relative_to(run).as_posix(): data for path, data in files.items()}


def tokenizer_file(run: Path) -> Path:
    """The tokenizer of a run folder's log, which may not exist; of a record the one that `Cut.tokenizer` names.

    Raises:
        RecordError: a broken run record, or the copy that it names is not there.
    """
    file, record = run / FOLDER / TOKENIZER, run / "run.json"
    cut = store.read_json(record, Run).cut if record.is_file() and not file.is_file() else None
    return store.find_whole(run, "tokenizer", cut.tokenizer) if cut and cut.tokenizer else file


def shards(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of rows and of counts of a log's folder, a pair a step, as `read` takes them; raises as it does."""
    rows = sorted(folder.glob("*.parquet"))
    counts = sorted((folder / HISTOGRAMS).glob("*.parquet"))
    if counts and not (rows and rows[-1].name >= counts[-1].name):
        counts.pop()
    if lacking := {p.name for p in rows} ^ {p.name for p in counts}:
        where = "in" if min(lacking) in {p.name for p in counts} else "outside"
        raise _missing(folder, f"{min(lacking)} stands only {where} {HISTOGRAMS}/")
    return rows, counts


def _missing(folder: Path, found: str) -> RecordError:
    return RecordError(
        f"{folder}: files of the token log are missing",
        found=found,
        expected="a file of rows and one of counts for each step",
        next_step="copy the folder whole, or train from the last checkpoint again",
    )


def _join(files: Sequence[Path], columns: Mapping[str, str]) -> tuple[pa.Table, LogHeader]:
    import pyarrow as pa

    read, counted = [_read_file(f, columns) for f in files], ("left_out", "not_finite")
    settings = [header.model_copy(update=dict.fromkeys(counted, 0)) for _, header in read]
    for file, found in zip(files, settings, strict=True):
        if found != settings[0]:
            raise RecordError(
                f"{file}: written with other settings than {files[0].name}",
                found=found.model_dump_json(),
                expected=settings[0].model_dump_json(),
                next_step="read the logs of different runs apart",
            )
    steps = np.concatenate([np.unique(table["step"].to_numpy()) for table, _ in read])
    if len(twice := [step for step, n in zip(*np.unique(steps, return_counts=True), strict=True) if n > 1]):
        raise RecordError(f"{files[0].parent}: a step stands in two files", found=f"step {twice[0]}",
                          next_step="take away the file that is a copy")  # fmt: skip
    summed = {name: sum(getattr(header, name) for _, header in read) for name in counted}
    return pa.concat_tables([table for table, _ in read]), settings[0].model_copy(update=summed)


def _read_file(file: Path, columns: Mapping[str, str]) -> tuple[pa.Table, LogHeader]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # without pyarrow's threads: beside torch they abort every second process at its end (pyarrow 26, torch 2.13)
        data = io.BytesIO(file.read_bytes())
        table = pq.ParquetFile(data, pre_buffer=False, page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError) as e:
        raise RecordError(
            f"{file}: not a file of the token log",
            found=message_of(e),
            expected="Parquet",
            next_step="delete the step's two files and train from the last checkpoint, or take them from a backup",
        ) from None
    header = store.parse((table.schema.metadata or {}).get(_KEY, b""), LogHeader, str(file))
    if not table.schema.equals(schema(columns)):
        raise RecordError(
            f"{file}: other columns than schema version {header.schema_version} has",
            found=", ".join(f"{f.name} {f.type}" for f in table.schema),
            expected=", ".join(f"{f.name} {f.type}" for f in schema(columns)),
            next_step="read it with the version of this project that wrote it",
        )
    return table.replace_schema_metadata(None), header


def write(folder: Path, step: int, tokens: Mapping[str, Any], histogram: Mapping[str, Any], header: LogHeader) -> int:
    """Write a step's two files, each in one step; the rows come last, so that they never stand alone.

    Args:
        folder: the log's own, RUN/token_log.
        tokens, histogram: a sequence a column of TOKENS and HISTOGRAM.

    Returns:
        The bytes written.
    """
    rows_file, counts_file = shard_files(folder, step)
    counts, rows = to_bytes(HISTOGRAM, histogram, header), to_bytes(TOKENS, tokens, header)
    store.write_atomic(counts_file, counts)
    store.write_atomic(rows_file, rows)
    return len(counts) + len(rows)
