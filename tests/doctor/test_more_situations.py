"""Situations of the kinds that people met, with other models, sizes, frameworks and messages.

The right answers are arithmetic on the inputs (beside each), or what the framework's code does.
"""

import pytest
from test_rules import (
    NO,
    bridge,
    deepspeed,
    megatron,
    moe,
    nanotron,
    neox,
    own,
    titan,
    verl,
)

from gangsaw.doctor.check import check
from gangsaw.doctor.hang import parse_hang
from gangsaw.doctor.oom import explain_oom
from gangsaw.doctor.resume import resume_check
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch import read_launch_text
from gangsaw.read.models import load_model
from gangsaw.spec import Plan

GIB = 2.0**30
Z3 = {"zero_optimization.stage": 3}
LLAMA_70B = {
    "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64,
    "num_query_groups": 8, "tokenizer_model": "meta-llama/Meta-Llama-3-70B",
}  # fmt: skip
QWEN3_MOE = {
    "num_layers": 48, "hidden_size": 2048, "ffn_hidden_size": 6144, "moe_ffn_hidden_size": 768,
    "num_experts": 128, "moe_router_topk": 8, "num_attention_heads": 32, "num_query_groups": 4,
    "kv_channels": 128, "vocab_size": 151936, "qk_layernorm": True,
    "tokenizer_model": "Qwen/Qwen3-30B-A3B",
}  # fmt: skip


def hf(model, config=None, gpus=8, nodes=1, **args):
    return deepspeed(config, {"model_name_or_path": model, **args}, gpus, nodes)


def message(size, total="79.15 GiB", alloc="70.00 GiB", unused="512.00 MiB", head="CUDA"):
    return (
        f"torch.OutOfMemoryError: {head} out of memory. Tried to allocate {size}. GPU 0 has a total"
        f" capacity of {total} of which 1.00 GiB is free. Including non-PyTorch memory, this process"
        f" has 78.00 GiB memory in use. Of the allocated memory {alloc} is allocated by PyTorch, and"
        f" {unused} is reserved by PyTorch but unallocated."
    )


