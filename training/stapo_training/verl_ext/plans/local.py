"""Each micro-batch selects for itself while it is trained: all that a loss function alone can see."""

from __future__ import annotations

from stapo_training.verl_ext.mini_batch import MicroBatchSelections
from stapo_training.verl_ext.plans.base import Outputs, Plan


class LocalPlan(Plan):
    """`scope=micro_batch`: a quantile a micro-batch and rank; one normaliser, the kept tokens of the mini-batch."""

    def train(self) -> Outputs:
        micro_batches = MicroBatchSelections(self.selector, self.buffer, self.judged)
        outputs = self.train_pass(micro_batches.select, self.judged)
        chosen = micro_batches.joined()
        self.divide(outputs, chosen)
        self.finish(chosen)
        return outputs
