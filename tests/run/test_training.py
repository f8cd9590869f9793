"""Training as a whole: optimizer, exact resume, whole checkpoints, learning, other models' maths."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from small import SEQ, TOKENS, config, tiny

from gangsaw.errors import InputError, RunFailedError
from gangsaw.run import checkpoints
from gangsaw.run.config import OptimizerConfig
from gangsaw.run.data import Batches, load_tokens
from gangsaw.run.demo import demo_config
from gangsaw.run.launch import check_run
from gangsaw.run.model import BuildOptions, build_stage
from gangsaw.run.optim import learning_rate
from gangsaw.run.parallel import rank_grid
from gangsaw.run.sample import sample_text
from gangsaw.run.trainer import Trainer, run_rank
from gangsaw.spec import Plan


def steps(cfg, count, load=False, save_at=None):
    """Losses of `count` steps, and the whole parameters of this rank behind them."""
    trainer = Trainer(cfg, TOKENS)
    if load:
        trainer.load()
    losses = []
    for _ in range(count):
        losses.append(trainer.step().loss)
        if save_at == trainer.step_number:
            trainer.save()
    whole = {}
    for name, tensor in trainer.named_state().items():
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        whole[name] = full.clone()
    return losses, whole


def merged(answers):
    return {name: tensor for _, whole in answers for name, tensor in whole.items()}


PLANS = {
    "tp2 pp2": Plan(tp=2, pp=2, num_microbatches=4),
    "dp4 zero3": Plan(dp=4, num_microbatches=1, zero=3),
    "pp2 x2 zb-v tied": Plan(pp=2, vpp=2, num_microbatches=4, schedule="zb-v"),
}


@pytest.mark.parametrize("case", PLANS)
def test_steps_equal_a_single_process_and_torch_adamw(pool, case):
    """Five optimizer steps: parameters as those of plain AdamW on the plain model."""
    cfg = config(
        PLANS[case],
        tiny(tied="tied" in case),
        steps=5,
        optimizer=OptimizerConfig(lr=1e-2, warmup_steps=2),
    )
    got = merged(pool.run(cfg.plan.devices, steps, cfg, 5))
    model = build_stage(cfg.model, range(4), (True, True), BuildOptions(SEQ))
    opt = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    batches = Batches(TOKENS, SEQ, cfg.global_batch, 0)
    for step in range(5):
        x, y = (torch.from_numpy(a) for a in batches.rows(step, 0, cfg.global_batch))
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in opt.param_groups:
            group["lr"] = [5e-3, 1e-2, 1e-2, None, None][step] or learning_rate(
                cfg.optimizer, step, 5
            )
        opt.step()
    for name, param in model.named_parameters():
        # AdamW divides by the root of the second moment, which lifts rounding where it is small.
        assert float((got[f"model.{name}"] - param.detach()).abs().max()) < 2e-5, name


def test_resume_is_exact(pool, tmp_path):
    cfg = config(PLANS["tp2 pp2"], steps=6, out=str(tmp_path))
    whole = pool.run(4, steps, cfg, 6)
    pool.run(4, steps, cfg, 3, False, 3)
    again = pool.run(4, steps, cfg, 3, True)
    assert again[0][0] == whole[0][0][3:]
    for (_, a), (_, b) in zip(whole, again, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("case", ["dp4 zero3", "pp2 x2 zb-v tied"])
def test_another_plan_continues(pool, tmp_path, case):
    """Saved at tp 2 x pp 2, loaded under another plan: state bit-equal, then the same losses."""
    cfg = config(PLANS["tp2 pp2"], tiny(tied=True), steps=6, out=str(tmp_path))
    before = merged(pool.run(4, steps, cfg, 3, False, 3))
    other = config(PLANS[case], tiny(tied=True), steps=6, out=str(tmp_path))
    loaded = merged(pool.run(other.plan.devices, steps, other, 0, True))
    assert loaded.keys() == before.keys()
    for name in before:
        assert torch.equal(loaded[name], before[name]), name
    straight = pool.run(4, steps, cfg, 6)[0][0][3:]
    for mine, theirs in zip(
        pool.run(other.plan.devices, steps, other, 3, True)[0][0], straight, strict=True
    ):
        assert math.isclose(mine, theirs, abs_tol=1e-5)


def test_resume_refuses_another_job(pool, tmp_path):
    cfg = config(Plan(), steps=6, out=str(tmp_path))
    pool.run(1, steps, cfg, 1, False, 1)
    with pytest.raises(InputError, match=r"--seed is 5, .* was written with 0"):
        pool.run(1, steps, cfg.model_copy(update={"seed": 5}), 1, True)


def _saved(pool, tmp_path, count=2):
    cfg = config(Plan(dp=2), steps=9, out=str(tmp_path))
    for step in range(1, count + 1):
        pool.run(2, steps, cfg, step, False, step)
    return cfg, tmp_path / "checkpoints"


def test_damaged_checkpoints_are_passed_over(pool, tmp_path):
    _, folder = _saved(pool, tmp_path)
    assert checkpoints.newest(tmp_path).name == "step-00000002"
    shard = next((folder / "step-00000002").glob("*.distcp"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    assert "checksum" in checkpoints.fault(folder / "step-00000002")
    assert checkpoints.newest(tmp_path).name == "step-00000001"
    next((folder / "step-00000001").glob("*.distcp")).unlink()
    with pytest.raises(RunFailedError, match="no whole checkpoint"):
        checkpoints.newest(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "manifest", "half", "empty"])
def test_each_damage_is_named(pool, tmp_path, damage):
    _, folder = _saved(pool, tmp_path, 1)
    at = folder / "step-00000001"
    if damage == "cut":
        shard = next(at.glob("*.distcp"))
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "manifest":
        (at / "gangsaw.json").unlink()
    elif damage == "half":
        text = (at / "gangsaw.json").read_text()
        (at / "gangsaw.json").write_text(text[: len(text) // 2])
    else:
        for file in at.iterdir():
            file.unlink()
    assert checkpoints.fault(at)


def test_an_unfinished_save_is_not_there(pool, tmp_path):
    cfg, folder = _saved(pool, tmp_path, 1)
    part = folder / ".part-step-00000002"
    part.mkdir()
    (part / "__0_0.distcp").write_bytes(b"torn")
    assert checkpoints.newest(tmp_path).name == "step-00000001"
    pool.run(2, steps, cfg, 2, False, 2)
    assert checkpoints.newest(tmp_path).name == "step-00000002"
    assert not part.exists()


def test_bf16_stays_near_fp32(pool):
    """Mixed precision (bf16 compute, fp32 state and reduction): losses within 2 % of fp32."""
    plan = Plan(pp=2, tp=2, num_microbatches=4)
    exact = pool.run(4, steps, config(plan, steps=5), 5)[0][0]
    mixed = pool.run(4, steps, config(plan, steps=5, precision="bf16"), 5)[0][0]
    for a, b in zip(exact, mixed, strict=True):
        assert a != b
        assert math.isclose(a, b, rel_tol=0.02)


def test_the_demo_learns(pool, tmp_path):
    cfg = demo_config(str(tmp_path), steps=30)
    records = pool.run(4, run_rank, cfg)[0]
    assert records[0].loss > 5.3
    assert records[-1].loss < 3.3
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in log] == list(range(1, 31))
    text = sample_text(tmp_path, "Shall I ", 60)
    assert text.startswith("Shall I ")
    assert text.count(" ") > 5
    for rank in range(4):
        trace = json.loads((tmp_path / "trace" / f"rank{rank}.json").read_text())
        assert trace["distributedInfo"]["rank"] == rank
        names = {e.get("name") for e in trace["traceEvents"]}
        actions = (tmp_path / "actions" / f"rank{rank}.txt").read_text().split()
        assert {f"PP:{a}" for a in actions} <= names


def test_learning_rate_warms_up_and_decays():
    cfg = OptimizerConfig(lr=1.0, warmup_steps=4, min_frac=0.1)
    rates = [learning_rate(cfg, s, 24) for s in range(24)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert learning_rate(cfg, 24, 24) == pytest.approx(0.1)


def test_batches_do_not_depend_on_the_plan_and_cover_an_epoch():
    batches = Batches(TOKENS, SEQ, 8, 3)
    whole = batches.rows(2, 0, 8)[0]
    parts = [Batches(TOKENS, SEQ, 8, 3).rows(2, r * 4, 4)[0] for r in range(2)]
    assert (whole == [row for part in parts for row in part]).all()
    seen = {batches._sequence(i) for i in range(batches.count)}
    assert seen == set(range(batches.count))
    x, y = batches.rows(0, 0, 1)
    assert (x[0, 1:] == y[0, :-1]).all()


def test_rank_grid_follows_the_rank_order():
    inner_tp = rank_grid(Plan(tp=2, pp=2, dp=2))
    assert inner_tp[0, 0, 0].tolist() == [0, 1]
    assert inner_tp[0, 0, :, 0].tolist() == [0, 2]
    inner_pp = rank_grid(Plan(tp=2, pp=2, dp=2, rank_order="pp-dp-cp-ep-tp"))
    assert inner_pp[:, 0, 0, 0].tolist() == [0, 1]
    assert inner_pp[0, 0, 0].tolist() == [0, 4]
    assert rank_grid(Plan(dp=4, zero=0)).shape == (1, 4, 1, 1)
    assert rank_grid(Plan(dp=4, zero=3, shard_group=2)).shape == (1, 2, 2, 1)


REFUSED = {
    "cp": (Plan(cp=2), {}, "cp=2"),
    "ep": (Plan(dp=2, ep=2), {"moe": True}, "ep=2"),
    "tp": (Plan(tp=3), {}, "Legal here: 1, 2"),
    "dualpipe": (Plan(pp=2, schedule="dualpipe"), {}, "dualpipe-v"),
    "stages": (Plan(pp=2, stages=(1, 1)), {}, "sums to 2"),
    "vpp": (Plan(vpp=2), {}, "pp > 1"),
    "shard group": (Plan(dp=4, shard_group=3), {}, "Legal here: 1, 2, 4"),
    "schedule": (Plan(pp=2, vpp=1, schedule="zb-v", num_microbatches=4), {}, "vpp"),
    "experts": (Plan(tp=2), {"moe": True}, "etp"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_plans_that_cannot_run_are_refused_in_one_line(tmp_path, case):
    plan, model, said = REFUSED[case]
    text = tmp_path / "text.txt"
    text.write_text("x" * 500)
    cfg = config(plan, tiny(**model), out=str(tmp_path / "run")).model_copy(
        update={"data": (str(text),)}
    )
    with pytest.raises(InputError) as caught:
        check_run(cfg)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_that_cannot_be_built_are_refused():
    model = tiny()
    attention = model.kinds[0].attention.model_copy(update={"sinks": True})
    kind = model.kinds[0].model_copy(update={"attention": attention})
    with pytest.raises(InputError, match="sinks"):
        from gangsaw.run.model import check_model

        check_model(model.model_copy(update={"kinds": (kind,)}))


def test_data_faults(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_tokens([str(tmp_path / "none.txt")])
    bad = tmp_path / "bad.npy"
    bad.write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a numpy array"):
        load_tokens([str(bad)])
    text = tmp_path / "t.txt"
    text.write_bytes(b"\xff" * 100)
    with pytest.raises(InputError, match=r"0\.\.63"):
        load_tokens([str(text)], vocab=64)
    with pytest.raises(InputError, match="needs at least"):
        Batches(load_tokens([str(text)]), 128, 1, 0)


def test_a_failing_rank_is_told(pool):
    with pytest.raises(RunFailedError, match="ZeroDivisionError"):
        pool.run(2, divide, 0)
    assert pool.run(2, divide, 2) == [0.5, 0.5]


def divide(by):
    return 1 / by


@pytest.mark.parametrize("qk", ["none", "head"])
def test_the_decoder_is_that_of_transformers(qk):
    """Logits and gradients equal Hugging Face's Llama (Qwen3 with norms of heads) on the same weights."""
    import transformers

    spec = tiny(layers=2, qk=qk)
    base = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False, "rope_theta": 10000.0}  # fmt: skip
    if qk == "head":
        theirs = transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(**base, attention_bias=False)
        )
    else:
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**base))
    mine = build_stage(spec, range(2), (True, True), BuildOptions(SEQ))
    names = {
        "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
        "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
        "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm",
        "mlp.w_gate": "mlp.gate_proj", "mlp.w_in": "mlp.up_proj", "mlp.w_out": "mlp.down_proj",
    }  # fmt: skip
    pairs = {}
    for name, param in mine.named_parameters():
        part = name.removesuffix(".weight")
        if part.startswith("layers."):
            _, layer, rest = part.split(".", 2)
            pairs[f"model.layers.{layer}.{names[rest]}.weight"] = param
        else:
            pairs[f"{names[part]}.weight"] = param
    state = theirs.state_dict()
    assert set(pairs) == set(state)
    theirs.load_state_dict({k: v.detach() for k, v in pairs.items()})
    x, y = (torch.from_numpy(a) for a in Batches(TOKENS, SEQ, 2, 0).rows(0, 0, 2))
    loss = torch.nn.functional.cross_entropy(mine(x).flatten(0, 1), y.flatten())
    loss.backward()
    other = torch.nn.functional.cross_entropy(theirs(x).logits.flatten(0, 1), y.flatten())
    other.backward()
    assert abs(float(loss.detach() - other.detach())) < 1e-6
    grads = dict(theirs.named_parameters())
    for name, param in pairs.items():
        assert float((param.grad - grads[name].grad).abs().max()) < 1e-6, name
