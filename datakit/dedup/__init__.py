"""Finds exact duplicates and near duplicates among documents."""
