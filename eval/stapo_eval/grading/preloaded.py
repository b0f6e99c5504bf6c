"""Imported once by the process that forks the grading processes, so that each of them costs milliseconds.

The first parse builds grammars and expressions, which no job should pay for. After the import nothing is printed.
"""

import gc
import logging
import os
import warnings

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
warnings.simplefilter("ignore")
logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off

from stapo_eval.grading import library  # noqa: E402  after what it reads
from stapo_eval.grading.presets import decide  # noqa: E402
from stapo_eval.grading.rules import Options  # noqa: E402

library.equal(r"\frac{x}{2}", r"0.5x")
library.grade("2", r"The answer is $\boxed{\frac{4}{2}}$.")
for _preset in ("ours", "justrl"):
    decide(r"\sqrt{x}/2", r"0.5\sqrt{x}", Options(preset=_preset))
gc.collect()
gc.freeze()  # the garbage collector of a grading process leaves the shared pages alone
_null = os.open(os.devnull, os.O_RDWR)
for _stream in (1, 2):  # whatever a library prints, and a process that is ended while it starts
    os.dup2(_null, _stream)
