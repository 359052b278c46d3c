"""Checks finished steps, datasets, roots and training runs: their files against their manifests, steps against the
steps from which they were made, and training runs against the caches that they read.
"""
