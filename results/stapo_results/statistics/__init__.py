"""Statistics of avg@N scores: problems are the units that were drawn, samples are repeated measures of them.

Every function takes plain arrays of fractions (0 to 1, not percent). A missing sample is NaN. Dimensions: Q problems,
N samples a problem. Nothing here reads a record or rounds a number.
"""

from stapo_results.statistics.comparison import (
    Bounds,
    Design,
    Paired,
    difference_se,
    minimal_detectable,
    paired,
    paired_average,
)
from stapo_results.statistics.estimates import LEVEL, Estimate, average, clustered, parse_verdicts, problem_means
from stapo_results.statistics.repeated import Variance, majority_at_k, pass_at_k, sampling_se, variance_components
from stapo_results.statistics.resampling import RESAMPLES, bootstrap, holm, resampled_sums, sign_flip_p

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "Bounds",
    "Design",
    "Estimate",
    "Paired",
    "Variance",
    "average",
    "bootstrap",
    "clustered",
    "difference_se",
    "holm",
    "majority_at_k",
    "minimal_detectable",
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
