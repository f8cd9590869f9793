"""How frameworks say which layers a pipeline stage holds, and what follows from it."""

from __future__ import annotations

import re

from gangsaw.errors import InputError

MAX_STAGES = 4096
MAX_SLOTS = 100_000

_REPEAT = re.compile(r"(\([^()]{1,2000}\)|[A-Za-z|])\*([0-9]{1,5})")


def expand_layout(text: str) -> list[str]:
    """Stages of a Megatron layout string as plain letters: `Et*3|(tt|)*2mL` -> Ettt, tt, tt, mL.

    E is the embedding, t a layer, m a multi-token prediction layer, L the loss; `,` only separates.
    Raises InputError for other letters, unbalanced brackets, and more than MAX_SLOTS letters.
    Source: megatron/core/transformer/pipeline_parallel_layer_layout.py, core_r0.13.
    """
    if len(text) > 20_000:
        raise InputError(f"layout of {len(text):,} characters; 20,000 are the limit")
    plain = text.replace(",", "").replace(" ", "").replace("'", "").replace('"', "")
    for _ in range(50):
        found = _REPEAT.search(plain)
        if found is None:
            break
        plain = _REPEAT.sub(lambda m: m.group(1).strip("()") * int(m.group(2)), plain, count=200)
        if len(plain) > MAX_SLOTS:
            raise InputError(f"layout {_short(text)} grows beyond {MAX_SLOTS:,} slots")
    plain = plain.replace("(", "").replace(")", "") if "*" not in plain else plain
    wrong = sorted({char for char in plain if char not in "EtmL|"})
    if wrong:
        raise InputError(
            f"layout {_short(text)} holds {' '.join(wrong)}. Legal: E t m L | , and (...)*n"
        )
    return plain.split("|")


def layout_counts(text: str) -> tuple[int, ...]:
    """Transformer layers of each chunk of a layout, in stage order."""
    return tuple(stage.count("t") for stage in expand_layout(text))


def layout_text(counts: tuple[int, ...], mtp_layers: int = 0) -> str:
    """A Megatron layout for these layers a chunk, embedding first, loss last."""
    stages = [f"t*{count}" if count else "" for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp_layers + "L"
    return "|".join(stages)


def first_last(layers: int, pp: int, first: int | None, last: int | None) -> tuple[int, ...] | None:
    """Layers a rank with the ends stated and the middle even; None where it does not divide.

    Source: megatron/core/transformer/transformer_config.py, uneven pipeline split.
    """
    middle = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if middle < 0 or rest < 0 or (middle == 0) != (rest == 0):
        return None
    if middle and rest % middle:
        return None
    return (
        *(() if first is None else (first,)),
        *((rest // middle,) * middle if middle else ()),
        *(() if last is None else (last,)),
    )


def over_chunks(per_rank: tuple[int, ...], vpp: int) -> tuple[int, ...] | None:
    """Layers of each chunk in stage order, where each rank's layers split evenly over vpp."""
    if any(count % vpp for count in per_rank):
        return None
    return tuple(count // vpp for _ in range(vpp) for count in per_rank)


def counted_ends(
    layers: int, pp: int, vpp: int, embedding: bool, loss: bool
) -> tuple[int, ...] | None:
    """Layers of each chunk when embedding and loss count as a layer each."""
    total, chunks = layers + embedding + loss, pp * vpp
    if total % chunks:
        return None
    counts = [total // chunks] * chunks
    counts[0] -= embedding
    counts[-1] -= loss
    return tuple(counts) if min(counts) >= 0 else None


def titan_counts(layers: int, stages: int, first_less: int, last_less: int) -> tuple[int, ...]:
    """torchtitan's split, where embedding and output weigh as layers.

    Source: torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part, v0.2.
    Raises InputError where a stage would be empty or an end outweighs a stage.
    """
    if stages == 1:
        return (layers,)
    total = layers + first_less + last_less
    base, extra = divmod(total, stages)
    if base == 0 or first_less > base or last_less > base:
        raise InputError(
            f"{stages} stages for {layers} layers (+{first_less} +{last_less} for the ends):"
            f" {base} slots a stage are too few"
        )
    counts = [base + (index < extra) for index in range(stages)]
    counts[0] -= first_less
    counts[-1] -= last_less
    return tuple(counts)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
