"""What stands before and behind the decoder layers, and what a target does without it."""

from __future__ import annotations

from gangsaw.spec import ModelSpec

# torchtitan: pull request 3392 adds the layers behind v0.2. transformers: inference alone uses them
# (pull requests 45617 and 46229), training does not.
_NO_PREDICTION = {
    "torchtitan": "torchtitan v0.2 has none, later ones take num_mtp_layers",
    "deepspeed": "transformers' classes train without them",
    "torchrun": "gangsaw train has none and will refuse this model",
    "slurm": "gangsaw train has none and will refuse this model",
    "kubernetes": "gangsaw train has none and will refuse this model",
}
_NO_TOWER = {
    "megatron-lm": "pretrain_gpt.py has the language model alone",
    "megatron-bridge": "the provider stated has the language model alone",
    "torchtitan": "torchtitan's models have none",
    "deepspeed": "the Trainer as stated has the language model alone",
    "torchrun": "gangsaw train has none and will refuse this model",
    "slurm": "gangsaw train has none and will refuse this model",
    "kubernetes": "gangsaw train has none and will refuse this model",
}


def prediction_layers(model: ModelSpec) -> int:
    """Layers of multi-token prediction; they stand on the last stage, before the loss."""
    return model.mtp.layers if model.mtp else 0


def end_notes(model: ModelSpec, target: str) -> tuple[str, ...]:
    """A line for each end of the model that the files of `target` do not have."""
    notes = []
    count = prediction_layers(model)
    if count and target in _NO_PREDICTION:
        notes.append(
            f"{count} layer{'' if count == 1 else 's'} of multi-token prediction:"
            f" {_NO_PREDICTION[target]}; time and memory of the last stage count"
            f" {'it' if count == 1 else 'them'}"
        )
    if model.vision is not None and target in _NO_TOWER:
        notes.append(
            f"vision tower of {model.vision.layers} layers: {_NO_TOWER[target]}; time, memory and"
            " stages are planned with it on the first stage"
        )
    return tuple(notes)
