"""Keys of one Hugging Face config: validated, with the defaults of transformers, none unread.

Rule for keys that are absent: a key that sets a shape and that every published config of the
family states must be there (the error lists all that are missing); any other takes the default of
transformers' config class of that family. In a nested config (`text_config`, `vision_config`)
every key takes its default, because transformers writes only what differs there; the assumed
shapes are listed in `notes`.

Rule for keys that no reader knows: one that could change a shape (a number of two and more, a
list, a table) is refused with all such keys listed; any other is listed in `notes`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from gangsaw.errors import InputError, UnknownKeysError

LIMITS = {
    "hidden_size": 10**6,
    "num_hidden_layers": 10**4,
    "num_attention_heads": 10**5,
    "vocab_size": 10**8,
    "num_experts": 10**5,
    "num_local_experts": 10**5,
    "n_routed_experts": 10**5,
    "moe_num_experts": 10**5,
}
ANY_LIMIT = 10**8
"""Larger values are typing errors: no published model comes within a factor of ten."""

_HARMLESS = re.compile(
    r"^_|_token_ids?$|_token_index$|rope|rotary|pdrop$|dropout|_eps$|epsilon|initializ|^init_|"
    r"_loss|aux|^output_|softmax|fusion|flash|_scal|scale$|temperature|penalty|_dtype$|^dtype$|"
    r"^summary_|label|tokenizer|version|pretraining|generat|checkpoint|_act$|activation|quant|"
    r"_fn$|jitter|softcap|multiplier|compressor|attn_impl|position_embedding_type|^rms_norm$|"
    r"beam|suppress|ngram|_length$|^clip_qkv$|^logit_"
)
_HARMLESS_NAMES = frozenset(
    """
    model_type architectures auto_map use_cache torch_dtype transformers_version id2label
    label2id problem_type task_specific_params finetuning_task return_dict torchscript
    use_bfloat16 tf_legacy_loss pruned_heads tie_encoder_decoder is_encoder_decoder is_decoder
    cross_attention_hidden_size add_cross_attention chunk_size_feed_forward prefix do_sample
    early_stopping top_k top_p typical_p remove_invalid_values bad_words_ids num_return_sequences
    forced_bos_token_id forced_eos_token_id max_length min_length n_ctx seq_length
    model_max_length ep_size scoring_func topk_method seq_aux norm_topk_prob n_group topk_group
    use_mrope original_max_position_embeddings max_position_embeddings partial_rotary_factor
    offset_alibi skip_bias_add skip_bias_add_qkv slow_but_exact attention_softmax_in_fp32
    unk_token_id initial_context_length experts_per_token cache_implementation processor_class
    hidden_act layerdrop init_std initial_std license tie_lm_head max_window_layers sliding_window
    use_sliding_window swiglu_limit swiglu_alpha query_pre_attn_scalar floor_scale attn_scale
    attn_temperature_tuning rope_interleave use_bidirectional_attention ffn_act_fn gelu
    reorder_and_upcast_attn image_token_index video_token_id vision_start_token_id
    vision_end_token_id image_seq_length image_grid_pinpoints use_image_newline_parameter
    projector_hidden_act vision_feature_layer vision_feature_select_strategy min_pixels max_pixels
    num_image_tokens mlp_hidden_size return_dict_in_generate n_positions mup apply_residual
    apply_residual_connection_post_layernorm unsloth_fixed neftune_noise_alpha
    hidden_activation norm_type alibi_bias_max prefix_lm attn_uses_sequence_id verbose
    init_config use_flash_attn use_flash_attention_2 embedding_fraction no_rope_layers
    no_rope_layer_interval pad_vocab_size_multiple bias_dropout_fusion tokens_per_second fps
    spatial_patch_size window_size fullatt_block_indexes ignore_index attention_layers rotary
    scale_emb scale_depth dim_model_base scale_attn_weights
    """.split()  # noqa: SIM905
)


@functools.cache
def _table() -> dict[str, Any]:
    """Defaults and aliases of transformers' config classes, by model type."""
    path = resources.files("gangsaw.catalog") / "hf_defaults.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


