"""The benchmarks: which problems, how often, and whether a copy is the right one.

`benchmarks.yaml` holds what identifies a benchmark (row count, a hash over its gold answers, a short hash a problem
text), never a problem or an answer. A `registry.yaml` in a data directory adds benchmarks in the same format, and a
JSONL file of a user's own is a benchmark without an entry.

spec    what an entry, a problem and a loaded benchmark are; the registry; the comparison of a copy with its entry
load    from a name or a path to checked problems
"""

from stapo_results.benchmarks.load import load, read_jsonl, registry_entry
from stapo_results.benchmarks.spec import (
    DATA_DIR_VARIABLE,
    REGISTRY_FILE,
    Benchmark,
    Identity,
    Problem,
    Spec,
    check_identity,
    find_data_dir,
    golds_sha256,
    normal_text,
    registry,
    text_hash,
    write_registry,
)

__all__ = [
    "DATA_DIR_VARIABLE",
    "REGISTRY_FILE",
    "Benchmark",
    "Identity",
    "Problem",
    "Spec",
    "check_identity",
    "find_data_dir",
    "golds_sha256",
    "load",
    "normal_text",
    "read_jsonl",
    "registry",
    "registry_entry",
    "text_hash",
    "write_registry",
]
