"""Deduplication: finds documents that repeat another one, exactly or nearly."""
