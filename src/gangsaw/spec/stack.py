"""StackProfile: the software generation as a small table of physical, measurable entries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gangsaw.spec.base import Document, Frac, NonNegative, Positive


class StackMemory(Document):
    """What a framework keeps in memory, in bytes an element unless said otherwise."""

    param_bytes: Positive = 2.0
    grad_bytes: Positive = Field(4.0, description="of the accumulated gradient")
    optimizer_bytes: Positive = Field(12.0, description="fp32 master, both Adam moments, copies")
    unsharded_extra_bytes: NonNegative = Field(0.0, description="a parameter, never sharded")
    optimizer_step_bytes: NonNegative = Field(
        0.0, description="temporaries a parameter at the step"
    )
    norm_bytes: NonNegative = Field(4.0, description="a hidden element and norm, its output in it")
    mlp_gated_bytes: NonNegative = Field(6.0, description="a ffn element, gated MLP")
    mlp_plain_bytes: NonNegative = Field(4.0, description="a ffn element, plain MLP")
    rope_bytes: NonNegative = Field(0.0, description="a q and k element, copies for rotary")
    qkv_copy_bytes: NonNegative = Field(0.0, description="a q, k, v element, copies for attention")
    residual_bytes: NonNegative = Field(0.0, description="a hidden element, both residual adds")
    dropout: bool = Field(False, description="hidden dropout masks are kept (1 byte, twice)")
    unfused_score_bytes: NonNegative = Field(
        0.0, description="a score of heads x seq x seq; 0 with a fused attention kernel"
    )
    logit_bytes: NonNegative = Field(6.0, description="a logit at the peak of the loss")
    logits_vocab_parallel: bool = True
    wgrad_dummy: bool = Field(False, description="cached weight-gradient buffers, one layer's")
    tp_keeps_gathered_input: bool = Field(
        False, description="the gathered input of a column-parallel matmul is kept for backward"
    )
    selective: Literal["core_attention", "op", "modules"] = "core_attention"
    reserved_factor: Positive = Field(1.05, description="reserved over allocated")
    context_bytes: NonNegative = Field(1.5e9, description="CUDA context and communicators")
    notes: str = ""


class StackTime(Document):
    """How fast a framework runs what it runs, relative to the device's own curves."""

    gemm_factor: Positive = Field(1.0, description="on the device's GEMM asymptote")
    attention_kernel: str = Field("flash", description="flash, unfused, triton, cudnn")
    attention_factor: Positive = Field(0.87, description="training over kernel benchmark")
    unfused_score_traffic_bytes: NonNegative = Field(
        11.0, description="moved a score element in the forward pass without a fused kernel"
    )
    memory_traffic_factor: Positive = Field(
        1.0, description="elementwise traffic over that of fused kernels"
    )
    launch_floor_layer_s: NonNegative = Field(0.0, description="host floor of a layer, forward")
    collective_overhead_s: NonNegative = Field(2e-5, description="added to each collective")
    tp_overlap_frac: Frac = Field(0.0, description="share of TP time hidden behind compute")
    cp_exposed_frac: Frac = 0.4
    ep_exposed_frac: Frac = 1.0
    dp_overlap_backward: Frac = Field(0.0, description="share of gradient reduction hidden")
    dp_overlap_forward: Frac = Field(0.0, description="share of parameter gather hidden")
    pp_overlap: Frac = Field(0.0, description="share of stage transfers hidden")
    sp_regather: bool = Field(True, description="sequence parallel gathers again in backward")
    step_overhead_s: NonNegative = Field(0.02, description="host, logging, clipping a step")
    microbatch_overhead_s: NonNegative = Field(0.0, description="host a microbatch and stage")
    optimizer_traffic_bytes: Positive = Field(30.0, description="moved a parameter at the step")
    loss_traffic_bytes: Positive = Field(20.0, description="moved a logit, forward and backward")
    fp8_cast_traffic: NonNegative = Field(3.0, description="bytes an activation element, fp8")
    moe_permute_factor: Positive = Field(1.0, description="permute traffic over the ideal")
    moe_layer_floor_s: NonNegative = Field(0.0, description="host floor of a MoE layer, forward")
    notes: str = ""


class StackProfile(Document):
    """One software generation: memory, time, and the doubt about both."""

    name: str
    title: str
    memory: StackMemory = StackMemory()
    time: StackTime = StackTime()
    time_doubt_frac: Positive = Field(0.12, description="one standard deviation, log space")
    memory_doubt_frac: Positive = 0.05
    sources: tuple[str, ...] = ()
