"""Reads Parquet and Arrow files in batches of rows, without decoding more at a time than fits in memory."""
