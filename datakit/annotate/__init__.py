"""Computes facts about documents, such as languages, quality measures and personal data, as tables of attributes."""
