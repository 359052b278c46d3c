"""Applies final rules, drops documents whose texts became equal, and assigns documents to buckets."""