# name: (launch, message, part of the tensor's name)
TENSORS = {
    # 4 x 4096 tokens x 128,256 entries x 4 B
    "logits of a large vocabulary": (hf("meta-llama/Llama-3.1-8B", Z3, per_device_train_batch_size=4), message("7.83 GiB"), "fp32 logits"),
    # 8192 x (128,512 / 4) x 4 B
    "logits split over tensor ranks": (megatron(nodes=8, **{**LLAMA_70B, "tensor_model_parallel_size": 4}), message("1004.00 MiB"), "fp32 logits"),
    # 32 heads x 16384^2 x 2 B
    "scores on HIP": (megatron(seq_length=16384, max_position_embeddings=16384, tensor_model_parallel_size=1, sequence_parallel=NO), message("16.00 GiB", "191.98 GiB", head="HIP"), "attention scores"),
    # 2 x 32 x 4096^2 x 4 B
    "softmax of eager attention": (hf("meta-llama/Llama-2-7b-hf", Z3), message("4.00 GiB"), "softmax in fp32"),
    # 6.738e9 / 8 ranks x 4 B
    "first optimizer step": (hf("meta-llama/Llama-2-7b-hf", {"zero_optimization.stage": 2}), message("3.14 GiB", "39.39 GiB"), "optimizer moment at the first step, sharded"),
    # 128,256 x 4096 x 4 B
    "gradient of the embedding": (hf("meta-llama/Llama-3.1-8B", Z3, per_device_train_batch_size=1, max_seq_length=512), message("1.96 GiB"), "embedding or output matrix in fp32"),
    # 855.7e6 x 4 B
    "a gathered layer": (titan(flavor="70B", parallelism__pipeline_parallel_degree=1, parallelism__tensor_parallel_degree=1, training__local_batch_size=1, training__seq_len=2048), message("3.19 GiB"), "unsharded"),
    # 32768 tokens x 8 x 2048 x 2 B
    "tokens on their way": (moe(seq_length=32768, max_position_embeddings=32768, tensor_model_parallel_size=1, sequence_parallel=NO, **QWEN3_MOE), message("1.00 GiB"), "tokens sent to experts"),
    # 8192 x 28672 x 2 B
    "weights while loading": (hf("meta-llama/Llama-2-70b-hf", {"zero_optimization.stage": 0}, gpus=1, per_device_train_batch_size=1, max_seq_length=512), message("448.00 MiB"), "weight matrix of the MLP"),
    # 4096 x 14336 x 2 B
    "weights on a small device": (hf("meta-llama/Llama-3.1-8B", {"zero_optimization.stage": 0}, gpus=1, per_device_train_batch_size=1, max_seq_length=512), message("112.00 MiB", "15.77 GiB", alloc="15.00 GiB"), "weight matrix of the MLP"),
    # 5e8 elements x 2 B
    "a bucket": (hf("meta-llama/Llama-2-13b-hf", {"zero_optimization.stage": 2, "zero_optimization.reduce_bucket_size": 500000000}, per_device_train_batch_size=1, max_seq_length=1024), message("954.00 MiB", "39.39 GiB", alloc="37.00 GiB"), "reduction bucket"),
    # 70.55e9 / 8 x 4 B
    "main gradients": (megatron(nodes=8, **{**LLAMA_70B, "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 1}), message("32.86 GiB"), "fp32"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_the_tensor_is_named(name):
    (text, file), said, wanted = TENSORS[name]
    found = explain_oom(said, read_launch_text(text, file))
    assert found.named, [(item.tensor, item.error_frac) for item in found.matches]
    assert wanted in found.matches[0].tensor


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda"
    " error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)
LIMIT = (
    "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of"
    " memory)\nCurrently allocated     : 76.31 GiB\nRequested               : 1.50 GiB\n"
    "Device limit            : 79.10 GiB\nFree (according to CUDA): 12.00 MiB\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00"
    " GiB"
)
OLD = (
    "RuntimeError: {} out of memory. Tried to allocate {} ({} 0; {} total capacity; {} already"
    " allocated; 10.88 MiB free; {} reserved in total by PyTorch)"
)
# name: (message, kind, requested bytes or None, cause)
MESSAGES = {
    "CPU allocator": ("RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 106300440576 bytes. Error code 12 (Cannot allocate memory)", "host", 106300440576, "host"),
    "Slurm": ("slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.", "host", None, "host"),
    "Linux": ("Out of memory: Killed process 12345 (python) total-vm:1148576000kB, anon-rss:1048576000kB", "host", None, "host"),
    "old CUDA, fragments": (OLD.format("CUDA", "20.00 MiB", "GPU", "7.93 GiB", "6.53 GiB", "6.75 GiB"), "device", 20 * 2**20, "fragmentation"),
    "old CUDA, short": (OLD.format("CUDA", "2.00 GiB", "GPU", "31.75 GiB", "30.00 GiB", "30.20 GiB"), "device", 2 * GIB, "shortage"),
    "NPU": (OLD.format("NPU", "3.91 GiB", "NPU", "60.97 GiB", "58.00 GiB", "58.90 GiB"), "device", 3.91 * GIB, "shortage"),
    "CUDA, fragments": (message("2.50 GiB", alloc="60.00 GiB", unused="15.20 GiB"), "device", 2.5 * GIB, "fragmentation"),
    "CUDA, short": (message("2.50 GiB", alloc="76.00 GiB", unused="200.00 MiB"), "device", 2.5 * GIB, "shortage"),
    "CUDA, larger than the device": (message("96.00 GiB"), "device", 96 * GIB, "too large"),
    "XPU": (message("1.96 GiB", "47.98 GiB", "45.00 GiB", head="XPU"), "device", 1.96 * GIB, "shortage"),
    "MPS": ("RuntimeError: MPS backend out of memory (MPS allocated: 17.46 GiB, other allocations: 512.00 MiB, max allowed: 18.13 GiB). Tried to allocate 1.00 GiB on private pool.", "device", GIB, "shortage"),
    "memory fraction": (LIMIT, "device", 1.5 * GIB, "shortage"),
    "XLA": ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 bytes.", "device", 137438953472, "shortage"),
    "TensorFlow": ("E tensorflow: Allocator (GPU_0_bfc) ran out of memory trying to allocate 4.00GiB", "device", 4 * GIB, "shortage"),
    "CUDA without a size": ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", "device", None, "shortage"),
    "HIP without a size": ("RuntimeError: HIP error: out of memory", "device", None, "shortage"),
    "cuBLAS": ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "device", None, "shortage"),
    "NCCL": (NCCL, "device", None, "shortage"),
    "two ranks, the last counts": (message("2.50 GiB") + "\n[rank3]: " + message("3.91 GiB"), "device", 3.91 * GIB, "shortage"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_is_understood(name):
    said, kind, wanted, cause = MESSAGES[name]
    found = explain_oom(said, read_launch_text(*megatron()), load_cluster("h100-sxm:32"))
    assert (found.kind, found.cause) == (kind, cause)
    if wanted is None:
        assert found.requested_bytes is None
    else:
        assert found.requested_bytes == pytest.approx(wanted, rel=1e-6)
    assert found.explanation
    if cause == "too large":
        # Whatever asks for more than the device holds is in no prediction, so nothing is offered.
        assert "gangsaw plan" in found.notes[-1]
    elif kind == "device":
        assert found.repairs
    if name in ("NCCL", "cuBLAS"):
        assert "outside of PyTorch" in found.explanation[0]


def test_a_size_of_no_tensor_is_said():
    found = explain_oom(message("3.33 GiB"), read_launch_text(*megatron()))
    assert not found.named
    assert len(found.matches) >= 3
    packed = hf("Qwen/Qwen2.5-7B", Z3, per_device_train_batch_size=1)
    found = explain_oom(message("27.00 GiB"), read_launch_text(*packed))
    # 27 GiB / (152,064 x 4 B) = 47,662 tokens of a microbatch of 4,096.
    assert any("47,700 tokens" in line for line in found.explanation)


def on_four(case):
    return case[0].replace("--nproc_per_node 8", "--nproc_per_node 4"), case[1]


TUNER = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: full\nstage: sft\ntemplate: qwen\n"
    "bf16: true\nfp16: true\nper_device_train_batch_size: 1\n"
)
AXOLOTL = (
    "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 8192\nmicro_batch_size: 1\n"
    "gradient_accumulation_steps: 4\nbf16: true\nsequence_parallel_degree: 6\n"
)
GPT3 = {
    "num_layers": 96, "hidden_size": 12288, "ffn_hidden_size": 49152, "num_attention_heads": 96,
    "group_query_attention": NO, "num_query_groups": NO, "vocab_size": 50257, "seq_length": 2048,
    "max_position_embeddings": 2048, "position_embedding_type": NO, "normalization": NO,
    "disable_bias_linear": NO, "untie_embeddings_and_output_weights": NO,
    "tensor_model_parallel_size": 8, "tokenizer_model": "gpt3-175b",
}  # fmt: skip
# name: (launch, cluster, code, other codes that go with it)
FAULTS = {
    "40 heads over 16": (megatron(nodes=8, num_attention_heads=40, hidden_size=5120, num_query_groups=40, tensor_model_parallel_size=16, pipeline_model_parallel_size=1, tokenizer_model="x"), None, "MLM017", {"MLM018", "WS003"}),
    "8 key-value heads over 16": (titan(parallelism__tensor_parallel_degree=16, parallelism__pipeline_parallel_degree=1), None, "TT010", {"WS003"}),
    "64 experts over 6": (moe(num_experts=64, expert_model_parallel_size=6, tokenizer_model="x", nodes=6), None, "MLM025", {"MLM016"}),
    "odd length over context ranks": (megatron(context_parallel_size=8, seq_length=100004, max_position_embeddings=100004, tensor_model_parallel_size=1, sequence_parallel=NO), None, "MLM021", set()),
    "two precisions, Trainer": (hf("meta-llama/Llama-3.1-8B", {"bf16": {}}, fp16="true"), None, "DS023", set()),
    "two precisions, LLaMA-Factory": ((TUNER, "lf.yaml"), None, "DS023", set()),
    "more processes than Slurm gives": (("#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\n" + megatron()[0], "a.sh"), None, "GEN012", set()),
    "fp8 on A100": (megatron(fp8_format="hybrid"), "a100-sxm-80g:32", "GEN011", set()),
    "bf16 on V100": (hf("meta-llama/Llama-2-7b-hf", Z3), "v100-sxm-32g:8", "GEN011", set()),
    "no biases of queries": (megatron(num_layers=28, hidden_size=3584, ffn_hidden_size=18944, num_attention_heads=28, num_query_groups=4, vocab_size=152064, rotary_base=1000000, tokenizer_model="Qwen/Qwen2.5-7B"), None, "WM025", set()),
    "untied where tied": (megatron(num_layers=16, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=32, num_query_groups=8, tokenizer_model="meta-llama/Llama-3.2-1B"), None, "WM009", set()),
    "default of two experts a token": (moe(**{**QWEN3_MOE, "moe_router_topk": NO}, rotary_base=1000000), None, "WM018", set()),
    "default width": (megatron(num_layers=40, hidden_size=5120, ffn_hidden_size=NO, num_attention_heads=40, num_query_groups=40, vocab_size=32000, rotary_base=10000, tokenizer_model="meta-llama/Llama-2-13b"), None, "WM005", set()),
    "default head width": (megatron(num_layers=64, hidden_size=5120, ffn_hidden_size=25600, num_attention_heads=64, num_query_groups=8, vocab_size=151936, rotary_base=1000000, qk_layernorm=True, tokenizer_model="Qwen/Qwen3-32B"), None, "WM012", set()),
    "a recipe with fewer layers": (bridge(model__num_layers=16), None, "WM003", set()),
    "gated where not": (megatron(**GPT3), None, "WM010", set()),
    "default rotary base": (moe(rotary_base=NO), None, "WM011", set()),
    "TP 8 on nodes of 4": (on_four(megatron(tensor_model_parallel_size=8, nodes=8)), None, "WS003", set()),
    "context ranks for short sequences": (megatron(context_parallel_size=8, seq_length=2048, max_position_embeddings=2048, tensor_model_parallel_size=1, sequence_parallel=NO, pipeline_model_parallel_size=1), "h100-sxm:32", "WS029", {"WS025"}),
    "offload of a small model": (hf("Qwen/Qwen2.5-0.5B", {"zero_optimization.stage": 2, "zero_optimization.offload_optimizer": {"device": "cpu"}}), "h100-sxm:8", "WS030", {"WS024"}),
    "half the cluster": (nanotron(), "h100-sxm:32", "GEN014", set()),
    "twice the cluster": (own(), "h100-sxm:32", "GEN013", set()),
    "batch sizes that do not agree": (hf("meta-llama/Llama-3.1-8B", {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}), None, "DS001", set()),
    "experts over two nodes on one": (moe(nodes=1, pipeline_model_parallel_size=1, tensor_model_parallel_size=1, sequence_parallel=NO, expert_model_parallel_size=16, num_experts=16, tokenizer_model="x"), None, "MLM027", set()),
    "6 groups over 4": (megatron(num_query_groups=6, tensor_model_parallel_size=4, tokenizer_model="x"), None, "MLM018", set()),
    "last stage alone": (megatron(num_layers=62, pipeline_model_parallel_size=4, decoder_last_pipeline_num_layers=13, tokenizer_model="x"), None, "MLM009", set()),
    "verl on five stages": (verl(megatron__pipeline_model_parallel_size=5), None, "MLM001", {"MLM002", "MLM027"}),
    "Ulysses of axolotl": ((AXOLOTL, "ax.yml"), "h100-sxm:6", "DS012", {"WS024"}),
    "ZeRO-3 under a pipeline": (neox(zero_optimization={"stage": 3}), None, "DS005", set()),
    "a module that is none": (megatron(recompute_granularity="selective", recompute_modules="core_attention"), None, "MLM052", set()),
    "a misspelt flag": (megatron(tensor_model_parallel_sise=2, tensor_model_parallel_size=NO, sequence_parallel=NO), None, "GEN010", set()),
    "DualPipeV with few microbatches": (titan(parallelism__pipeline_parallel_schedule="DualPipeV", training__local_batch_size=6), None, "TT014", set()),
    "a batch of 65": (titan(training__global_batch_size=65), None, "TT023", {"WS002"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found(name):
    (text, file), cluster, code, with_it = FAULTS[name]
    found = check(read_launch_text(text, file), load_cluster(cluster) if cluster else None)
    codes = {fault.code for fault in found.faults}
    assert code in codes
    assert codes - {code} <= with_it


def test_zero_three_needs_a_network():
    launch = read_launch_text(
        *hf("Qwen/Qwen2.5-7B", Z3, nodes=4, per_device_train_batch_size=1, max_seq_length=512)
    )
    fast = load_cluster("h100-sxm:32")
    tiers = [
        tier.model_copy(update={"bytes_per_s": 25e9 / 8 / 8}) if tier.devices > 8 else tier
        for tier in fast.tiers
    ]
    # 25 Gb/s a node: 45 GB of gathers and reductions a microbatch need 15 s over it.
    slow = fast.model_copy(update={"tiers": tuple(tiers)})
    assert "WS022" in {fault.code for fault in check(launch, slow).faults}
    batch = hf("Qwen/Qwen2.5-7B", Z3, nodes=4, per_device_train_batch_size=8, max_seq_length=8192)
    assert "WS022" not in {fault.code for fault in check(read_launch_text(*batch), fast).faults}


# (format, saved, wanted, direct, part of what reshards it)
RESUMES = [
    ("torch_dist", Plan(tp=2, pp=4), Plan(tp=4, pp=2), True, "distributed checkpointing"),
    ("torch", Plan(tp=2, pp=2, dp=4), Plan(tp=2, pp=4, dp=2), False, "converter"),
    ("torch", Plan(tp=2, pp=2, dp=4), Plan(tp=2, pp=2, dp=8), True, "framework itself"),
    ("deepspeed", Plan(dp=8, zero=3), Plan(dp=16, zero=3), False, "universal"),
    ("deepspeed-universal", Plan(dp=8, zero=3), Plan(dp=16, zero=1), True, "framework itself"),
    ("dcp", Plan(dp=64, zero=3), Plan(tp=8, dp=8, zero=3), True, "torch.distributed.checkpoint"),
    ("fsdp_dtensor", Plan(dp=64, ep=8), Plan(dp=32, ep=16), True, "torch.distributed.checkpoint"),
    ("safetensors", Plan(dp=8), Plan(tp=8), False, "weights alone"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "saved", "wanted", "direct", "by"), RESUMES)
def test_resuming_with_another_layout(form, saved, wanted, direct, by):
    found = resume_check(load_model("qwen3-8b"), saved, wanted, form)
    assert found.direct == direct
    assert by in found.by
    assert found.size_bytes >= 2 * load_model("qwen3-8b").params()


WATCHDOG = (
    "[rank5]:[E1102] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1812,"
    " OpType={}, NumelIn={}, NumelOut={}, Timeout(ms)={}) ran for {} milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("operation", "elements", "timeout_ms", "said"),
    [
        ("BROADCAST", 1, 600000, "some rank has not come"),
        ("_REDUCE_SCATTER_BASE", 2**31, 1800000, "bandwidth is not the cause"),
        ("ALLTOALL_BASE", 2**28, 600000, "bandwidth is not the cause"),
        # 2 x 2 x 10^12 B over 12.5 GB/s are 320 s: more than a fifth of 600 s.
        ("ALLREDUCE", 10**12, 600000, "too short or the link too slow"),
    ],
)
def test_a_collective_that_timed_out(operation, elements, timeout_ms, said):
    text = WATCHDOG.format(operation, elements, elements, timeout_ms, timeout_ms + 70)
    assert said in parse_hang(text).explanation


def test_what_is_no_message_is_refused():
    for text in ("", "all is well", "loss: 2.31 | memory 71.2 GiB", "out of patience"):
        with pytest.raises(InputError, match="no out-of-memory message"):
            explain_oom(text, read_launch_text(*megatron()))


@pytest.mark.parametrize("size", [-4, 0, 99999999999])
def test_sizes_that_cannot_be_are_answered_without_an_error(size):
    text = (
        f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers {size}"
        f" --hidden-size {size} --num-attention-heads {size} --micro-batch-size {size}"
        f" --seq-length {size} --tensor-model-parallel-size {size} --num-experts {size}\n"
    )
    launch = read_launch_text(text, "run.sh")
    assert check(launch, load_cluster("h100-sxm:8")).faults
    assert not explain_oom(message("2.00 GiB"), launch, load_cluster("h100-sxm:8")).named
