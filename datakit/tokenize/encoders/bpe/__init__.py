"""Encodes texts with byte-level byte-pair encoding (BPE), in compiled loops over bytes."""
