"""Scores documents with classifiers in ONNX format, such as small transformers."""
