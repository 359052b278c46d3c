"""Handles URLs, atomic file creation, Parquet shards and manifests, independently of any stage."""
