"""Claims about money, power, memory technology and failures."""

from __future__ import annotations

from gangsaw.bill.claims_base import Claim, claim, gpt
from gangsaw.bill.finance import break_even_years
from gangsaw.bill.goodput import expected_wall_s, job_mtbf_s
from gangsaw.bill.power import site_power
from gangsaw.cost.lower import cut_of, lower
from gangsaw.cost.memory_layers import layer_memory
from gangsaw.read.clusters import list_nodes, load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.prices import shipped_prices
from gangsaw.read.stacks import load_stack
from gangsaw.spec.job import Job
from gangsaw.spec.plan import Plan
from gangsaw.spec.recipe import Recipe
from gangsaw.units import GIB, YEAR_S


@claim
def dcqcn() -> Claim:
    """Article 3: congestion control is mandatory."""
    return Claim(
        12,
        "3",
        "RoCE needs DCQCN or HPCC",
        "wrong",
        (
            "one counterexample at scale: Llama 3 trained on 24,576 devices over RoCE without"
            " DCQCN (16 flows a pair, deep-buffer spine; arXiv:2407.21783 section 3.3.1)",
        ),
        "fabrics shared with other traffic, shallow buffers, few flows",
        "wrong",
    )


@claim
def hbm_sizes() -> Claim:
    """Article 3: 24-80 GB of HBM3."""
    names = ("a100-sxm-80g", "h100-sxm", "h200-sxm", "b200", "mi300x", "rtx-4090")
    sizes = {n: load_cluster(f"{n}:8").device for n in names}
    small = [
        n
        for n in list_nodes()
        if 23 * GIB < load_cluster(f"{n}:8064").device.memory_bytes < 32 * GIB
    ]
    return Claim(
        13,
        "3",
        "accelerators carry 24-80 GB of HBM3",
        "wrong",
        (
            "catalog: "
            + ", ".join(
                f"{n} {d.memory_bytes / GIB:.0f} GiB at {d.memory_bytes_per_s / 1e12:.1f} TB/s"
                for n, d in sizes.items()
            ),
            f"devices of 24 to 31 GiB in the catalog: {', '.join(small)}, with HBM2 and GDDR6X; the"
            " A100 has HBM2e; HBM3 devices start at 80 GiB",
        ),
        "a device of 24 GB with HBM3: none is known",
        "wrong",
    )


def _offload_link(hidden: int, cluster: str) -> tuple[float, float]:
    """Bytes/s at which offloaded activations hide behind compute: by 34 s b h, and counted."""
    spec = load_cluster(cluster)
    seq = 8192
    rate = 0.5 * spec.device.peak_flops_per_s["bf16"]
    seconds = 24 * hidden**2 * (1 + seq / 6 / hidden) / rate
    job = Job(
        model=gpt(hidden),
        recipe=Recipe(seq_len=seq, global_batch=1),
        cluster=spec,
        stack=load_stack("megatron-core-te"),
    )
    low = lower(job)
    kept = layer_memory(low.kinds[0], cut_of(Plan(), job.recipe), low.memory).kept_none
    return 34 * hidden / seconds, kept / seq / seconds


@claim
def offload_or_recompute() -> Claim:
    """Article 3: small memory favours offload."""
    rows = []
    flips = []
    for hidden, cluster, link in (
        (8192, "h100-sxm:8", "PCIe 5"),
        (16384, "h100-sxm:8", "PCIe 5"),
        (8192, "b200:8", "PCIe 5"),
        (8192, "gb200-nvl72:72", "C2C"),
    ):
        has = load_cluster(cluster).device.pcie_bytes_per_s
        formula, counted = _offload_link(hidden, cluster)
        flips.append((has >= formula) != (has >= counted))
        rows.append(
            f"{cluster.split(':')[0]}, width {hidden:,}: {formula / 1e9:.0f} GB/s by 34 s b h,"
            f" {counted / 1e9:.0f} counted for Megatron Core; {link} has {has / 1e9:.0f}:"
            f" {'hides' if has >= counted else 'does not hide'}"
        )
    return Claim(
        14,
        "3",
        "small memory (under 32 GB) favours offload, large memory recompute",
        "wrong",
        (
            "offload hides when link >= bytes kept / compute time of a layer = 34 F mfu /"
            " (24 h (1 + s/6h)), whatever the memory's size",
            *rows,
        ),
        "link over FLOP/s, and width: not the memory",
        "wrong",
        "the 34 s b h of the review counts dropout masks that current pre-training does not keep;"
        " the counted bytes are lower"
        + ("" if any(flips) else ", though no verdict above changes"),
    )


