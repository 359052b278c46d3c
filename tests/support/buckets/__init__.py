"""Buckets for tests: stores, and a proxy that misbehaves on order."""
