"""Algorithm 1 as it is written: a forward pass gives the current policy's statistics; the training pass follows."""

from __future__ import annotations

from verl.utils import tensordict_utils as tu

from stapo_training.selection.token_stats import response_positions
from stapo_training.verl_ext.plans.base import Outputs, Plan


class TwoPassPlan(Plan):
    """`form=two_pass`, and always `top_entropy`. The reference; costs a forward pass."""

    def train(self) -> Outputs:
        self._forward_pass()
        judged = self.buffer.stats().clone()  # the training pass records its own
        self.check(judged)
        chosen = self.select(judged)
        self.mask(chosen)
        outputs = self.train_pass(judged=judged)
        self.finish(chosen)
        return outputs

    def _forward_pass(self) -> None:
        """Fill the buffer without gradients."""
        view = self.data.copy()  # the same tensors under a key table of its own
        config = self.engine.engine_config
        tu.assign_non_tensor(
            view,
            calculate_entropy=True,
            compute_loss=False,
            use_dynamic_bsz=config.use_dynamic_bsz,
            max_token_len_per_gpu=config.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=config.infer_micro_batch_size_per_gpu,
        )
        self.engine.module.eval()
        output = self.engine.infer_batch(view, loss_function=None)["model_output"]
        self.engine.module.train()
        position_N = response_positions(output["log_probs"].offsets(), self.buffer.offsets)
        self.buffer.logprob_N[:] = output["log_probs"].values()[position_N].float()
        self.buffer.entropy_N[:] = output["entropy"].values()[position_N].float()
        self.buffer.filled = True