@claim
def pue() -> Claim:
    """Article 3: PUE above 1.3 is substantial."""
    book = shipped_prices()
    power = site_power(book, "h100-sxm")
    it_w = power.it_w(128) / (1 + power.network_frac)
    kwh = it_w * YEAR_S / 3.6e6
    extra = kwh * 0.2 * power.usd_per_kwh
    capital = 1024 * book.value("device_price.h100-sxm.cluster", "USD/device") / 5
    mean = book.value("pue.site.mean", "ratio")
    return Claim(
        15,
        "3",
        "a PUE above 1.3 adds substantially to cost",
        "conditional",
        (
            f"1,024 H100 draw {it_w / 1e6:.2f} MW: 1.3 against 1.1 is ${extra / 1e3:.0f}K a year at"
            f" ${power.usd_per_kwh}/kWh = {100 * extra / capital:.1f} % of the"
            f" ${capital / 1e6:.1f}M a year of capital (5 years, $50K a device)",
            f"but each 0.1 takes {100 * 0.1 / 1.3:.0f} % of a fixed feed",
        ),
        f"energy above ${0.05 * capital / extra * power.usd_per_kwh:.2f}/kWh makes it 5 %; or a"
        " feed that is full",
        "conditional",
        f"the review adds that most sites exceed 1.3 since the mean is {mean}: a mean says nothing"
        " about how many sites lie above a value (a few poor sites raise it), so that part is"
        " unproven",
    )


@claim
def rack_power() -> Claim:
    """Article 3: 20-30 kW a rack."""
    book = shipped_prices()
    h100, b200 = (book.value(f"power.node.{n}", "W") / 1e3 for n in ("h100-sxm", "b200"))
    rack = book.get("power.rack.gb200-nvl72", "W")
    mean = book.value("rack_power.enterprise.mean", "W") / 1e3
    return Claim(
        16,
        "3",
        "racks draw 20-30 kW, which many enterprise data centres cannot provide",
        "conditional",
        (
            f"2 H100 nodes {2 * h100:.1f} kW, 4 {4 * h100:.1f}; 2 B200 nodes {2 * b200:.1f}; a rack"
            f" of 72 {rack.span[0] / 1e3:.0f}-{rack.span[1] / 1e3:.0f} kW ="
            f" {rack.value / 25e3:.1f} times as much",
            f"mean rack of the surveyed sites: about {mean:.0f} kW, so the second half is right",
        ),
        "the generation of the hardware: right for two H100 or B200 nodes a rack",
        "wrong",
        "the review's 'outdated' fits four nodes a rack and rack-scale systems; two DGX H100 or"
        " B200 nodes still are the 20-30 kW of the claim",
    )


@claim
def sustained_power() -> Claim:
    """Article 3: sustained draw equals the rating."""
    share = shipped_prices().get("power.measured.share", "frac")
    rated = load_cluster("h100-sxm:8").host.node_power_w
    return Claim(
        17,
        "3",
        "sustained draw equals the maximum rating",
        "wrong" if share.value < 0.95 else "right",
        (
            f"8 H100 measured at {share.value * rated / 1e3:.1f} of {rated / 1e3:.1f} kW:"
            f" {100 * share.value:.0f} % ({100 * share.span[0]:.0f} % in the median of a"
            " 13B training run)",
        ),
        "what it is for: breakers and feeds are sized by the rating, energy is billed as measured",
        "wrong",
    )


