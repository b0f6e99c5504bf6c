"""The options of `stapo-train probe`; the command line and the run's record are made from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class Options:
    """Options with the help that the command line shows."""

    model: Path
    """Folder with config.json, tokenizer.json and *.safetensors."""
    data: Path
    """Responses, .jsonl or .parquet: samples.jsonl of stapo-eval run, veRL's rollout dump, or plain lines."""
    out: Path
    """Folder to make; the same command goes on with an interrupted probe."""
    data_dir: Path | None = None
    """Folder with the benchmarks' files, for samples.jsonl; by default where the evaluation found them."""
    tau_p: float = 0.002
    """A token of a response with a positive advantage is rare below this probability."""
    q: float = 0.75
    """The share of a mini-batch's rare tokens that S2T silences, those of lowest entropy."""
    mini_batch: int = 512
    """Responses, in the order of the file, that share one entropy threshold."""
    mode: Literal["on", "full"] = "on"
    """on: rows for rare tokens, counts for all. full: rows for all."""
    most_rows: int = 50_000
    """Rows of a mini-batch; of more, as many are kept, evenly spread. The counts have all."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Of weights and hidden states; the statistics are float32."""
    batch_tokens: int = 16_384
    """Tokens scored at a time, padding included."""

    def check(self) -> None:
        """Raises BadInput for a number out of range."""
        for flag, value, right, expected in (
            ("--tau-p", self.tau_p, 0 < self.tau_p <= 1, "above 0, at most 1"),
            ("--q", self.q, 0 <= self.q <= 1, "0 to 1"),
            ("--mini-batch", self.mini_batch, self.mini_batch >= 1, "1 or more"),
            ("--batch-tokens", self.batch_tokens, self.batch_tokens >= 1, "1 or more"),
            ("--most-rows", self.most_rows, self.most_rows >= 1, "1 or more"),
        ):
            if not right:
                raise BadInput(f"{flag} is out of range", found=value, expected=expected, next_step=f"leave out {flag}")
