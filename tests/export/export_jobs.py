"""Jobs and plans that the export tests share."""

from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.spec import Job, Plan, Recipe


def job(model, cluster, batch, seq=8192, precision="bf16", **recipe):
    return Job(
        model=load_model(model), cluster=load_cluster(cluster), stack=load_stack("megatron-core-te"),
        recipe=Recipe(seq_len=seq, global_batch=batch, precision=precision, **recipe),
    )  # fmt: skip


PLANS = {
    "dense": (
        job("llama-3.1-8b", "h100-sxm:8", 64),
        Plan(tp=2, dp=4, num_microbatches=16, zero=1),
    ),
    "interleaved": (
        job("llama-3.1-70b", "h100-sxm:64", 128),
        Plan(tp=4, cp=2, pp=4, vpp=5, dp=2, num_microbatches=64, schedule="interleaved"),
    ),
    "uneven": (
        job("llama-3.1-405b", "h100-sxm:512", 256),
        Plan(tp=8, pp=16, dp=4, num_microbatches=64, stages=(7, *(8,) * 14, 7), recompute="full"),
    ),
    "experts": (
        job("qwen3-30b-a3b", "h100-sxm:32", 256, seq=4096),
        Plan(tp=1, pp=2, dp=16, ep=8, num_microbatches=16, recompute="selective"),
    ),
    "latent": (
        job("deepseek-v3", "h100-sxm:1024", 8192, seq=4096),
        Plan(tp=1, pp=16, vpp=2, dp=64, ep=64, num_microbatches=128, schedule="interleaved",
             stages=(3, *(2,) * 29, 0, 0), recompute="full"),
    ),
    "fully sharded": (
        job("llama-3.1-8b", "h100-sxm:16", 64, precision="fp8"),
        Plan(tp=1, dp=16, mbs=2, num_microbatches=2, zero=3, recompute="full"),
    ),
}  # fmt: skip
