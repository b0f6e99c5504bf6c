"""The benchmarks: which problems, how often, and whether a copy is the right one.

`benchmarks.yaml` holds what identifies a benchmark (row count, a hash over its gold answers, a short hash a problem
text), never a problem or an answer. A `registry.yaml` in a data directory adds benchmarks in the same format, and a
JSONL file of a user's own is a benchmark without an entry.

spec      what an entry, a problem and a loaded benchmark are; hashes, and the comparison of a copy with its entry
registry  the packaged entries, those of a data directory, making new ones
sources   rows of JSONL files, Parquet files and the hub's data sets
loader    from a name or a path to checked problems
copies    writing copies into a data directory
"""

from stapo_results.benchmarks.copies import registry_entry
from stapo_results.benchmarks.loader import load
from stapo_results.benchmarks.registry import (
    DATA_DIR_VARIABLE,
    REGISTRY_FILE,
    find_data_dir,
    registry,
    write_registry,
)
from stapo_results.benchmarks.sources import read_jsonl
from stapo_results.benchmarks.spec import (
    Benchmark,
    Identity,
    Problem,
    Spec,
    check_identity,
    golds_sha256,
    normal_text,
    text_hash,
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
