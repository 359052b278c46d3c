"""Sets the number of fake JAX devices of the programs that tests start. Each device more makes a step slower."""

from __future__ import annotations

import os


def fake_devices(count: int) -> dict[str, str]:
    """Return the environment variable for `count` devices and the other flags of the tests; the last count wins."""
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"}
