"""URLs, atomic files, Parquet shards and manifests. Knows nothing about stages."""
