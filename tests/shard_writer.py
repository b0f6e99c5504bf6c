"""One rank of two: shards a model as FSDP2 does and saves it as veRL names its files. Started by test_export.py.

usage: python shard_writer.py MODEL OUT RANK RANKS INIT_FILE
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM


def main(model_path: str, out: str, rank: int, ranks: int, init: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=ranks)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.save(model.state_dict(), Path(out) / f"model_world_size_{ranks}_rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
