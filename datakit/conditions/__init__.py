"""Evaluates rules and document buckets: determines which documents each one applies to, and which one decides."""
