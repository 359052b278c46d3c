"""Provides jaxtyping's shape annotations, or placeholders if jaxtyping is missing, and explains the axis letters.
Tests check every annotation in `datakit.trainer.models` and `datakit.trainer.optimizers` at run time. A training
machine does not need jaxtyping. Each name in an annotation denotes an axis, whose size is the same throughout a
function:

    B batch    S sequence    T tokens (B x S)    D hidden    V vocabulary    L layers
    N query heads    M key/value heads    H head width    E experts    K experts per token
    A assignments (T x K)    R rows (A, or A with each expert padded to whole tiles)
    I expert width    F 2 x I, gate and up side by side    G rank of a gated norm
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Shaped, UInt
else:
    try:
        from jaxtyping import Array, Bool, Float, Int, Shaped, UInt
    except ImportError:
        from jax import Array

        class _Unchecked:
            def __class_getitem__(cls, _: Any) -> Any:
                return Array

        Bool = Float = Int = Shaped = UInt = _Unchecked

__all__ = ["Array", "Bool", "Float", "Int", "Shaped", "UInt"]
