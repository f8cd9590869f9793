"""Which plans are legal: one line with value, rule and legal choices, and what must be allowed."""

from __future__ import annotations

import pytest
from plan_cases import job_of

from gangsaw.cost.layout import default_counts, ends_as_layers
from gangsaw.cost.legal import check_plan, divisors, legal_tp
from gangsaw.errors import InputError
from gangsaw.search.estimate import evaluate
from gangsaw.spec.plan import Plan


def job(name="llama-3.1-405b", devices=128, **changes):
    return job_of(name, devices, **{"global_batch": 128, **changes})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tp": 3}, r"tp=3 does not divide num_attention_heads=128\. Legal here: 1, 2, 4, 8, 16,"),
        ({"tp": 8, "pp": 16, "dp": 2}, r"tp x cp x pp x dp = 8 x 1 x 16 x 2 = 256, but .* 128 devices"),
        ({"pp": 16, "dp": 8, "mbs": 3, "num_microbatches": 16}, r"dp x mbs x num_microbatches = 8 x 3 x 16 = 384, but .* 128"),
        ({"cp": 16, "pp": 8, "num_microbatches": 128}, r"cp=16: sequence length 2000 must divide by 2 x cp = 32"),
        ({"ep": 2, "dp": 2}, r"ep=2, etp=1: llama-3\.1-405b has no experts\. Legal here: 1"),
        ({"pp": 128, "num_microbatches": 128, "vpp": 2, "schedule": "interleaved"}, r"pp x vpp = 128 x 2 = 256 chunks for 126 layers of .* at most 128"),
        ({"schedule": "zigzag"}, r"schedule='zigzag': unknown\. Legal: gpipe, 1f1b, .*file:PATH"),
        ({"dp": 128, "num_microbatches": 1, "vpp": 2}, r"vpp=2 needs pp > 1; with pp=1 the legal value is 1"),
        ({"pp": 16, "dp": 8, "vpp": 2}, r"schedule=1f1b runs one chunk a rank, not vpp=2\. Legal with chunks: interleaved,"),
        ({"pp": 16, "dp": 8, "schedule": "zb-v"}, r"schedule=zb-v runs two chunks a rank: vpp=2, not 1"),
        ({"pp": 16, "dp": 8, "schedule": "interleaved"}, r"schedule=interleaved needs vpp > 1; with vpp=1 it is 1f1b"),
        ({"pp": 16, "dp": 8, "schedule": "dualpipe"}, r"schedule=dualpipe needs num_microbatches >= 2 x pp = 32, not 16"),
        ({"pp": 16, "dp": 8, "stages": (8,) * 16}, r"stages sum to 128, llama-3\.1-405b has 126 layers\. Legal: 126"),
        ({"pp": 16, "dp": 8, "shard_group": 3}, r"shard_group=3 does not divide dp x cp = 8\. Legal here: 1, 2, 4, 8"),
        ({"pp": 16, "dp": 8, "recompute_layers": 2}, r"recompute_layers=2 needs recompute=full, not none"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_told_in_one_line(changed, said):
    plan = Plan(**{"tp": 1, "num_microbatches": 16, **changed})
    at = {"devices": plan.devices, "global_batch": plan.dp * plan.mbs * plan.num_microbatches}
    if ", but " in said:
        at = {"devices": 128, "global_batch": 128}
    with pytest.raises(InputError, match=said) as caught:
        check_plan(job(seq_len=2000, **at), plan)
    assert "\n" not in str(caught.value)


def test_interleaving_in_megatron_needs_whole_rounds_of_microbatches():
    plan = Plan(tp=8, pp=4, vpp=2, dp=4, num_microbatches=18, schedule="interleaved")
    with pytest.raises(InputError, match="num_microbatches=18 must be a multiple of pp=4"):
        check_plan(job(stack_name="megatron-core-te", global_batch=72), plan)
    check_plan(job(stack_name="unknown", global_batch=72), plan)


def test_experts_are_placed_inside_a_stage():
    base = {"tp": 2, "dp": 4, "num_microbatches": 8}
    wide = job("gpt-oss-20b", 8, global_batch=32)
    check_plan(wide, Plan(**base, ep=8))
    three = job("gpt-oss-20b", 6, global_batch=24)
    with pytest.raises(
        InputError, match=r"ep=3 does not divide num_experts=32\. Legal here: 1, 2, 4"
    ):
        check_plan(three, Plan(tp=2, dp=3, ep=3, num_microbatches=8))
    with pytest.raises(
        InputError, match="ep x etp = 16 x 1 = 16 does not divide tp x cp x dp = 2 x 1 x 4 = 8"
    ):
        check_plan(wide, Plan(**base, ep=16))


@pytest.mark.parametrize(("layers", "chunks", "want"), [
    (126, 16, (7, *(8,) * 14, 7)),
    (61, 8, (7, *(8,) * 5, 7, 7)),
    (96, 8, (12,) * 8),
    (3, 4, (0, 1, 1, 1)),
])  # fmt: skip
def test_layers_that_do_not_divide(layers, chunks, want):
    counts = default_counts(layers, chunks)
    assert sum(counts) == layers and max(counts) - min(counts) <= 1
    assert sorted(counts) == sorted(want)
    assert counts[-1] == min(counts)


def test_layer_counts_that_do_not_divide_are_run():
    # 126 layers on 16 stages, as Llama 3 405B was trained; 61 layers on 8, as DeepSeek-V3's count.
    llama = evaluate(job(devices=128), Plan(tp=8, pp=16, dp=1, num_microbatches=128))
    assert llama.counts == (7, *(8,) * 14, 7)
    deepseek = evaluate(job("deepseek-v3", 64), Plan(pp=8, dp=8, ep=8, num_microbatches=16))
    assert sum(deepseek.counts) == 61 and len(deepseek.counts) == 8
    # 126 + 2 over 8 x 16: embedding and loss head count as a layer each.
    assert ends_as_layers(126, 128) == (0, *(1,) * 126, 0)
    ends = Plan(
        pp=16, vpp=8, dp=8, num_microbatches=16, schedule="interleaved",
        stages=ends_as_layers(126, 128),
    )  # fmt: skip
    assert evaluate(job(devices=128), ends).cost.step > 0


def test_fewer_kv_heads_than_tensor_ranks_are_whole_copies():
    # 8 kv heads: TP 16 and 32 keep one copied head a rank; the projection is not split further.
    at = {
        tp: evaluate(job(devices=tp, global_batch=8), Plan(tp=tp, num_microbatches=8)).cost.compute
        for tp in (8, 16, 32)
    }
    assert at[16] > at[8] / 2 and at[32] > at[16] / 2
    assert 16 in legal_tp(job().model) and 6 not in legal_tp(job().model)


def test_microbatches_need_not_be_a_multiple_of_the_stages():
    check_plan(job(global_batch=7 * 8), Plan(pp=16, dp=8, num_microbatches=7))


def test_divisors():
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(36, 10) == [1, 2, 3, 4, 6, 9]
