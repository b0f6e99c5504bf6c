"""transformers.generate in fixed batches: the default on a CPU, deterministic for a number of threads."""

from __future__ import annotations

from collections.abc import Sequence

from stapo_eval.decoding import Decoding
from stapo_eval.engines.base import Engine, Finished, Request, Spec, failed, load_tokenizer
from stapo_eval.models import ModelFiles
from stapo_results.errors import RunFailed, message_of
from stapo_results.stop_tokens import stop_token_ids

# Rows of a batch. On a CPU small batches win: their cache stays in the processor's, and a straggler holds up fewer rows
# (512 samples of the miniature's model: 2.8 s by 64, 3.2 s by 128, 4.5 s by 256, 6.4 s by 512 rows, one thread).
MOST_ROWS = {"cpu": 64, "cuda": 512}
_KV_BYTES = 1 << 30
_LOGIT_BYTES = 1 << 30


class HfEngine(Engine):
    """A transformers model. `rows` fixes the size of a batch; 0 chooses one that memory allows."""

    def __init__(self, model: ModelFiles, *, threads: int = 0, dtype: str = "auto", rows: int = 0):
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        if threads:
            torch.set_num_threads(threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        default = torch.bfloat16 if device == "cuda" else torch.float32
        wanted = default if dtype == "auto" else getattr(torch, dtype)
        self.tokenizer = load_tokenizer(model)
        self.model = AutoModelForCausalLM.from_pretrained(
            model.folder, use_safetensors=True, trust_remote_code=False, dtype=wanted
        )
        self.model.to(torch.device(device)).eval()  # type: ignore[arg-type]  # transformers' stub loses self
        config = self.model.config.get_text_config()
        self.stop = stop_token_ids(self.tokenizer, self.model.generation_config.eos_token_id)
        pad = self.tokenizer.pad_token_id
        self.pad = self.stop[0] if pad is None else pad
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv_bytes = 2 * config.num_hidden_layers * heads * head_dim * wanted.itemsize  # of a token
        # the sampler holds about four float64 rows of logits
        most = max(1, min(MOST_ROWS[device], _LOGIT_BYTES // (32 * config.vocab_size)))
        context, cached_tokens = int(config.max_position_embeddings), 0 if rows else _KV_BYTES // kv_bytes
        self.loaded(Spec("hf", device == "cpu", context, rows=rows or most, cached_tokens=cached_tokens))
        self.batches: list[list[Request]] = []
        self._easy = Request("", "", 0, 0, tuple(self.encode("1+1=")), Decoding(1.0, 1.0, 1))

    def submit(self, requests: Sequence[Request]) -> None:
        """Accept one fixed batch: requests of one cell."""
        self.batches.append(list(requests))

    def poll(self) -> list[Finished]:
        """Generate the batch that was accepted first.

        Raises:
            RunFailed: every row of it failed, and so does a prompt that any model answers.
        """
        results = self._generate(self.batches.pop(0))
        if all(f.error for f in results) and self._generate([self._easy])[0].error:
            raise RunFailed(
                "the model failed on a whole batch and on a prompt of one sum",
                found=results[0].error,
                next_step="look at the model's folder and the memory; what is finished is kept",
            )
        return results

    def _generate(self, batch: list[Request]) -> list[Finished]:
        from stapo_results.generation import generate

        decoding = batch[0].decoding
        try:
            results = generate(
                self.model,
                [r.prompt for r in batch],
                [r.seed for r in batch],
                max_new_tokens=min(decoding.max_tokens, self.context - max(len(r.prompt) for r in batch)),
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                top_k=decoding.top_k,
                min_p=decoding.min_p,
                stop_token_ids=self.stop,
                pad_token_id=self.pad,
            )
        except (RuntimeError, ValueError, MemoryError, IndexError) as e:
            if len(batch) == 1:
                return [failed(batch[0], message_of(e))]
            half = len(batch) // 2  # finds the row that fails, or a size that fits
            return self._generate(batch[:half]) + self._generate(batch[half:])
        texts = self.tokenizer.batch_decode([g.token_ids for g in results], skip_special_tokens=True)
        return [
            Finished(r, text, g.finish_reason, len(g.token_ids), round(sum(g.logprobs), 6))
            for r, g, text in zip(batch, results, texts, strict=True)
        ]

    def close(self) -> None:
        del self.model