@claim
def retrofit() -> Claim:
    """Article 3: retrofit share."""
    book = shipped_prices()
    build = book.get("facility.new-build.ai", "USD/W")
    power = site_power(book, "h100-sxm")
    it_w = 128 * power.node_rated_w * (1 + power.network_frac)
    cluster = 1024 * book.value("device_price.h100-sxm.cluster", "USD/device")
    low, high = (100 * it_w * usd / cluster for usd in build.span)
    rack = book.value("rack_price.gb200-nvl72.with-building", "USD/rack")
    return Claim(
        18,
        "3",
        "retrofitting power and cooling takes 20-40 % of a cluster's cost",
        "unverifiable",
        (
            f"new build: 1,024 H100 at {it_w / 1e6:.2f} MW of IT x ${build.span[0]:.0f}-"
            f"{build.span[1]:.0f} a watt = {low:.0f}-{high:.0f} % of ${cluster / 1e6:.0f}M",
            f"Bernstein, GB200: ${(rack - 3.4e6) / 1e6:.1f}M of infrastructure on $3.4M of"
            f" compute = {100 * (rack - 3.4e6) / 3.4e6:.0f} %",
            "no sourced figure for a retrofit was found: it is an input",
        ),
        "a quote for the site",
        "conditional",
        f"the review reckons with 1.6 MW for 34-47 %; rated nodes and their network are"
        f" {it_w / 1e6:.2f} MW, which gives {low:.0f}-{high:.0f} %; and new-build prices bound a"
        " retrofit but do not measure it",
    )


@claim
def network_capital() -> Claim:
    """Article 3: network against devices."""
    share = shipped_prices().get("network.capital.share", "frac")
    return Claim(
        19,
        "3",
        "network capital can exceed that of the devices",
        "wrong",
        (
            f"network {100 * share.span[0]:.0f}-{100 * share.span[1]:.0f} % of capital, devices"
            f" 39-60 %: it would have to be {0.39 / share.span[0]:.0f} times as dear",
        ),
        "fabrics for a handful of devices, or a threefold price",
        "wrong",
    )


@claim
def egress() -> Claim:
    """Article 3: egress dominates."""
    book = shipped_prices()
    model = load_model("llama-3.1-405b")
    size = model.params() * book.value("failure.checkpoint.bytes", "count")
    each = size / 1e9 * book.value("egress.internet.aws", "USD/GB")
    run = 16384 * 54 * 24 * 2.0
    return Claim(
        20,
        "3",
        "object-store egress can dominate the cost",
        "wrong" if 419 * each < 0.05 * run else "right",
        (
            f"405B: a checkpoint of {size / 1e12:.2f} TB costs ${each:,.0f} to read out once;"
            f" 419 restores ${419 * each / 1e3:,.0f}K against ${run / 1e6:.0f}M of device time at"
            f" $2: {100 * 419 * each / run:.1f} %",
        ),
        "streaming petabytes of multimodal data across a paid boundary every epoch",
        "wrong",
    )


@claim
def failure_domain() -> Claim:
    """Articles 1 and 3 disagree on the failure domain."""
    book = shipped_prices()
    hours = book.value("failure.device.mtbf", "hours")
    block, restart = (book.value(f"failure.{k}", "s") for k in ("checkpoint.block", "restart.time"))
    lost = []
    for devices in (1024, 16384):
        mtbf = job_mtbf_s(hours, devices)
        wall = expected_wall_s(3600.0, block, 600.0, mtbf, restart)
        lost.append(f"{devices:,} devices {100 * (1 - 3600.0 / wall):.1f} %")
    return Claim(
        22,
        "1 and 3",
        "tensor parallelism (1) or pipelining (3) has the dearer failure domain",
        "wrong",
        (
            "a synchronous job stops whole, whichever axis failed: devices x (detect + restart +"
            " half an interval)",
            "lost with a save every 10 min: " + ", ".join(lost),
            "a slow worker, too: one of 64 at dp4 pp4 tp4 made the job 1.97 times as slow"
            " (arXiv:2505.05713, its published trace)",
        ),
        "replicas that go on without the failed one: then the domain is a replica, tp x pp",
        "wrong",
    )


