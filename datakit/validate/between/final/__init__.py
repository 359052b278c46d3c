"""Checks what select does after texts are edited: its rules, equal texts and document buckets."""
