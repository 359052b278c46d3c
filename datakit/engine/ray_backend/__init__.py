"""ray_backend."""
