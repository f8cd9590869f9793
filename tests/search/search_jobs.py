"""Jobs for the tests of the search: one of each kind, small enough to search whole."""

from __future__ import annotations

from functools import cache

from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec.job import Job
from gangsaw.spec.recipe import Recipe


@cache
def job_of(model, cluster, stack="unknown", **recipe):
    values = {"seq_len": 2048, "global_batch": 32, **recipe}
    return Job(
        model=load_model(model), recipe=Recipe(**values), cluster=load_cluster(cluster),
        stack=load_stack(stack),
    )  # fmt: skip


JOBS = {
    "dense": lambda: job_of("llama-3.1-8b", "h100-sxm:16"),
    "dense, long": lambda: job_of("llama-3.1-8b", "h100-sxm:16", seq_len=32768, global_batch=8),
    "uneven layers": lambda: job_of("deepseek-llm-67b", "h100-sxm:32", "megatron-core-te"),
    "tied, learned positions": lambda: job_of("gpt2-xl", "a100-sxm-80g:8", "megatron-lm-2021"),
    "routed, windows": lambda: job_of("gpt-oss-20b", "h100-sxm:16", "megatron-core-te"),
    "routed, latent": lambda: job_of("deepseek-v2-lite", "h100-sxm:8"),
    "prediction layers": lambda: job_of("deepseek-v3", "h100-sxm:256", global_batch=256),
    "vision": lambda: job_of("gemma-3-4b", "h100-sxm:8"),
    "low rank": lambda: job_of("llama-3.1-8b", "h100-sxm:8", "torchtitan", task="lora"),
    "low rank, four bits": lambda: job_of("llama-3.1-8b", "h100-sxm:4", task="qlora"),
    "fp8": lambda: job_of("llama-3.1-8b", "h100-sxm:16", "megatron-core-te-fp8", precision="fp8"),
    "split backward": lambda: job_of("llama-3.1-8b", "h100-sxm:16", "zero-bubble"),
    "one device": lambda: job_of("llama-3.2-1b", "h100-sxm:1", "torchtitan"),
    "fewer sequences than devices": lambda: job_of("llama-3.1-8b", "h100-sxm:16", global_batch=4),
}
