"""The command: `python -m studies.worth`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tyro.conf import UseAppendAction

from studies import command
from studies.worth.record import Kind


def measure(
    model: Path, data: Path, probe: Path, data_dir: Path, out: Path, each: int = 150, of: int = 8,
    max_tokens: int = 512, seed: int = 0, dtype: Literal["float32", "bfloat16"] = "float32",
    engine: Literal["hf", "vllm"] = "hf", vllm: UseAppendAction[tuple[str, ...]] = (), anywhere: bool = False,
    ordinary: int = 0, kinds: UseAppendAction[tuple[Kind, ...]] = (),
) -> None:  # fmt: skip
    """Measure the worth of single tokens by continuations with and without them. To resume, repeat the command.

    Args:
        model: The model's folder.
        data: Responses, as `stapo-eval export --to responses` writes them.
        probe: Their log, `stapo-train probe --mode full`.
        data_dir: Folder with the benchmarks of these responses.
        out: Folder of the measurement.
        each: Tokens of each of the four kinds.
        ordinary: Tokens of each of the two kinds that are not rare, where fewer will do; if 0, as of the others.
        of: Continuations with a token, and as many without it.
        max_tokens: Tokens of a response, continuation included.
        seed: Decides which tokens, and every continuation.
        dtype: Of the weights.
        engine: Of the evaluation. hf, on a CPU, gives the same bytes again.
        vllm: KEY=VALUE, an argument of vLLM (repeat it).
        anywhere: Tokens behind the answer too, which hardly change it.
        kinds: Kinds to measure (repeat it); all by default.
    """
    from studies.worth.measure import Measurement
    from studies.worth.measure import measure as measured
    from studies.worth.page import section

    asked = Measurement(
        model, data, probe, data_dir, out, each=each, of=of, max_tokens=max_tokens, seed=seed, dtype=dtype,
        engine=engine, vllm=vllm, anywhere=anywhere, ordinary=ordinary, kinds=kinds,
    )  # fmt: skip
    print("\n".join(section(measured(asked))))


if __name__ == "__main__":
    command.run(measure, "studies.worth", "train")