class Keys:
    """The keys of one (possibly nested) config, read by name with checks.

    `types` names the entry of catalog/hf_defaults.json that gives defaults and aliases.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str, model_type: str, nested: bool = False
    ) -> None:
        entry = _table()["types"].get(model_type, {"defaults": {}, "aliases": {}})
        self.where = where
        self.values = dict(values)
        self.nested = nested
        self.notes: list[str] = []
        self.defaults: dict[str, Any] = entry["defaults"]
        self._aliases: dict[str, str] = dict(entry["aliases"])
        if "hidden_size" in self.defaults:
            self._aliases.setdefault("n_embed", "hidden_size")
        self._read: set[str] = set()

    def names(self, key: str) -> tuple[str, ...]:
        """Every name under which a config may state `key`, the given one first."""
        same = [a for a, b in self._aliases.items() if b == key]
        other = [self._aliases[key]] if key in self._aliases else []
        return (key, *other, *same)

    def has(self, key: str) -> bool:
        """Whether the config states `key`, null included, under any of its names."""
        return any(name in self.values for name in self.names(key))

    def raw(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - JSON value
        """The value as stated, else transformers' default, else `default`."""
        self._read.update(self.names(key))
        for name in self.names(key):
            if name in self.values:
                return self.values[name]
        for name in self.names(key):
            if name in self.defaults:
                return self.defaults[name]
        return default

    def require(self, keys: Iterable[str]) -> None:
        """Raise one InputError that lists every key of `keys` that is missing or null."""
        missing = [k for k in keys if all(self.values.get(n) is None for n in self.names(k))]
        if self.nested:
            assumed = [f"{k}={self.raw(k)}" for k in missing if self.raw(k) is not None]
            missing = [k for k in missing if self.raw(k) is None]
            if assumed:
                self.notes.append(
                    f"{self.where}: assumed as transformers does: {', '.join(assumed)}"
                )
        if missing:
            raise InputError(
                f"{self.where}: missing keys {', '.join(missing)}; every shape must be stated"
            )

    def count(self, key: str, least: int = 1) -> int:
        """A whole number from `least` up to the limit of that key."""
        value = self.raw(key)
        if value is None:
            raise InputError(f"{self.where}: missing keys {key}; a whole number from {least} up")
        return self._whole(key, value, least)

    def optional(self, key: str, least: int = 1) -> int | None:
        """A whole number, or None where the key is absent or null."""
        value = self.raw(key)
        return None if value is None else self._whole(key, value, least)

    def _whole(self, key: str, value: object, least: int) -> int:
        """`value` as a whole number within the limits."""
        most = LIMITS.get(key, ANY_LIMIT)
        for name in self.names(key):
            most = min(most, LIMITS.get(name, ANY_LIMIT))
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(
                f"{self.where}: {key}={json.dumps(value)} is not a whole number"
                f" from {least} to {most:,}"
            )
        return value

    def flag(self, key: str) -> bool:
        """true or false; null is false."""
        value = self.raw(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {key}={json.dumps(value)} is not true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(f"{self.where}: {key}={json.dumps(value)[:80]} is not a string")
        return value

    def sequence(self, key: str) -> list[Any] | None:
        """A list, or None where the key is absent or null."""
        value = self.raw(key)
        if value is not None and not isinstance(value, list):
            raise InputError(f"{self.where}: {key}={json.dumps(value)[:80]} is not a list")
        return value

    def layer_indices(self, key: str) -> list[int] | None:
        """A list of layers by index, each below `num_hidden_layers`; None where it is absent."""
        listed = self.sequence(key)
        layers = self.count("num_hidden_layers") if listed else 0
        for item in listed or ():
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < layers:
                raise InputError(
                    f"{self.where}: {key} lists {json.dumps(item)[:40]}, which is no layer of this"
                    f" model; legal here: 0 to {layers - 1}"
                )
        return listed

    def nest(self, key: str, model_type: str) -> Keys:
        """The nested config under `key` (an empty one where absent)."""
        value = self.raw(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise InputError(f"{self.where}: {key}={json.dumps(value)[:80]} is not a table")
        return Keys(value, f"{self.where}: {key}", model_type, nested=True)

    def know(self, keys: Iterable[str]) -> None:
        """Take keys as read: they stand here as copies of what another part states."""
        self._read.update(keys)

    def finish(self) -> tuple[str, ...]:
        """Notes of this config; UnknownKeysError where an unread key could change a shape."""
        unread = sorted(set(self.values) - self._read - _HARMLESS_NAMES - set(self.defaults))
        unread = [k for k in unread if k not in self._aliases and not _HARMLESS.search(k)]
        grave = [k for k in unread if _could_be_a_shape(self.values[k])]
        if grave:
            raise UnknownKeysError(self.where, grave)
        if unread:
            self.notes.append(f"{self.where}: keys not read: {', '.join(unread)}")
        return tuple(self.notes)


def _could_be_a_shape(value: object) -> bool:
    """Whether an unknown key's value may be a width, a count or a layout."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, float):
        return value != value or (value.is_integer() and abs(value) >= 2)
    if isinstance(value, int):
        return value not in (-1, 0, 1)
    return isinstance(value, (list, dict)) and bool(value)


def divisors(n: int) -> str:
    """Divisors of n as text, at most twenty, the largest left off."""
    found = [str(d) for d in range(1, min(n, 4096) + 1) if n % d == 0]
    return ", ".join(found[:20])
