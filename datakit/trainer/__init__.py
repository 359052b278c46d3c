"""The trainer: mixture-of-experts language models in raw JAX, from a mixture of token caches to a checkpoint.

It imports nothing of the pipeline's dependencies: numpy, jax, optax, orbax (and msgspec, xxhash) are enough, so a GPU
machine needs no Arrow. `models/grug.py` is the template: read it, copy it, change the copy.
"""
