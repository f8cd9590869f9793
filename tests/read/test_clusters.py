"""The catalog of devices and nodes, names people use for them, and cluster files of one's own."""

import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from gangsaw.errors import InputError, UnknownKeysError
from gangsaw.read.clusters import (
    MAX_DEVICES,
    cluster_of,
    list_devices,
    list_nodes,
    load_cluster,
    node_name,
)

DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"


def message(ref):
    with pytest.raises(InputError) as caught:
        load_cluster(ref)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("node", list_nodes())
@pytest.mark.parametrize("devices", [1, 3, 64, 4096, MAX_DEVICES])
def test_every_node_makes_a_cluster_of_any_size(node, devices):
    if node == "h100-roce-llama3" and devices > 24576:
        with pytest.raises(InputError, match="24576"):
            cluster_of(node, devices)
        return
    cluster = cluster_of(node, devices)
    assert cluster.devices == devices
    assert cluster.tiers[-1].devices >= devices
    assert all(t.source for t in cluster.tiers)
    assert cluster.device.source
    assert cluster.device.as_of
    assert cluster.host.source
    assert all(x.as_of for x in (*cluster.tiers, cluster.host, *cluster.device.attention))
    assert cluster.price_source
    assert cluster.device.attention


def test_no_two_nodes_share_a_name():
    table = tomllib.loads(
        resources.files("gangsaw.catalog").joinpath("aliases.toml").read_text("utf-8")
    )
    assert set(table) <= set(list_nodes())
    for node in list_nodes():
        assert node_name(node) == node
        for alias in table.get(node, []):
            assert node_name(alias) == node


def test_every_device_stands_in_a_node():
    used = {cluster_of(node, 1).device.name for node in list_nodes()}
    assert len(used) == len(list_devices())


# bf16 TFLOP/s dense, memory GB as sold, TB/s, GB/s of the fast link in one direction, its domain:
# the makers' data sheets, typed in apart from the catalog.
SHEETS = {
    "a100-sxm-40g": (312, 40, 1.555, 300, 8),
    "a100-sxm-80g": (312, 80, 2.039, 300, 8),
    "h100-sxm": (989, 80, 3.35, 450, 8),
    "h100-sxm-96g": (989, 96, 2.4, 450, 8),
    "h800-sxm": (989, 80, 3.35, 200, 8),
    "h20-sxm": (148, 96, 4.0, 450, 8),
    "h200-sxm": (989, 141, 4.8, 450, 8),
    "b200": (2250, 180, 8.0, 900, 8),
    "b300": (2250, 288, 8.0, 900, 8),
    "gb200-nvl72": (2500, 186, 8.0, 900, 72),
    "gb300-nvl72": (2500, 288, 8.0, 900, 72),
    "mi250x": (383, 128, 3.28, 350, 4),
    "mi300x": (1307, 192, 5.3, 448, 8),
    "mi325x": (1307, 256, 6.0, 448, 8),
    "mi355x": (2500, 288, 8.0, 535.5, 8),
    "tpu-v4": (275, 32, 1.2, 300, 4096),
    "tpu-v5e": (197, 16, 0.819, 200, 256),
    "tpu-v6e": (918, 32, 1.638, 400, 256),
    "tpu-v7": (2307, 192, 7.37, 600, 9216),
    "gaudi3": (1677, 128, 3.7, 525, 8),
}


@pytest.mark.parametrize("node", SHEETS)
def test_figures_are_those_of_the_data_sheets(node):
    tflops, gigabytes, tb_s, link, domain = SHEETS[node]
    cluster = cluster_of(node, 1)
    device, inner = cluster.device, cluster.tiers[0]
    assert device.peak_flops_per_s["bf16"] == pytest.approx(tflops * 1e12, rel=0.001)
    # cards are sold by rounded sizes, between 1e9 and 2**30
    assert gigabytes * 0.96e9 < device.memory_bytes < gigabytes * 1.08e9
    assert device.memory_bytes_per_s == pytest.approx(tb_s * 1e12, rel=0.04)
    assert inner.bytes_per_s == pytest.approx(link * 1e9, rel=0.001)
    assert inner.devices == domain


