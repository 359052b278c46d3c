"""Programs that are lowered for NVIDIA GPUs, which needs neither a GPU nor CUDA, and the Triton kernels in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from jaxlib.mlir import ir
from jaxlib.triton import dialect

TRITON = "__gpu$xla.gpu.triton"  # the call of a Triton kernel
CALL = re.compile(r"stablehlo\.custom_call @([\w.$]+)")
KERNEL = re.compile(r'ir = "((?:[^"\\]|\\.)*)"')
PRODUCT = re.compile(r"tt\.dot .* : tensor<[\dx]*x(\w+)> \* tensor<[\dx]*x(\w+)> -> tensor<[\dx]*x(\w+)>")
DEVICES = {"ampere": "is_sm80", "hopper": "is_sm90", "blackwell": "is_sm100"}  # device -> tokamax's test for it


def kernels(text: str) -> list[str]:
    """The Triton code of each kernel."""
    found = []
    for encoded in KERNEL.findall(text):
        code = re.sub(r"\\([0-9A-F]{2}|.)", lambda match: unescaped(match[1]), encoded)
        context = ir.Context()
        dialect.register_dialect(context)
        found.append(str(ir.Module.parse(code.encode("latin-1"), context)))
    return found


def named_kernels(text: str) -> dict[str, str]:
    """The Triton code of each kernel, by name."""
    return {re.search(r"module @(\w+)", code)[1]: code for code in kernels(text)}  # type: ignore[index]


def unescaped(escape: str) -> str:
    """The character of an MLIR escape: two hexadecimal digits, or a character that stands for itself."""
    return chr(int(escape, 16)) if len(escape) == 2 else {"n": "\n", "t": "\t"}.get(escape, escape)


def lowered_as_on_gpu(step: Any, *arrays: Any, device: str, **others: Any) -> str:
    """The program of a jitted function, lowered for CUDA with the kernels that tokamax takes on such a device."""
    import tokamax  # pyright: ignore[reportMissingImports] - optional
    from tokamax._src import gpu_utils  # pyright: ignore[reportMissingImports]
    from tokamax._src.ops.ragged_dot import api  # pyright: ignore[reportMissingImports]

    from datakit.trainer.models.experts.grouped_product import load_tokamax

    load_tokamax()
    gpu = SimpleNamespace(device_kind="NVIDIA GPU", platform="gpu", core_count=132)
    tests = {test: is_device(name == device) for name, test in DEVICES.items()}
    patched: Any = mock.patch.multiple(gpu_utils, **tests)  # pyright: ignore[reportCallIssue, reportArgumentType]
    default = SimpleNamespace(get_default_device=lambda: gpu)
    with patched, mock.patch.object(api, "backend", default), tokamax.config.cross_compile(True):
        return step.trace(*arrays, **others).lower(lowering_platforms=("cuda",)).as_text()


def is_device(answer: bool) -> Callable[..., bool]:
    """A test for a kind of GPU that always gives this answer."""
    return lambda *_: answer
