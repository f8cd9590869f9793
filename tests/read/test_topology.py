"""Readings of `nvidia-smi topo -m` and Slurm's `topology.conf`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangsaw.errors import InputError
from gangsaw.read.topology import parse_slurm, parse_topo, read_slurm, read_topo


def matrix(gpus, cell, nics=0, near="PXB"):
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    lines = [
        "\t" + "\t".join(f"\x1b[4m{n}\x1b[0m" for n in names) + "\tCPU Affinity\tNUMA Affinity"
    ]
    for i, name in enumerate(names):
        row = []
        for j in range(len(names)):
            if i == j:
                row.append(" X ")
            elif i < gpus and j < gpus:
                row.append(cell(i, j))
            else:
                a, b = (i, j - gpus) if i < gpus else (j, i - gpus)
                row.append(near if a == b else "SYS")
        lines.append(name + "\t" + "\t".join(row) + ("\t0-51\t0" if i < gpus else ""))
    return "\n".join([*lines, "", "Legend:", "  X    = Self", "  NV#  = bonded set of # NVLinks"])


def test_switched_node_of_hopper():
    reading = read_topo(matrix(8, lambda i, j: "NV18", nics=8), "h100-sxm", 64)
    tier = reading.cluster.tiers[0]
    assert (tier.devices, tier.bytes_per_s, tier.mesh) == (8, 450e9, False)
    assert reading.cluster.tiers[1].bytes_per_s == 50e9
    assert any("8 NICs" in s for s in reading.stated)
    assert reading.assumed


def test_links_of_blackwell_are_twice_as_fast():
    reading = read_topo(matrix(8, lambda i, j: "NV18"), "b200", 8)
    assert reading.cluster.tiers[0].bytes_per_s == 900e9


def test_four_directly_linked_devices_are_a_mesh():
    reading = read_topo(matrix(4, lambda i, j: "NV4", nics=2), "a100-sxm-40g", 16)
    tier = reading.cluster.tiers[0]
    assert (tier.devices, tier.mesh, tier.bytes_per_s) == (4, True, 300e9)
    assert reading.cluster.host.devices == 4
    # two NICs for four devices: half a port each
    assert reading.cluster.tiers[1].bytes_per_s == 12.5e9


def test_bridged_pairs_make_two_tiers():
    text = matrix(8, lambda i, j: "NV12" if i // 2 == j // 2 else "SYS")
    reading = read_topo(text, "h100-pcie", 32)
    assert [t.devices for t in reading.cluster.tiers[:2]] == [2, 8]
    assert reading.cluster.tiers[0].bytes_per_s == 300e9


def test_no_nvlink_at_all():
    reading = read_topo(matrix(4, lambda i, j: "PHB"), "l40s", 4)
    assert [(t.name, t.devices) for t in reading.cluster.tiers] == [("node", 4)]


def test_storage_nics_are_not_counted():
    parsed = parse_topo(matrix(2, lambda i, j: "NV18", nics=4))
    assert (parsed.nics, parsed.near_nics) == (4, 2)


@pytest.mark.parametrize(
    "text",
    ["", "hello", "\tGPU0\tGPU1\nGPU0\t X \n", "\tGPU0\tGPU1\nGPU0\t X \t??\nGPU1\tNV1\t X "],
)
def test_wrong_matrices(text):
    with pytest.raises(InputError) as caught:
        read_topo(text, "h100-sxm", 8)
    assert "\n" not in str(caught.value)


TREE = """# two leaves of 16 under a spine
SwitchName=s0 Nodes=tux[00-15] LinkSpeed=400
SwitchName=s1 Nodes=tux[16-31]
switchname=s2 Switches=s[0-1]
"""


def test_tree():
    parsed = parse_slurm(TREE)
    assert parsed.nodes == 32
    assert parsed.levels == (("leaf", 16), ("spine", 32))
    cluster = read_slurm(TREE, "h100-sxm", 256).cluster
    assert [(t.name, t.devices) for t in cluster.tiers] == [
        ("node", 8), ("leaf", 128), ("spine", 256),
    ]  # fmt: skip


def test_blocks_are_rack_scale_domains():
    text = "BlockName=b1 Nodes=n[1-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18,36\n"
    cluster = read_slurm(text, "gb200-nvl72", 144).cluster
    assert [(t.name, t.devices) for t in cluster.tiers] == [("nvl72", 72), ("blocks", 144)]


def test_host_lists():
    assert parse_slurm("SwitchName=a Nodes=x[1-3,7]y[0-1],z").nodes == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "SwitchName"),
        ("SwitchName=a Switches=a", "below itself"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "below itself"),
        ("SwitchName=a Switches=b", "not described"),
        ("SwitchName=a", "no switch has Nodes"),
        ("SwitchName=a Nodes=n[1-x]", "range"),
        ("SwitchName=a Nodes=n[1-99999999999]", "too long"),
        ("SwitchName=a Nodes=n[1-999999]m[1-999]", "more than"),
        ("SwitchName=a Nodes=n[1-2]", "16; 64 were asked for"),
        (
            "".join(f"SwitchName=s{i} Switches=s{i - 1}\n" for i in range(39, 0, -1)),
            "levels",
        ),
    ],
)
def test_wrong_topology(text, said):
    with pytest.raises(InputError) as caught:
        read_slurm(text, "h100-sxm", 64)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="SwitchName=Nodes[]0-9,# \n", max_size=80))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        read_slurm(text, "h100-sxm", 8)
    except InputError as error:
        assert "\n" not in str(error)
