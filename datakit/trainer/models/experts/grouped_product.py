"""Multiplies the rows of each expert by the expert's matrix, with the kernels of tokamax.

    tokamax_matmul(rows, weights, count) -> y        the first count[0] rows are multiplied by weights[0], and so on

Its gradients are grouped products as well, each with a choice of its own among the kernels, because the kernels of
tokamax 0.0.12 differ in what they can do:

- "mosaic" (Hopper, Blackwell) sums over whole blocks of 128 columns and leaves out the rest, and fails if the number of
  rows is not a multiple of 8. Such shapes are therefore given to "triton". On Blackwell, "mosaic" has no gradient by
  weights. If tokamax is asked for this product alone, it takes "triton"; its own gradient fails.
- "triton" gives the weights of an expert without rows the gradient of the rows before it. It is replaced by zeros here.

When first called, tokamax reads the options of the command line and refuses those that it does not know, which are all
options of datakit. So the options are marked as read before. Its warnings about products that it has not tuned for the
device are not shown.
"""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp

from datakit.errors import UsageError

BLOCK, ROWS = 128, 8  # "mosaic" needs multiples of them: widths, and the number of rows
PLAIN = jax.lax.RaggedDotDimensionNumbers((([1], [1]), ([], [])), [0], [0])  # rows [R, D], weights [E, D, F] -> [R, F]
BY_ROWS = jax.lax.RaggedDotDimensionNumbers((([1], [2]), ([], [])), [0], [0])  # dy [R, F], weights -> [R, D]
BY_WEIGHTS = jax.lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])  # rows, dy -> [E, D, F]


@jax.custom_vjp
def tokamax_matmul(rows: Any, weights: Any, count: Any) -> Any:
    """Return the products. Both arrays must have the same dtype. Raises UsageError if tokamax cannot be imported."""
    return _product(rows, weights, count, PLAIN, rows.dtype, kernels_for(len(rows), *weights.shape[1:]))


def gradient_by_rows(dy: Any, weights: Any, count: Any) -> Any:
    """Return the gradient of the rows, given that of the products."""
    return _product(dy, weights, count, BY_ROWS, dy.dtype, kernels_for(len(dy), *weights.shape[1:]))


def gradient_by_weights(rows: Any, dy: Any, count: Any) -> Any:
    """Return the gradient of the weights, given that of the products. Experts without rows have the gradient zero."""
    found = _product(rows, dy, count, BY_WEIGHTS, rows.dtype, kernels_for(*rows.shape, dy.shape[1]))
    return jnp.where((count > 0)[:, None, None], found, 0)


def _forward(rows: Any, weights: Any, count: Any) -> tuple[Any, tuple[Any, ...]]:
    return tokamax_matmul(rows, weights, count), (rows, weights, count)


def _backward(saved: tuple[Any, ...], dy: Any) -> tuple[Any, Any, None]:
    rows, weights, count = saved
    return gradient_by_rows(dy, weights, count), gradient_by_weights(rows, dy, count), None


tokamax_matmul.defvjp(_forward, _backward)


def _product(left: Any, right: Any, count: Any, dimensions: Any, dtype: Any, kernels: tuple[str, ...]) -> Any:
    multiply = load_tokamax().ragged_dot_general
    return multiply(left, right, count, dimensions, preferred_element_type=dtype, implementation=kernels)


def kernels_for(rows: int, *widths: int) -> tuple[str, ...]:
    """Return the kernels that compute products of these sizes, the best one first. tokamax takes the first that runs on
    the device; "xla" is for devices without kernels, such as CPUs.
    """
    whole = rows % ROWS == 0 and all(width % BLOCK == 0 for width in widths)
    return ("mosaic", "triton", "xla") if whole else ("triton", "xla")


def load_tokamax() -> Any:
    """Import tokamax, which takes a second. Raises UsageError if that fails."""
    try:
        import tokamax  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise UsageError(
            f"the backend tokamax cannot be used, because importing it failed: {error}. Run `pip install tokamax`, "
            'which also installs its dependencies, or set moe_backend = "tiles" in the run file'
        ) from error
    from absl import flags  # a dependency of tokamax

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    logging.getLogger("absl").addFilter(is_news)  # adding it again has no effect
    return tokamax


def is_news(record: logging.LogRecord) -> bool:
    """Return True if a message matters to users. tokamax prints all arguments of each product that it has not tuned."""
    return not record.getMessage().startswith("Autotuning cache miss")
