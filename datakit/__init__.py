"""datakit: raw text datasets to deduplicated, tokenized caches, shard by shard, in isolated worker processes."""