@claim
def own_or_rent_claim() -> Claim:
    """Article 3: prefer on-premises within a year."""
    book = shipped_prices()
    price = book.value("device_price.h100-sxm.cluster", "USD/device")
    running = book.get("opex.h100-sxm.floor", "USD/device-hour").span[1]
    offers = ("on-demand", "reserved-1y", "aws")
    rents = [book.value(f"device_hour.h100-sxm.{o}", "USD/device-hour") for o in offers]
    years = [break_even_years(price, r, running) for r in rents]
    resold = break_even_years(price, rents[0], running, 0.3)
    idle = break_even_years(price, rents[0], running, 0.0, 0.5)
    return Claim(
        23,
        "3",
        "buying pays for itself within 12 months",
        "conditional",
        (
            f"${price / 1e3:.0f}K a device, ${running:.2f} an hour running: "
            + ", ".join(f"{y:.1f} years against ${r}" for y, r in zip(years, rents, strict=True)),
            f"{resold:.1f} years against ${rents[0]} with 30 % residual; {idle:.1f} at half use",
        ),
        f"a rent above ${price / 8766 + running:.2f} an hour at full use",
        "conditional",
    )


@claim
def value_pool() -> Claim:
    """Article 1: the value pool."""
    low, high = 4 / 200, 9 / 150
    return Claim(
        24,
        "1",
        "$4-9B a year by 2029 of $150-200B of spending",
        "unverifiable",
        (
            f"the shares are {100 * low:.1f}-{100 * high:.1f} % ({100 * 4 / 150:.1f}-"
            f"{100 * 9 / 200:.1f} % when ends are matched): consistent arithmetic on a forecast",
            "hyperscaler capital plans of 2026 ($600-725B, all uses) suggest that the base is low",
        ),
        "actual spending in 2029",
        "unverifiable",
    )


@claim
def recovery_time() -> Claim:
    """Article 3: recovery in minutes."""
    figure = shipped_prices().get("failure.restart.time", "s")
    return Claim(
        25,
        "3",
        "a failed stage is back within minutes",
        "conditional",
        (
            f"measured restarts: {figure.span[0] / 60:.0f}-{figure.span[1] / 60:.0f} min (RSC,"
            " MegaScale); failover above 10 min at 10,000 devices (ByteRobust)",
        ),
        "spares at hand and peer memory bring it to seconds; a node replaced through a cloud's"
        " interface takes hours (OPT-175B)",
        "right",
        "the review calls it right 'for the best'; a claim that holds for the best only is"
        " conditional",
    )


@claim
def seven_billion() -> Claim:
    """Article 2: 7B on 80 GB needs no pipeline."""
    params = load_model("llama-2-7b").params()
    whole = [params * b / 1e9 for b in (16, 18)]
    zero1 = (params * 6 + params * 12 / 8) / 1e9
    return Claim(
        27,
        "2",
        "a 7B model on 80 GB devices often needs no pipeline",
        "right" if zero1 < 80 else "wrong",
        (
            f"{params / 1e9:.2f}B parameters: {whole[0]:.0f}-{whole[1]:.0f} GB of state whole;"
            f" {whole[0] / 8:.0f}-{whole[1] / 8:.0f} GB a device with ZeRO-3 over 8,"
            f" {zero1:.0f} GB with the optimizer alone sharded (ZeRO-1, fp32 gradients)",
        ),
        "one device alone, or sequences whose activations do not fit",
        "right",
    )
