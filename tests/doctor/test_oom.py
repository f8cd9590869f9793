"""Messages of the allocators, the tensor behind a size, and changes that fit."""

import pytest

from gangsaw.doctor.oom import changes, explain_oom
from gangsaw.doctor.oom_message import parse_message
from gangsaw.doctor.predict import changed, full_estimate, job_of
from gangsaw.errors import InputError
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch import read_launch_text

GIB, MIB = 2.0**30, 2.0**20

OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 31.75 GiB total"
    " capacity; 28.82 GiB already allocated; 443.75 MiB free; 29.97 GiB reserved in total by"
    " PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"
)
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 3 has a total"
    " capacity of 79.15 GiB of which 1.05 GiB is free. Including non-PyTorch memory, this process"
    " has 78.09 GiB memory in use. Of the allocated memory 70.10 GiB is allocated by PyTorch, and"
    " 5.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large"
)
HIP = "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 191.98 GiB of which 3.00 GiB is free."
NPU = "RuntimeError: NPU out of memory. Tried to allocate 26.44 GiB (NPU 2; 60.96 GiB total capacity; 30.23 GiB already allocated; 30.23 GiB current active; 25.36 GiB free; 33.08 GiB reserved in total by PyTorch)"
CPU = "RuntimeError: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
XLA = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed."


@pytest.mark.parametrize(
    ("text", "kind", "requested", "total", "allocated", "reserved"),
    [
        (OLD, "device", 786 * MIB, 31.75 * GIB, 28.82 * GIB, 29.97 * GIB),
        (NEW, "device", 2.32 * GIB, 79.15 * GIB, 70.10 * GIB, 75.60 * GIB),
        (HIP, "device", 4 * GIB, 191.98 * GIB, None, None),
        (NPU, "device", 26.44 * GIB, 60.96 * GIB, 30.23 * GIB, 33.08 * GIB),
        (CPU, "host", 8 * GIB, None, None, None),
        (XLA, "device", 16 * GIB, None, None, None),
        (KILL, "host", None, None, None, None),
    ],
)
def test_messages_of_allocators(text, kind, requested, total, allocated, reserved):
    said = parse_message("step 3\n" + text + "\nmore log")
    assert said.kind == kind
    for found, wanted in (
        (said.requested_bytes, requested), (said.total_bytes, total),
        (said.allocated_bytes, allocated), (said.reserved_bytes, reserved),
    ):  # fmt: skip
        assert found == (None if wanted is None else pytest.approx(wanted, rel=1e-9))


def test_a_text_without_a_message_is_refused_in_one_line():
    with pytest.raises(InputError, match="no out-of-memory message found"):
        parse_message("loss 3.2 at step 100")


def test_a_hundred_megabytes_of_log_around_a_message():
    # A pattern that looked back over it would never end.
    said = parse_message("x" * 10**8 + OLD)
    assert said.requested_bytes == 786 * MIB


def launch(name="x.sh", **flags):
    nodes = flags.pop("nodes", 1)
    words = " ".join(
        f"--{k.replace('_', '-')}" + ("" if v is True else f" {v}") for k, v in flags.items()
    )
    return read_launch_text(
        f"torchrun --nnodes {nodes} --nproc_per_node 8 pretrain_gpt.py {words}\n", name
    )


GPT2_LARGE = {
    "num_layers": 36, "hidden_size": 1280, "num_attention_heads": 20, "seq_length": 1024,
    "max_position_embeddings": 1024, "micro_batch_size": 4, "global_batch_size": 32,
    "vocab_size": 50257, "fp16": True,
}  # fmt: skip
QWEN3_235B = {
    "num_layers": 94, "hidden_size": 4096, "ffn_hidden_size": 12288, "num_attention_heads": 64,
    "kv_channels": 128, "group_query_attention": True, "num_query_groups": 4, "swiglu": True,
    "normalization": "RMSNorm", "disable_bias_linear": True, "qk_layernorm": True,
    "untie_embeddings_and_output_weights": True, "position_embedding_type": "rope",
    "vocab_size": 151936, "num_experts": 128, "moe_router_topk": 8, "moe_ffn_hidden_size": 1536,
    "moe_grouped_gemm": True, "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2,
    "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1, "sequence_parallel": True,
    "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 1024,
    "max_position_embeddings": 1024, "bf16": True, "use_distributed_optimizer": True, "nodes": 4,
}  # fmt: skip


def test_fp32_logits_are_named():
    found = explain_oom(OLD, launch(**GPT2_LARGE))
    assert found.named
    assert found.matches[0].tensor == "fp32 logits of the loss"
    assert found.matches[0].shape == (4096, 50304)
    assert found.matches[0].bytes == 786 * MIB
    assert found.cause == "fragmentation" or found.cause == "shortage"


def test_an_expert_shard_is_named():
    found = explain_oom(NPU, launch(**QWEN3_235B))
    assert found.named
    assert "expert shard" in found.matches[0].tensor
    assert "16-bit copy" in found.matches[0].tensor
    assert found.matches[0].error_frac < 0.001
    assert found.cause == "shortage"


