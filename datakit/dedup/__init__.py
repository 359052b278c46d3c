"""Exact and near duplicates: signatures, candidates, components, verification, and attributes that say what goes."""
