"""Names and order of what the table and the figures show. One place, so that all of them agree."""

from __future__ import annotations

from stapo_results.methods import methods
from stapo_results.sizes import MINI, REAL, is_miniature_size

METHODS: dict[str, str] = {m: e["title"] for m, e in methods().items() if "table" in e.get("shown", ())}
"""Those of the paper's main table."""
ARMS: dict[str, str] = {m: e["title"] for m, e in methods().items() if "masks" in e.get("shown", ())}
"""No mask, and masks over rare tokens."""
SWEPT = tuple(m for m in ARMS if "q" in methods()[m]["sources"])
"""The masks whose share q the paper varies."""
RARE_TOKEN_MASKS = tuple(m for m, e in methods().items() if e.get("rare"))
"""Masks over rare tokens of correct responses; 20-Entropy, which leaves out four fifths of all tokens, is none."""
BASE = "base"
METHOD_LABELS = {BASE: "Base model", **{m: e["title"] for m, e in methods().items()}}

SYNTHETIC = "SYNTHETIC RECORDS, made up for a test."

PAPER_SIZES: dict[str, str] = {"qwen3-1.7b": "Qwen3-1.7B", "qwen3-8b": "Qwen3-8B", "qwen3-14b": "Qwen3-14B"}

PAPER_BENCHMARKS: dict[str, str] = {
    "aime24": "AIME24",
    "aime25": "AIME25",
    "amc23": "AMC23",
    "math500": "MATH500",
    "minerva": "Minerva",
    "olympiadbench": "Olympiad",
}
REAL_SIZES = {name: weights.title for name, weights in REAL.items()}
MINI_BENCHMARKS: dict[str, str] = {"mini-add": "mini-add", "mini-add-hard": "mini-add-hard"}
AVERAGE = "avg"


def size_label(name: str) -> str:
    return {MINI: "Miniature", **REAL_SIZES, **PAPER_SIZES}.get(name, name)


def what_it_is(size: str) -> str:
    """The sentence of a caption on a model that is none of the paper's; "" where nothing is known of it."""
    if is_miniature_size(size):
        return "A tiny model on additions, not a result of the paper."
    return "A small real model from 4-bit weights, none of the paper's." if size in REAL_SIZES else ""


def benchmarks_of(size: str) -> dict[str, str]:
    """The benchmarks that the models of a size are evaluated on, with their headings."""
    return MINI_BENCHMARKS if is_miniature_size(size) else PAPER_BENCHMARKS


def benchmark_label(name: str) -> str:
    """The column's heading; a user's benchmark keeps its name."""
    return {AVERAGE: "Avg", **PAPER_BENCHMARKS, **MINI_BENCHMARKS}.get(name, name)


def method_label(name: str) -> str:
    return METHOD_LABELS.get(name, name)