def test_usable_memory_of_80_gb_cards():
    for node in ("a100-sxm-80g", "h100-sxm"):
        device = cluster_of(node, 8).device
        usable_gib = device.memory_bytes * device.usable_memory_frac / 2**30
        assert 79.1 <= usable_gib <= 79.3


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("A100-80GB", "a100-sxm-80g"),
        ("A100 SXM 80GB", "a100-sxm-80g"),
        ("H100", "h100-sxm"),
        ("H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40g"),
        ("h100-sxm", "h100-sxm"),
        ("H100-96GB (HBM2e, 500W)", "h100-sxm-96g"),
        ("b200", "b200"),
        ("NVIDIA B200", "b200"),
        ("gb200-nvl72", "gb200-nvl72"),
        ("H800", "h800-sxm"),
        ("MI300X OAM", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("h20", "h20-sxm"),
        ("NVIDIA H100 Tensor Core GPU", "h100-sxm"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32g"),
        ("NVIDIA H200 141GB HBM3e", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80g"),
        ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("p5.48xlarge", "aws-p5"),
        ("TPU v5p", "tpu-v5p"),
        ("Gaudi 2", "gaudi2"),
        ("v100-sxm-32g", "v100-sxm-32g"),
    ],
)
def test_names_that_people_use(name, node):
    assert node_name(name) == node


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("h100-sxm", "h100-sxm:2048"),
        ("h100-sxm:0", "from 1 to"),
        ("h100-sxm:-8", "from 1 to"),
        ("h100-sxm:8.5", "whole number"),
        ("h100-sxm:eight", "whole number"),
        ("h100-sxm:", "whole number"),
        ("h100-sxm:1e3", "whole number"),
        ("h100-sxm:99999999999999999999", "1,048,576"),
        ("h100-sxm:" + "9" * 6000, "1,048,576"),
        ("h1000-sxm:8", "nearest: h100-sxm"),
        ("b100:8", "b200"),
        ("ünïcode:8", "unknown device"),
        (":8", "known:"),
        ("", "known:"),
        ("missing.toml", "no such file"),
        ("h100-roce-llama3:30000", "24576"),
    ],
)
def test_wrong_references(ref, said):
    text = message(ref)
    assert said in text
    assert len(text) < 700


def test_rack_scale_domains_are_filled_evenly():
    assert load_cluster("gb200-nvl72:288").tiers[0].devices == 72
    assert load_cluster("gb200-nvl72:256").tiers[0].devices == 64
    assert load_cluster("gb200-nvl72:32").tiers[0].devices == 72
    assert load_cluster("h100-sxm:12").tiers[0].devices == 8


def test_data_rows_override_what_they_state():
    cluster = cluster_of(
        "a100-sxm-80g",
        64,
        per_node=4,
        inter_bytes_per_s=6.25e9,
        intra_bytes_per_s=100e9,
        memory_bytes=80e9,
    )
    assert cluster.tiers[0].devices == 4
    assert cluster.host.devices == 4
    assert {t.bytes_per_s for t in cluster.tiers[1:]} == {6.25e9}
    assert cluster.tiers[0].bytes_per_s == 100e9
    assert cluster.device.memory_bytes == 81920 * 2**20  # 80 GB is the card's own name
    assert cluster_of("a100-sxm-80g", 8, memory_bytes=40e9).device.memory_bytes == 40e9
    # four devices a host do not cut an NVLink domain of 72
    assert cluster_of("gb200-nvl72", 72, per_node=4).tiers[0].devices == 72


@pytest.mark.parametrize(
    "wrong",
    [{"per_node": 0}, {"inter_bytes_per_s": float("nan")}, {"memory_bytes": -1.0}],
)
def test_wrong_overrides(wrong):
    with pytest.raises(InputError, match=r"from 1 to|positive"):
        cluster_of("h100-sxm", 16, **wrong)


def test_loading_twice_shares_nothing():
    cluster_of("h100-sxm", 64, per_node=4, memory_bytes=1e9)
    assert cluster_of("h100-sxm", 64).tiers[0].devices == 8
    assert cluster_of("h100-sxm", 64).device.memory_bytes > 8e10


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_cluster(str(path))


