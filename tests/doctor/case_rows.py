"""Checkable lines that state a measurement, as rows of measured runs."""

CARD = {"200B": (80, 14400), "181B": (72, 14336), "196B": (84, 13824)}
"""Layers and hidden of the sizes of the BLOOM sweep; the lines state no heads."""
TITAN = {
    "Llama-3.1-8B": ("Llama 3.1 8B", 32, 4096, 32, 14336),
    "Llama-3.1-70B": ("Llama 3.1 70B", 80, 8192, 64, 28672),
    "Llama-3.1-405B": ("Llama 3.1 405B", 126, 16384, 128, 53248),
}  # fmt: skip


def bloom_row(case):
    """A line of the BLOOM prequel: Megatron-DeepSpeed fp16 on A100 with full recompute."""
    plan = case["plan"]
    layers, hidden = CARD[plan["size"]]
    assert (layers, hidden) == (plan["layers"], plan["hidden"])
    m = plan["gbs"] // (plan["mbs"] * plan["dp"])
    return {
        "id": case["id"], "source": {"title": "BigScience BLOOM-176B chronicles prequel"},
        "model": {
            "name": f"GPT/BLOOM-like {plan['size']}", "layers": layers, "hidden": hidden,
            "ffn": 4 * hidden, "vocab": plan["vocab"], "seq_len": plan["seq"],
            "gated_mlp": False, "untied": False,
        },
        "hardware": {
            "device": "a100-sxm-80g", "mem_gb": 80, "devices": plan["gpus"], "per_node": 8,
            "inter_link_gbps_per_device": 50.0, "intra_link": "NVLink3",
        },
        "plan": {
            "tp": plan["tp"], "pp": plan["pp"], "cp": 1, "vpp": 1, "schedule": "1f1b (DeepSpeed)",
            "mbs": plan["mbs"], "gbs": plan["gbs"], "num_microbatches": m,
            "sequence_parallel": False, "dist_optimizer": True, "precision": "fp16",
            "flash_attention": False, "framework": "Megatron-DeepSpeed", "dp": plan["dp"],
            "recompute": plan["recompute"], "zero": plan["zero"],
        },
        "measured": {
            "step_time_s": case["expect"]["step_s"], "basis": "reported",
            "peak_mem_gb": case["expect"]["memory_gb"], "mem_unit": "GiB", "peak_kind": "device",
            "oom": False,
        },
        "kind": "step", "quality": "A",
    }  # fmt: skip


def titan_row(case):
    """A line of torchtitan's benchmarks on H100-96GB."""
    plan, expect = case["plan"], case["expect"]
    name, layers, hidden, heads, ffn = TITAN[plan["model"]]
    tp, pp, cp, dp = plan.get("tp", 1), plan.get("pp", 1), plan.get("cp", 1), plan["fsdp"]
    batch = plan["local_bs"] * dp
    tokens = expect["tokens_per_s_per_gpu"] * plan["gpus"]
    precision = "fp8 linear (float8 tensorwise) + bf16" if plan.get("float8") else "bf16"
    return {
        "id": case["id"], "source": {"title": "TorchTitan (Liang et al., ICLR 2025) benchmark tables"},
        "model": {
            "name": name, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": 8,
            "ffn": ffn, "vocab": 128256, "seq_len": plan["seq"], "gated_mlp": True, "untied": True,
        },
        "hardware": {
            "device": "h100-sxm-96g", "mem_gb": 96, "devices": plan["gpus"], "per_node": 8,
            "inter_link_gbps_per_device": 400.0, "intra_link": "NVLink4",
        },
        "plan": {
            "tp": tp, "pp": pp, "cp": cp, "schedule": plan.get("schedule", "none"),
            "gbs": batch, "sequence_parallel": tp > 1, "dist_optimizer": True, "precision": precision,
            "flash_attention": True, "framework": "torchtitan" + (" compiled" if plan.get("compile") else ""),
            "dp": dp, "recompute": plan["ac"], "zero": 3, "compile": bool(plan.get("compile")),
            # In that release the local batch is split into as many microbatches as there are
            # stages (config_manager.py, pipeline_parallel_microbatches, 2024-12).
            "mbs": plan["local_bs"] // pp,
            "num_microbatches": pp,
        },
        "measured": {
            "step_time_s": batch * plan["seq"] / tokens, "basis": "derived",
            "peak_mem_gb": expect["memory_gib"], "mem_unit": "GiB", "peak_kind": "reserved",
            "oom": False,
        },
        "kind": "step", "quality": "A",
    }  # fmt: skip
