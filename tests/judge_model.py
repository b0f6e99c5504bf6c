"""A small Qwen3 that answers any prompt with one of its letters, by what it says: a real judge without skill."""

from __future__ import annotations

from pathlib import Path

import eval_model

PROMPT = "QUESTION\n{question}\nREFERENCE\n{gold_answer}\nRESPONSE\n{llm_response}\nLETTER"


def build(folder: Path, *, seed: int = 1, says: str = "ABC") -> Path:
    """Write the model. One coordinate of the hidden state says "a letter was the last token", and leads to the stop
    token; elsewhere only the letters' rows of the output matrix are not zero."""
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    from stapo_eval.decoding import encode_chat
    from stapo_eval.judge.prompt import Question, message
    from stapo_eval.judge.published import JudgePrompt

    eval_model.build(folder, seed=seed, positions=4096)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder)
    letters = [tokenizer.convert_tokens_to_ids(x) for x in says]
    start, stop = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    model.config.tie_word_embeddings = False
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[:, 0] = 0
        embedding[start] = 0  # what is left at the last position is what attention brings
        embedding[letters, 0] = 100
        layer = model.model.layers[0]
        for matrix in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            matrix[0] = 0
        draw = torch.Generator().manual_seed(seed)
        texts = [tokenizer.decode(torch.randint(3, len(tokenizer), (24,), generator=draw)) for _ in range(120)]
        questions = [Question("b", "p", f"What is {i} + {i}?", str(i), t, None) for i, t in enumerate(texts)]
        prompts = [encode_chat(tokenizer, message(q, q.response, JudgePrompt(PROMPT))) for q in questions]
        hidden = torch.stack([model.model(torch.tensor([p])).last_hidden_state[0, -1] for p in prompts])
        mean = hidden.mean(0) / hidden.mean(0).norm()
        rows = torch.randn(len(letters), hidden.size(1), generator=draw)
        rows += (30 - rows @ mean)[:, None] * mean  # what all prompts share makes it a letter, but not which
        rows[:, 0] = 0
        head = torch.zeros_like(embedding)
        head[letters] = 100 * rows
        head[stop, 0] = 1000
        model.lm_head.weight = torch.nn.Parameter(head)
    model.save_pretrained(folder)
    return folder
