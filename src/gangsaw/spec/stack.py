"""StackProfile: the software generation as a small table of physical, measurable entries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gangsaw.spec.base import CountOrZero, Document, Frac, NonNegative, Positive


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
    gathered_param_bytes: Positive = Field(
        2.0, description="of a parameter gathered for compute under ZeRO-3"
    )
    gathered_grad_bytes: NonNegative = Field(
        2.0, description="of an unsharded gradient on its way to the reduce-scatter, ZeRO-2 and 3"
    )
    fp8_input_bytes: Positive = Field(1.0, description="a saved input element of an fp8 linear")
    fp8_weight_bytes: NonNegative = Field(2.0, description="a parameter, cached fp8 copies")
    moe_hidden_bytes: NonNegative = Field(
        4.0, description="a routed token and hidden element, its way in and out of the expert"
    )
    moe_router_bytes: NonNegative = Field(8.0, description="a token and expert, router scores")
    cp_output_bytes: NonNegative = Field(
        2.0, description="an attention output element, the second copy under context parallelism"
    )
    ends_grad_bytes: NonNegative = Field(
        2.0, description="a parameter, dense gradients of embedding and head before accumulation"
    )
    vocab_padding: CountOrZero = Field(
        128, description="vocabulary is padded to a multiple of this times TP; 0: not padded"
    )
    reserved_activation_frac: NonNegative = Field(
        0.0, description="of one microbatch's activations, logits and buffers, lost to fragments"
    )
    reserved_block_frac: NonNegative = Field(
        0.0, description="of the dense gradient of an end, a block that nothing else reuses"
    )
    workspace_bytes: NonNegative = Field(
        6.7e7, description="workspaces and communication buckets inside the allocator"
    )
    pipe_buffer_bytes: NonNegative = Field(
        0.0, description="a hidden element of a stage's output kept until its backward pass"
    )
    logit_bytes_tp: NonNegative = Field(
        0.0, description="a logit at the peak of the loss where TP splits them; 0: as without TP"
    )
    op_unused_bytes: NonNegative = Field(
        2.0, description="a hidden element, products that op-level recompute keeps needlessly"
    )
    grads_on_demand: bool = Field(
        False, description="gradients are made in backward, none stand before it"
    )
    embedding_grad_whole: bool = Field(
        False, description="TP does not cut the embedding's gradient until it is reduced"
    )
    receive_buffers: bool = Field(
        False, description="a stage holds receive buffers for all microbatches of a step"
    )
    notes: str = ""


class StackTime(Document):
    """How fast a framework runs what it runs, relative to the device's own curves."""

    gemm_factor: Positive = Field(1.0, description="on the device's GEMM asymptote")
    attention_kernel: str = Field("flash", description="flash, flash3, cudnn, triton or unfused")
    attention_factor: Positive = Field(0.87, description="training over kernel benchmark")
    unfused_traffic_bytes: NonNegative = Field(
        11.0, description="moved a score element in the forward pass without a fused kernel"
    )
    unfused_k0: NonNegative = Field(60.0, description="head width at half rate, unfused products")
    unaligned_factor: Positive = Field(
        0.0625,
        description="rate of unfused products where the head width is no multiple of 8: without"
        " tensor cores, fp32 peak over 16-bit peak",
    )
    traffic_factor: Positive = Field(
        1.0, description="elementwise traffic over that of fused kernels"
    )
    launch_floor_layer_s: NonNegative = Field(0.0, description="host floor of a layer, forward")
    graphed_frac: Frac = Field(
        0.0, description="share of a layer's host time that CUDA graphs take away"
    )
    launch_blocking: bool = Field(
        False,
        description="CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel, so that its own time"
        " adds to the device's and nothing overlaps",
    )
    collective_overhead_s: NonNegative = Field(2e-5, description="added to each collective")
    tp_exposed_fwd_frac: Frac = Field(1.0, description="share of forward TP time not hidden")
    tp_exposed_bwd_frac: Frac = Field(1.0, description="share of backward TP time not hidden")
    tp_copy_bytes: NonNegative = Field(
        0.0,
        description="moved an element that sequence parallelism gathers or scatters, where the"
        " framework lays it out again along the sequence",
    )
    fp8_gather_bytes: Positive = Field(
        2.0, description="an element that is gathered as the input of an fp8 linear layer"
    )
    cp_exposed_frac: Frac = 0.4
    ep_exposed_frac: Frac = 1.0
    ep_once_a_node: bool = Field(
        False,
        description="a node receives each routed token once (DeepEP, HybridEP); an all-to-all sends"
        " it to every expert",
    )
    ep_paired: bool = Field(
        False,
        description="dispatch and combine run under another microbatch's compute: what is longer"
        " than that, and ep_exposed_frac of the rest, is not hidden",
    )
    dp_overlap_backward_frac: Frac = Field(0.0, description="gradient reduction under backward")
    dp_overlap_forward_frac: Frac = Field(0.0, description="parameter gather under forward")
    dp_traffic_factor: Positive = Field(
        1.0, description="time of a step's gradient reduction and gather over the ideal, ZeRO 0, 1"
    )
    zero3_overlap_frac: Frac = Field(
        0.8, description="share of ZeRO-2 and ZeRO-3 traffic that may hide behind compute"
    )
    pp_exposed_frac: NonNegative = Field(
        1.0,
        description="share of steady stage transfers not hidden; 2 where a rank waits for its"
        " send and its receive one after the other",
    )
    sp_regather_exposed_frac: Frac = Field(
        0.5, description="share of sequence parallelism's gather in backward that is not hidden"
    )
    step_overhead_s: NonNegative = Field(0.02, description="host, logging, clipping a step")
    microbatch_overhead_s: NonNegative = Field(0.0, description="host a microbatch and chunk")
    optimizer_traffic_bytes: Positive = Field(30.0, description="moved a parameter at the step")
    loss_traffic_bytes: Positive = Field(20.0, description="moved a logit, forward and backward")
    fp8_cast_bytes: NonNegative = Field(3.0, description="moved an activation element, fp8")
    moe_permute_factor: Positive = Field(1.0, description="permute traffic over the ideal")
    moe_layer_floor_s: NonNegative = Field(0.0, description="host floor of a MoE layer, forward")
    notes: str = ""


