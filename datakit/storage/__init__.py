"""Handles URLs, atomic files, Parquet shards and manifests, independently of any stage."""
