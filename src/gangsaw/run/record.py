"""Record one layer of any PyTorch job: what autograd keeps of a forward pass, and the times.

    from record import record_layer                     # this file alone, or gangsaw.run.record
    record_layer("layer.json", model.layers[0], hidden_states)

It needs torch only; `python -m gangsaw.run.record > record.py` prints it to be copied into a job
that has no gangsaw. `gangsaw calibrate --layer-trace layer.json` makes a stack profile of it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def _plain(tensor: Tensor) -> Tensor:
    """A DTensor's part on this rank; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def _tensors(value: Any) -> Iterator[Tensor]:  # noqa: ANN401
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _drop(running: list[str]) -> None:
    running.pop()


@contextmanager
def _named(layer: nn.Module) -> Iterator[list[str]]:
    """The names of the modules whose forward pass is running, innermost last."""
    running: list[str] = []
    with ExitStack() as stack:
        for name, module in layer.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, n=name: running.append(n))
            leave = module.register_forward_hook(lambda *_: _drop(running))
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        yield running


def saved_tensors(layer: nn.Module, run: Callable[[], Any], apart: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Storages that autograd keeps during `run`; parameters, buffers and `apart` are left out."""
    own = [*layer.parameters(), *layer.buffers(), *_tensors(apart)]
    skip = {_plain(t).untyped_storage().data_ptr() for t in own}
    rows: dict[int, dict[str, Any]] = {}
    alive: list[Any] = []

    with _named(layer) as running:

        def pack(tensor: Tensor) -> Tensor:
            plain = _plain(tensor)
            storage = plain.untyped_storage()
            at = storage.data_ptr()
            if at not in skip and storage.nbytes():
                row = rows.setdefault(
                    at,
                    {
                        "name": running[-1] if running else "",
                        "bytes": storage.nbytes(),
                        "dtype": str(plain.dtype).removeprefix("torch."),
                        "shapes": [],
                    },
                )
                if list(plain.shape) not in row["shapes"]:
                    row["shapes"].append(list(plain.shape))
                alive.append(plain)  # or a freed storage's address would be taken for it
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            alive.append(run())
    return list(rows.values())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _times(run: Callable[[], Tensor], device: torch.device, repeats: int) -> dict[str, float]:
    """Median seconds of forward and backward, and of the host's part of a forward pass."""
    forward, backward, host = [], [], []
    for number in range(repeats + 2):
        _wait(device)
        begun = time.perf_counter()
        out = run()
        launched = time.perf_counter()
        _wait(device)
        done = time.perf_counter()
        torch.autograd.backward(out, torch.ones_like(out))
        _wait(device)
        ended = time.perf_counter()
        if number >= 2:  # the first ones warm up
            forward.append(done - begun)
            backward.append(ended - done)
            host.append(launched - begun)
    found = {
        "forward_s": statistics.median(forward),
        "backward_s": statistics.median(backward),
    }
    if device.type == "cuda":
        found["host_s"] = statistics.median(host)
    return found


def _operations(run: Callable[[], Tensor], device: torch.device) -> list[dict[str, Any]]:
    """Device seconds of each kernel (on a CPU: own seconds of each operation), both passes."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as prof:
        out = run()
        torch.autograd.backward(out, torch.ones_like(out))
        _wait(device)
    key = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = [(event.key, 1e-6 * float(getattr(event, key))) for event in prof.key_averages()]
    return [{"name": name, "seconds": seconds} for name, seconds in rows if seconds > 0.0]


def record_layer(
    path: str | Path, layer: nn.Module, *inputs: Any, repeats: int = 5,  # noqa: ANN401
    facts: dict[str, Any] | None = None, **keywords: Any,  # noqa: ANN401
) -> dict[str, Any]:  # fmt: skip
    """Run `layer(*inputs, **keywords)` forward and backward and write what it keeps and takes.

    The first input is the hidden states, [batch, seq, hidden]; other inputs (rotary tables,
    masks) are shared by all layers and not counted. `facts` states what cannot be seen, as
    {"tp": 8, "sequence_parallel": True, "model": "llama-3.1-70b"}, or corrects "mbs", "seq_len".
    Parameters' gradients are set to None; random state is left as it was.
    """
    hidden = inputs[0].detach().requires_grad_()
    rest = inputs[1:]
    device = _plain(hidden).device

    def run() -> Tensor:
        out = layer(hidden, *rest, **keywords)
        return out if isinstance(out, Tensor) else next(_tensors(out))

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        saved = saved_tensors(layer, run, [rest, keywords])
        times = _times(run, device, repeats)
        operations = _operations(run, device)
    layer.zero_grad(set_to_none=True)
    document = {
        "gangsaw_layer": 1,
        "layer": type(layer).__name__,
        "module": type(layer).__module__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "mbs": hidden.shape[0],
        "seq_len": hidden.shape[1],
        "precision": {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(hidden.dtype, "fp32"),
        **(facts or {}),
        **times,
        "saved": saved,
        "operations": operations,
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n")
    return document


if __name__ == "__main__":
    print(Path(__file__).read_text("utf-8"), end="")
