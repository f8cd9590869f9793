"""How frameworks split layers into stages when nobody says how."""

from __future__ import annotations


def default_counts(layers: int, chunks: int) -> tuple[int, ...]:
    """Transformer layers of each chunk, as even as whole layers allow.

    Where they do not divide, the last chunk (loss head) and then the first (embedding) hold
    fewer, then the chunks before the last; so 126 layers on 16 chunks are 7, 8 x 14, 7.
    """
    base, extra = divmod(layers, chunks)
    if extra == 0:
        return (base,) * chunks
    short = chunks - extra
    order = [chunks - 1, 0, *range(chunks - 2, 0, -1)]
    few = set(order[:short])
    return tuple(base if c in few else base + 1 for c in range(chunks))


def ends_as_layers(layers: int, chunks: int) -> tuple[int, ...] | None:
    """Chunks when embedding and loss head count as a layer each; None where it does not divide."""
    if (layers + 2) % chunks or chunks < 2:
        return None
    per = (layers + 2) // chunks
    if per < 1:
        return None
    return (per - 1, *(per,) * (chunks - 2), per - 1)
