"""Compares whole commands of datakit with those of other programs, on the same input and in one run.

    python3.11 -m venv PEERS && PEERS/bin/pip install -r benchmarks/peers/requirements.txt
    python -m benchmarks.peers.scaled_text TEXTS --copies 10
    python -m benchmarks.peers.compare cache TEXTS --python PEERS/bin/python

`compare.py` measures. The other programs need libraries that datakit does not need, so they run in an environment of
their own: `datatrove_cache.py`, `near_duplicates.py` and `exact_duplicates.py` import nothing from datakit.
"""
