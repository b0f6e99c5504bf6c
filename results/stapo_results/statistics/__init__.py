"""Statistics of avg@N scores: problems are the units that were drawn, samples are repeated measures of them.

Every function takes plain arrays of fractions (0 to 1, not percent). A missing sample is NaN. Nothing here reads a
record or rounds a number.
"""

from stapo_results.statistics.intervals import (
    Crossed,
    Estimate,
    Interval,
    Paired,
    average,
    clustered,
    crossed,
    interval,
    over_seeds,
    paired,
    paired_average,
)
from stapo_results.statistics.resampling import LEVEL, RESAMPLES, bootstrap, holm, resampled_sums, sign_flip_p
from stapo_results.statistics.samples import (
    majority_at_k,
    matrix,
    parse_verdicts,
    pass_at_k,
    problem_means,
    sampling_se,
    variance_components,
)

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "Crossed",
    "Estimate",
    "Interval",
    "Paired",
    "average",
    "bootstrap",
    "clustered",
    "crossed",
    "holm",
    "interval",
    "majority_at_k",
    "matrix",
    "over_seeds",
    "paired",
    "paired_average",
    "parse_verdicts",
    "pass_at_k",
    "problem_means",
    "resampled_sums",
    "sampling_se",
    "sign_flip_p",
    "variance_components",
]
