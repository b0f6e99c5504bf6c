"""The mask is known before the training pass: the old policy's statistics are there already."""

from __future__ import annotations

from stapo_training.verl_ext.plans.base import Outputs, Plan


class MaskedPlan(Plan):
    """`policy=old`. Costs nothing; exact in a step's first mini-batch."""

    def train(self) -> Outputs:
        assert self.judged is not None
        chosen = self.select(self.judged)
        self.mask(chosen)
        outputs = self.train_pass(judged=self.judged)
        self.finish(chosen)
        return outputs
