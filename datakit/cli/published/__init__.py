"""The commands that describe datasets and runs to other people: `datakit lineage` and `datakit report`."""