def test_a_packed_batch_shows_as_tokens():
    message = "CUDA out of memory. Tried to allocate 58.15 GiB."
    plan = {
        **GPT2_LARGE, "vocab_size": 152064, "tensor_model_parallel_size": 2, "seq_length": 9216,
        "max_position_embeddings": 9216, "micro_batch_size": 1, "global_batch_size": 4,
    }  # fmt: skip
    found = explain_oom(message, launch(**plan))
    assert not found.named
    line = next(text for text in found.explanation if "tokens" in text)
    assert "205,300" in line
    assert "22.3 times" in line


def test_flattened_gradients_are_named():
    plan = {
        **GPT2_LARGE, "num_layers": 54, "hidden_size": 1920, "num_attention_heads": 20,
        "tensor_model_parallel_size": 2,
    }  # fmt: skip
    where = launch(**plan)
    rank = where.model.params() / 2
    size = 2 * rank / GIB
    found = explain_oom(f"CUDA out of memory. Tried to allocate {size:.2f} GiB", where)
    assert found.named
    assert any("flattened 16-bit gradients" in item.tensor for item in found.matches)


@pytest.mark.parametrize(
    ("requested", "name"),
    [
        (4 * 32 * 4096 * 4096 * 2, "attention scores of an unfused kernel"),
        (4 * 4096 * 2 * 14336 * 2, "input of the MLP's activation"),
        (218112000 * 2, "one unsharded dense layer"),
        (128256 * 4096 * 4, "embedding or output matrix in fp32 (or its gradient)"),
        (4 * 4096 * 128256 * 2, "16-bit logits"),
    ],
)
def test_tensors_by_their_size(requested, name):
    text = (
        "torchrun --nproc_per_node 8 train.py --deepspeed zero3.json --bf16 true"
        " --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 4"
        " --gradient_accumulation_steps 2 --max_seq_length 4096\n"
    )
    message = f"CUDA out of memory. Tried to allocate {requested / GIB:.2f} GiB."
    found = explain_oom(message, read_launch_text(text, "x.sh"))
    assert found.named
    assert name in {item.tensor for item in found.matches}


def test_a_size_that_nothing_has_is_said_to_match_nothing():
    found = explain_oom("CUDA out of memory. Tried to allocate 3.33 GiB", launch(**GPT2_LARGE))
    assert not found.named
    assert len(found.matches) == 3
    assert any("nearest" in line for line in found.explanation)
    errors = [item.error_frac for item in found.matches]
    assert errors == sorted(errors)


@pytest.mark.parametrize(
    ("allocated", "unallocated", "free", "requested", "cause"),
    [
        (60, 15, 1, 4, "fragmentation"),
        (60, 3, 1, 4, "fragmentation"),
        (72, 0.5, 1, 4, "shortage"),
        (10, 0.5, 60, 90, "too large"),
    ],
)
def test_fragmentation_is_told_from_shortage(allocated, unallocated, free, requested, cause):
    message = (
        f"CUDA out of memory. Tried to allocate {requested}.00 GiB. GPU 0 has a total capacity of"
        f" 79.15 GiB of which {free}.00 GiB is free. Of the allocated memory {allocated}.00 GiB is"
        f" allocated by PyTorch, and {unallocated:.2f} GiB is reserved by PyTorch but unallocated."
    )
    found = explain_oom(message, launch(**GPT2_LARGE))
    assert found.cause == cause
    assert ("expandable_segments" in " ".join(found.explanation)) == (cause == "fragmentation")


def test_repairs_fit_and_are_ordered_by_lost_time():
    plan = {
        **QWEN3_235B, "nodes": 16, "pipeline_model_parallel_size": 4, "seq_length": 8192,
        "decoder_first_pipeline_num_layers": 23, "decoder_last_pipeline_num_layers": 23,
        "max_position_embeddings": 8192, "micro_batch_size": 2, "global_batch_size": 256,
    }  # fmt: skip
    where = launch(**plan)
    cluster = load_cluster("h100-sxm:128")
    found = explain_oom(NEW, where, cluster)
    assert found.repairs
    lost = [item.step_time_change_frac for item in found.repairs]
    assert lost == sorted(lost)
    capacity = cluster.device.memory_bytes
    assert all(item.peak_bytes <= 0.97 * capacity for item in found.repairs)
    # Each repair is what estimate says of the changed plan, plus what the message showed.
    job = job_of(where, cluster, None)
    more = max(0.0, found.measured_need_bytes - found.predicted_peak_bytes)
    table = dict(changes(where.plan, job))
    for item in found.repairs:
        again = full_estimate(job, changed(where.plan, table[item.change]))
        assert item.peak_bytes == pytest.approx(again.memory.peak_bytes + more)
        assert again.memory.peak_bytes < found.predicted_peak_bytes


def test_a_host_message_gets_no_device_repairs():
    found = explain_oom(KILL, launch(**GPT2_LARGE), load_cluster("h100-sxm:8"))
    assert found.cause == "host"
    assert found.repairs == ()
    assert "workers" in found.explanation[0]


def test_an_answer_takes_few_estimates(monkeypatch):
    # An estimate takes some 10 ms, so a hundred are a second.
    from gangsaw.doctor import predict

    seen = []
    once = predict.estimate
    monkeypatch.setattr(predict, "estimate", lambda *args: seen.append(1) or once(*args))
    explain_oom(NPU, launch(**QWEN3_235B), load_cluster("h100-sxm:32"))
    assert 5 < len(seen) < 100
