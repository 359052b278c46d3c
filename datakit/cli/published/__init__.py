"""The commands that show datasets and runs to other people: `datakit lineage`, `report`, `publish` and `serve`."""
