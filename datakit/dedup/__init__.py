"""Deduplication: finds exact and near duplicates among documents."""