def without_overlap(time: StackTime) -> StackTime:
    """The same where no collective hides under other work and each waits for the one before."""
    return time.model_copy(
        update={
            "tp_exposed_fwd_frac": 1.0,
            "tp_exposed_bwd_frac": 1.0,
            "sp_regather_exposed_frac": 1.0,
            "dp_overlap_backward_frac": 0.0,
            "dp_overlap_forward_frac": 0.0,
            "ep_exposed_frac": 1.0,
            "pp_exposed_frac": max(1.0, time.pp_exposed_frac),
        }
    )


def blocking(time: StackTime) -> StackTime:
    """The same under CUDA_LAUNCH_BLOCKING=1: the host waits for each kernel and each collective."""
    update = {"launch_blocking": True, "cp_exposed_frac": 1.0, "zero3_overlap_frac": 0.0}
    return without_overlap(time).model_copy(update=update)


class StackProfile(Document):
    """One software generation: memory, time, and the doubt about both."""

    name: str
    title: str
    base: str = Field("", description="catalog profile whose rules hold; empty: the own name")
    memory: StackMemory = StackMemory()
    time: StackTime = StackTime()
    time_doubt_frac: Positive = Field(0.12, description="one standard deviation, log space")
    memory_doubt_frac: Positive = 0.05
    sources: tuple[str, ...] = ()

    @property
    def rules(self) -> str:
        """Name of the catalog profile whose legal plans and fitted factors hold."""
        return self.base or self.name
