"""Tiles hold every assignment exactly once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.trainer.models.experts import expert_tiles


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=40, max_size=40), st.sampled_from([1, 8]), st.sampled_from([1, 2, 4]))
def test_every_assignment_has_one_row(chosen: list[int], tile: int, together: int) -> None:
    expert = jnp.asarray(chosen, jnp.int32)[:, None]
    tiles = jax.jit(expert_tiles.lay_tiles, static_argnums=(1, 2, 3))(expert, 5, tile, together)
    rows = np.asarray(tiles.order.row)[:, 0]
    assert len(set(rows.tolist())) == len(chosen)
    assert np.asarray(tiles.expert)[rows // tile].tolist() == chosen
    assert np.asarray(tiles.order.token)[rows].tolist() == list(range(len(chosen)))
    assert rows.max() < int(tiles.used) * tile
    turns = np.asarray(tiles.expert).reshape(-1, together)[: int(tiles.alone)]
    assert (turns == turns[:, :1]).all()
    assert len(turns) == sum(-(-chosen.count(one) // tile) // together for one in set(chosen))
