"""Routed layers of a launch file: dispatcher, overlap and graphs as its flags state them."""

import pytest

from gangsaw.doctor.check import check
from gangsaw.doctor.predict import stack_for
from gangsaw.read.clusters import load_cluster
from gangsaw.read.launch import read_launch_text

LAUNCH = """
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 48 --hidden-size 2048 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 4 --kv-channels 128 \\
  --ffn-hidden-size 6144 --moe-ffn-hidden-size 768 --num-experts 128 --moe-router-topk 8 \\
  --moe-grouped-gemm --expert-model-parallel-size 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 512 --bf16 --swiglu \\
  --disable-bias-linear --normalization RMSNorm --position-embedding-type rope \\
  --untie-embeddings-and-output-weights --vocab-size 151936 --use-distributed-optimizer \\
  --mock-data --tokenizer-type NullTokenizer {more}
"""
FLEX = "--moe-token-dispatcher-type flex"
ALL_TO_ALL = "--moe-token-dispatcher-type alltoall"


def read(more):
    return read_launch_text(LAUNCH.format(more=more), "run.sh")


@pytest.mark.parametrize(
    ("more", "once", "paired", "graphed"),
    [
        (ALL_TO_ALL, False, False, 0.0),
        (FLEX, True, False, 0.0),
        (f"{FLEX} --moe-flex-dispatcher-backend hybridep", True, False, 0.0),
        (f"{ALL_TO_ALL} --overlap-moe-expert-parallel-comm", False, True, 0.0),
        (f"{ALL_TO_ALL} --cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router",
         False, False, 0.5),
    ],
)  # fmt: skip
def test_flags_of_routed_layers_reach_the_stack(more, once, paired, graphed):
    time = stack_for(read(more), None).time
    assert (time.ep_once_a_node, time.ep_paired, time.graphed_frac) == (once, paired, graphed)


def test_a_dispatcher_that_sends_once_a_node_is_faster_over_nodes():
    cluster = load_cluster("h100-sxm:32")
    slow, quick, paired = (
        check(read(more), cluster).step_time_s
        for more in (ALL_TO_ALL, FLEX, f"{ALL_TO_ALL} --overlap-moe-expert-parallel-comm")
    )
    assert quick < 0.8 * slow and paired < 0.8 * slow
