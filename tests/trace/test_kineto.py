"""Reading profiler traces that others made, and traces made to be hard."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangsaw.errors import InputError
from gangsaw.trace import stream
from gangsaw.trace.kernels import KINDS, kernel_kind, operation
from gangsaw.trace.kineto import read_trace

DATA = Path(__file__).parents[1] / "data" / "kineto"


def kernel(ts, dur, name="sgemm", on=7, corr=1, **args):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": on,
        "ts": ts,
        "dur": dur,
        "args": {"stream": on, "correlation": corr, **args},
    }


def launch(ts, corr, dur=5):
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": {"correlation": corr},
    }


def step(ts, dur, number=1):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": {},
    }


def write(path, events, rank=0, **head):
    path.write_text(
        json.dumps(
            {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
                "traceEvents": events,
                **head,
            }
        )
    )
    return path


@pytest.mark.parametrize("name", ["kineto-rank0", "kineto-rank1", "kineto-nccl"])
def test_real_traces_agree_with_plain_json(name):
    """Counts and seconds by category equal those of a plain parse of the whole file."""
    path = DATA / f"{name}.json.gz"
    with gzip.open(path) as file:
        doc = json.load(file)
    events = [e for e in doc["traceEvents"] if e.get("ph") == "X"]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    trace = read_trace(path)
    assert trace.events == len(doc["traceEvents"])
    assert (trace.rank, trace.world_size) == (
        doc["distributedInfo"]["rank"],
        doc["distributedInfo"]["world_size"],
    )
    assert len(trace.start_s) == len(device)
    assert float((trace.end_s - trace.start_s).sum()) == pytest.approx(
        sum(e["dur"] for e in device) * 1e-6, rel=1e-9
    )
    assert set(trace.stream.tolist()) == {e["args"]["stream"] for e in device}
    assert [s.name for s in trace.steps()] == sorted(
        {e["name"] for e in events if e["name"].startswith("ProfilerStep#")}
    )
    nccl = [e for e in device if e["name"].startswith("nccl")]
    comm = np.isin(trace.kind, [KINDS.index("collective"), KINDS.index("p2p")])
    assert int(comm.sum()) == len(nccl)
    assert np.isfinite(trace.launch_s).all()


def test_nccl_metadata_is_read():
    trace = read_trace(DATA / "kineto-nccl.json.gz")
    comm = trace.kind == KINDS.index("collective")
    assert trace.groups == (("0", "default_pg", 2, (0, 1)),)
    assert set(trace.operations) == {"all_reduce", "broadcast"}
    assert set(trace.group[comm].tolist()) == {0}
    assert trace.bytes[comm].max() == pytest.approx(6637568 * 4, rel=0.5)
    assert trace.notes == ()


def test_missing_information_is_said():
    notes = " ".join(read_trace(DATA / "kineto-rank0.json.gz").notes)
    assert "collectives without group" in notes


def test_all_to_all_is_told_from_send_receive_by_the_call_that_launched_it():
    trace = read_trace(DATA / "kineto-rank0.json.gz")
    comm = np.flatnonzero(trace.kind == KINDS.index("collective"))
    said = {trace.operations[trace.op[r]] for r in comm}
    assert said == {"all_to_all", "all_reduce", "all_gather"}


NAMES = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "collective",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "p2p",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": "gemm",
    "nvjet_hsh_192x192_64x4_1x2_h_bz_coopB_TNT": "gemm",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>": "attention",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90>>": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob": "attention",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<>": "optimizer",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "elementwise",
    "void at::native::vectorized_elementwise_kernel<4>": "elementwise",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<>": "softmax",
    "Cijk_Ailk_Bjlk_BBS_BH_MT128x128x32": "gemm",
    "a kernel nobody knows": "other",
}


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_classed(name):
    assert KINDS[kernel_kind(name)] == NAMES[name]


def test_operations():
    assert operation("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL") == "reduce_scatter"
    assert operation("ncclKernel_AllGather_RING_LL") == "all_gather"
    assert operation("something") == ""


text = st.text(max_size=20)
value = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | text,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(text, x, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(st.dictionaries(text, value, max_size=4), max_size=30),
    block=st.integers(3, 200),
    head=st.dictionaries(text, value, max_size=3),
    pretty=st.booleans(),
)
def test_any_json_is_cut_where_it_must_be(tmp_path_factory, events, block, head, pretty):
    """Braces and quotes inside strings, escapes, any block size: every event once, and the head."""
    head = {
        k: v
        for k, v in head.items()
        if "traceEvents" not in k and "traceEvents" not in json.dumps(v)
    }
    path = tmp_path_factory.mktemp("t") / "t.json"
    marked = [{"ph": "X", "name": f"{i}", "args": {"more": e}} for i, e in enumerate(events)]
    path.write_text(
        json.dumps({**head, "traceEvents": marked, "last": 1}, indent=1 if pretty else None)
    )
    before = stream.BLOCK_BYTES
    stream.BLOCK_BYTES = block
    try:
        reader = stream.EventStream(path)
        found = [e.name for part in reader for e in part]
    finally:
        stream.BLOCK_BYTES = before
    assert found == [f"{i}" for i in range(len(events))]
    assert reader.head["last"] == 1
    assert set(head) <= set(reader.head)


def test_long_files_are_read_in_bounded_memory(tmp_path, monkeypatch):
    """Host events between two kernels: three times the file needs no more memory."""
    monkeypatch.setattr(stream, "BLOCK_BYTES", 2**20)
    filler = json.dumps(
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mul",
            "ts": 1,
            "dur": 1,
            "args": {"Input Dims": [[1, 2]] * 40},
        }
    )
    peaks = []
    for parts in (10, 30):
        path = tmp_path / f"long{parts}.json"
        with path.open("w") as file:
            file.write('{"traceEvents": [' + json.dumps(kernel(0, 5)))
            for _ in range(parts):
                file.write("," + ",".join([filler] * 2000))
            file.write("," + json.dumps(kernel(10, 5)) + '], "distributedInfo": {"rank": 3}}')
        tracemalloc.start()
        trace = read_trace(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (trace.events, len(trace.start_s), trace.rank) == (2000 * parts + 2, 2, 3)
    assert path.stat().st_size > 24e6
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 40 * 2**20


def test_a_file_that_ends_early_is_used_and_said(tmp_path):
    path = write(tmp_path / "cut.json", [kernel(i * 10, 5) for i in range(20)])
    path.write_text(path.read_text()[:1500])
    trace = read_trace(path)
    assert 3 < len(trace.start_s) < 20
    assert any("ends inside" in n for n in trace.notes)


def test_bare_arrays_and_odd_fields(tmp_path):
    path = tmp_path / "bare.json"
    odd = [
        kernel(0, 5),
        {"ph": "X", "cat": "kernel", "name": 7, "ts": {}},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "x",
            "ts": 20,
            "dur": 1,
            "args": {"stream": "seven", "correlation": None},
        },
    ]
    path.write_text(json.dumps(odd))
    trace = read_trace(path)
    assert len(trace.start_s) == 2
    assert trace.rank is None
    assert any("distributedInfo" in n for n in trace.notes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no trace"), (b"hello", "no trace"), (b'{"a": 1}', "traceEvents"),
        (b'{"traceEvents": []}', "no events"), (b"\x1f\x8b\x00garbage", "cannot be read"),
        (b'{"traceEvents": [{"ph": }]}', "not valid JSON"), (b"\x00" * 4096, "no trace"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file():
    with pytest.raises(InputError, match="cannot be read"):
        read_trace("nowhere.json")
