"""Reads web archives (WARC, WET, ARC), a module per step: members, records, messages, payloads, texts, batches."""
