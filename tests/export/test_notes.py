"""What an export cannot carry is said: a plan that fits no more, positions the model leaves open."""

from gangsaw.cli.flags import RecipeFlags
from gangsaw.cli.options import recipe_from
from gangsaw.export import export_plan
from gangsaw.read.clusters import load_cluster
from gangsaw.read.models import load_model
from gangsaw.read.stacks import load_stack
from gangsaw.search.estimate import estimate
from gangsaw.spec import Job, Plan, Recipe


def a_job(model="llama-3.1-70b", devices=64, seq_len=8192):
    return Job(
        model=load_model(model),
        recipe=Recipe(seq_len=seq_len, global_batch=256),
        cluster=load_cluster(f"h100-sxm:{devices}"),
        stack=load_stack("unknown"),
    )


def test_a_plan_that_fits_no_more_is_told():
    job, plan = a_job(), Plan(tp=8, pp=2, dp=4, num_microbatches=64)
    found = export_plan(job, plan, "deepspeed")
    assert estimate(job, plan).memory.fits == "yes"
    after = estimate(job, found.plan).memory
    assert found.plan.pp == 1 and after.peak_bytes > after.capacity_bytes
    said = [note for note in found.notes if note.startswith("as written it needs")]
    assert len(said) == 1 and f"{after.peak_bytes / 2**30:.0f} GiB" in said[0]


def test_a_plan_that_fits_says_nothing_of_the_kind():
    found = export_plan(a_job(), Plan(tp=8, pp=2, dp=4, num_microbatches=64), "torchtitan")
    assert not [note for note in found.notes if "as written" in note]


def test_the_base_of_rotary_positions_is_named_where_it_is_open():
    plan = Plan(tp=2, dp=4, num_microbatches=64)
    rotary = export_plan(a_job("llama-3.1-8b", 8), plan, "megatron-lm")
    learned = export_plan(a_job("gpt2", 8, 1024), plan, "megatron-lm")
    assert "--rotary-base 500000" in rotary.main.text
    assert "--use-rope-scaling" in rotary.main.text
    assert "--rope-scaling-factor 8" in rotary.main.text
    assert not any("--rotary-base" in note for note in rotary.notes)
    job = a_job("llama-3.1-8b", 8)
    silent = job.model_copy(update={"model": job.model.model_copy(update={"rotary": None})})
    assert any("--rotary-base" in n for n in export_plan(silent, plan, "megatron-lm").notes)
    assert not any("--rotary-base" in note for note in learned.notes)


def test_an_assumed_length_stays_within_learned_positions():
    assert recipe_from(RecipeFlags(), positions=1024)[0].seq_len == 1024
    assert recipe_from(RecipeFlags(), positions=2050)[0].seq_len == 2048
    assert recipe_from(RecipeFlags(), positions=0)[0].seq_len == 4096
    assert recipe_from(RecipeFlags(seq_len="4096"), positions=1024)[0].seq_len == 4096
