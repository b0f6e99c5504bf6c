# Images for NVIDIA GPUs (driver 580 or later, NVIDIA container toolkit): the pinned packages bring CUDA.
#
#   docker build --target train -t stapo-train .
#   docker build --target eval  -t stapo-eval .
#   CACHE="$HOME/.cache/huggingface:/root/.cache/huggingface"   # else each container fetches the weights again
#   docker run --gpus all --ipc=host -v "$CACHE" -v "$PWD/data:/data" -v "$PWD/runs:/runs" stapo-train \
#       run method=stapo size=qwen3-1.7b hardware=8gpu run.data=/data/dapo run.out=/runs/stapo-1.7b
#   docker run --gpus all --ipc=host -v "$CACHE" -v "$PWD/runs:/runs" stapo-eval run --engine vllm --model ORG/NAME --out /runs/eval
FROM python:3.12-slim-bookworm AS base
# a compiler: Triton and vLLM build kernels at run time; git: a record names the commit of the suite
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /suite
COPY requirements requirements

FROM base AS train
RUN python -m pip install --no-cache-dir --requirement requirements/gpu.txt
COPY . .
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation --editable .
ENTRYPOINT ["stapo-train"]

FROM base AS eval
RUN python -m pip install --no-cache-dir --requirement requirements/eval-gpu.txt
COPY . .
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation --editable .
ENTRYPOINT ["stapo-eval"]