def test_file_with_a_base_overrides_key_by_key(tmp_path):
    cluster = written(
        tmp_path, 'base = "h100-sxm"\ndevices = 96\n[device]\ntdp_w = 500.0\n[host]\nnics = 4.0\n'
    )
    base = cluster_of("h100-sxm", 96)
    assert cluster.name == "mine"
    assert cluster.device.tdp_w == 500
    assert cluster.device.peak_flops_per_s == base.device.peak_flops_per_s
    assert cluster.host.nics == 4
    assert cluster.tiers == base.tiers


def test_the_examples_of_the_documentation_load(tmp_path):
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        assert written(tmp_path, block).devices > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("devices = 8\n", "field required"),
        ('base = "h100-sxm"\n', "devices"),
        ('base = "h100-sxm"\ndevices = 0\n', "from 1 to"),
        ('base = "h100-sxm"\ndevices = true\n', "devices"),
        ('base = "nope"\ndevices = 8\n', "unknown device"),
        ("base = 3\ndevices = 8\n", "catalog node"),
        ('base = "h100-sxm"\ndevices = 8\n[device]\nattention = ["nope"]\n', "h100-flash"),
        ('base = "h100-sxm"\ndevices = 8\n[device]\nmemory_bytes = -1\n', "memory_bytes=-1: "),
        ('base = "h100-sxm"\ndevices = 8\n[device]\nmemory_bytes = nan\n', "memory_bytes"),
        ('base = "h100-sxm"\ndevices = 8\ntiers = []\n', "at least one tier"),
        ('base = "h100-sxm"\ndevices = 8\ntiers = 3\n', "tiers"),
        ('base = "h100-sxm"\ndevices = 8\ndevice = 3\n', "device"),
        ('base = "h100-sxm"\ndevices = 8\nhost = [1]\n', "host"),
    ],
)
def test_wrong_files(tmp_path, text, said):
    with pytest.raises(InputError) as caught:
        written(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_keys_in_a_file_are_listed(tmp_path):
    with pytest.raises(UnknownKeysError, match=r"colour, device\.shape"):
        written(tmp_path, 'base = "h100-sxm"\ndevices = 8\ncolour = 1\n[device]\nshape = 2\n')


def test_tiers_must_grow_outwards(tmp_path):
    tier = '[[tiers]]\nname = "{}"\ndevices = {}\nbytes_per_s = 1e9\nlatency_s = 0.0\n'
    with pytest.raises(InputError, match="must be larger"):
        written(
            tmp_path,
            'base = "h100-sxm"\ndevices = 64\n'
            + tier.format("a", 16)
            + tier.format("b", 8)
            + tier.format("c", 64),
        )


@pytest.mark.parametrize(
    ("table", "key", "value", "legal"),
    [
        ("device", "sustained_frac", "2", "less than or equal to 1"),
        ("device", "memory_bytes", "80.0", "greater than or equal to 1000000"),
        ("device", "memory_bytes", "1e30", "less than or equal to"),
        ("tier", "bytes_per_s", "450", "greater than or equal to 100000"),
        ("tier", "latency_s", "1e9", "less than or equal to 10"),
        ("tier", "efficiency", "81", "less than or equal to 1"),
        ("", "usd_per_device_hour", "1e30", "less than or equal to 1000000"),
    ],
)
def test_figures_in_another_unit_are_refused(tmp_path, table, key, value, legal):
    tier = {"name": '"a"', "devices": "16", "bytes_per_s": "5e10", "latency_s": "1e-6"}
    if table == "tier":
        tier[key] = value
    lines = ['base = "h100-sxm"', "devices = 16"]
    lines += [f"{key} = {value}"] if not table else []
    lines += ["[device]", f"{key} = {value}"] if table == "device" else []
    lines += ["[[tiers]]", *(f"{k} = {v}" for k, v in tier.items())]
    path = tmp_path / "c.toml"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    assert f"{key}=" in str(caught.value) and legal in str(caught.value)
