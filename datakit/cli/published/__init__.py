"""The commands that show datasets and runs to other people: `datakit lineage`, `datakit report` and `datakit serve`."""
