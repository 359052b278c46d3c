"""Reads datasets in Dolma's form: documents, and attributes of these documents in files of their own."""
