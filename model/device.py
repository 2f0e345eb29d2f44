"""Where a model runs, and in what precision."""

from contextlib import nullcontext

import torch

from base import InputError


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; auto takes a GPU if there is one. InputError: not available."""
    present = [gpu for gpu in ("cuda", "mps") if getattr(torch, gpu).is_available()] + ["cpu"]
    if name not in ("auto", *present):
        raise InputError(f"train.device: {name!r} is not available; available: {', '.join(present)}")
    return torch.device(present[0] if name == "auto" else name)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch raised this because a device ran out of memory; only CUDA has a class for it."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text


def autocast(dtype: str, device: torch.device):
    """The context for forward passes in float32 or bfloat16; auto is bfloat16 on a GPU that supports it.

    Not on CPUs: without AVX512-BF16 or AMX they multiply bfloat16 matrices a hundred times slower than float32.
    """
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if dtype == "bfloat16" or (dtype == "auto" and has_bfloat16):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def without_autocast(device: torch.device):
    """The context in which what is computed keeps its precision, also inside `autocast`."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device; to a GPU from pinned memory, so that the program need not wait for it."""
    to_gpu = device.type == "cuda" and not tensor.is_cuda
    return tensor.pin_memory().to(device, non_blocking=True) if to_gpu else tensor.to(device)
