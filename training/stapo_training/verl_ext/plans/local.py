"""Each micro-batch selects for itself while it is trained: all that a loss function alone can see."""

from __future__ import annotations

from stapo_training.verl_ext.plans.base import Outputs, Plan


class LocalPlan(Plan):
    """`scope=micro_batch`: a quantile a micro-batch and rank; one normaliser, the kept tokens of the mini-batch."""

    def train(self) -> Outputs:
        outputs = self.train_pass(self.micro_batches.select, self.judged)
        chosen = self.micro_batches.joined()
        self.divide(outputs, chosen)
        self.finish(chosen)
        return outputs
