"""Publishes the documents of a dataset in a folder, a bucket or a dataset repository of the Hugging Face Hub."""

from datakit.publish.publishing import Prepared, Published, prepare, publish

__all__ = ["Prepared", "Published", "prepare", "publish"]
