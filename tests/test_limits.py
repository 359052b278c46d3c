"""Every size constant, lowered until a small run crosses it: the result is the same, or the error is clear.

`SAME` holds the constants that decide how the work is done, with the values to which they are lowered: the run must
write the same bytes. `CUTS` holds those that decide where files are cut or what a manifest counts: the documents and
their tokens must be the same. `LOADER` holds those that must not change a batch. `ELSEWHERE` names the tests, which
must mention the constant, of what such a run cannot cross. `BUDGETS` lists memory, and `NOT_SIZES` the numbers that are
not limits. A constant that is in none of the tables fails the last test.
"""

from __future__ import annotations

import ast
import csv
import gzip
import importlib
import inspect
import json
import random
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import feather

import datakit
from datakit.cache.reader import open_cache
from datakit.download import transfer
from datakit.errors import RefusedInputsError
from datakit.loader import Loader, load_mixture
from datakit.normalize.columns import schema_union
from datakit.normalize.readers import streams
from datakit.pipeline import lazy_executor
from datakit.recipe import parse_recipe
from datakit.tokenize.encoders import long_words
from tests.support.caches import load_tokenizer, trained
from tests.support.engine.inline_executor import InlineExecutor
from tests.support.loader.mixture_files import cache, mixture
from tests.support.normalize.readers import read, reasons
from tests.support.normalize.sources import list_source
from tests.support.normalize.web_archives import HTTP, page, response, warc_record, write_archive
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import prose

__all__ = ["cache", "mixture"]  # fixtures
ROOMS = (
    *("storage", "engine", "download", "normalize", "dedup", "select", "consolidate", "tokenize", "cache", "text"),
    *("leases", "loader", "interop", "pipeline", "retention", "validate", "trainer", "lineage", "report", "serve"),
    *("ferries", "publish"),
)
ENCODED = HTTP + b"Content-Encoding: gzip, zstd\r\n"
SMALLEST = 256  # smaller numbers are counts of things to show, of tries or of threads
SAME: dict[str, dict[str, int]] = {
    "storage": {
        "storage.atomic:HASH_CHUNK": 7,
        "storage.atomic:HASH_BUFFER": 7,
        "storage.manifest:PIECE": 1,
        "engine.ledger.ledger:OBJECT_LINES": 1,
        "engine.scheduler.drops:DROP_BYTES": 1,
    },
    "exchange": {
        "engine.exchange.exchange:MOST_RUN_BYTES": 3_000,
        "engine.exchange.exchange:WINDOW_BYTES": 100,
        "engine.exchange.merge:MOST_READS": 0,
        "engine.exchange.merge:TASK_BYTES": 2_000,
        "engine.exchange.merge:MOST_RUNS": 3,
        "engine.exchange.merge:MOST_PIECE_BUCKETS": 2,
        "engine.exchange.merge_tasks:BUDGET_BYTES": 3_000,
        "engine.exchange.run_names:MOST_BUCKETS": 4,
        "engine.exchange.run_file:HEAD_BYTES": 64,
        "engine.exchange.read_runs:PIECE_BYTES": 1,
        "engine.exchange.run_file:PIECE_BYTES": 90,
        "normalize.route:BUDGET_BYTES": 4_000,
    },
    "readers": {
        "normalize.readers.line_chunks:CHUNK_BYTES": 300,
        "normalize.readers.taken_texts.take:MOST_LINES": 2,
        "normalize.readers.taken_texts.take:MOST_BYTES": 200,
        "normalize.readers.columnar.tables:BATCH_BYTES": 500,
        "normalize.readers.columnar.tables:MOST_ROWS": 3,
        "normalize.readers.slices:SLICE_BYTES": 2_000,
        "normalize.readers.slices:TEXT_SLICE_BYTES": 600,
        "normalize.readers.slices:LARGE_SLICE_BYTES": 6_000,
        "normalize.readers.slices:MOST_SLICES": 3,
        "normalize.readers.slices:FILE_OVERHEAD": 1,
        "normalize.readers.streams:OUTPUT_BYTES": 70,
        "normalize.readers.streams:INPUT_BYTES": 11,
        "normalize.readers.streams:ZSTD_INPUT_BYTES": 13,
        "normalize.readers.web.members:INPUT_BYTES": 61,
        "normalize.readers.web.members:HELD_BYTES": 300,
        "normalize.readers.web.messages:USUAL_HEADER_BYTES": 20,
        "normalize.readers.web.small_members:LARGEST_STORED": 150,
        "normalize.readers.web.window:SEARCHED_BYTES": 50,
        "normalize.readers.web.payloads:INPUT_BYTES": 11,
        "normalize.readers.web.payloads:ZSTD_BYTES": 13,
        "normalize.readers.web.reader:BATCH_RECORDS": 2,
        "normalize.record_counts:ENOUGH": 1,
    },
    "sort and dedup": {
        "engine.exchange.scattered_rows:PIECE_BYTES": 2_000,
        "engine.exchange.scattered_rows:LARGEST_BUFFER": 1_000,
        "normalize.sort:BLOCK_BYTES": 300,
        "normalize.sort:ADDED_ROWS": 3,
        "normalize.duplicates:WRITTEN_BYTES": 100,
        "normalize.route:GIANT_BYTES": 100,
        "engine.exchange.sorted_blocks:BLOCK_BYTES": 400,
        "engine.exchange.sorted_blocks:WINDOW_BYTES": 200,
        "engine.exchange.sorted_blocks:SAMPLE_BYTES": 60,
        "engine.partition_grouping:SMALLEST": 10,
        "engine.partition_grouping:LARGEST": 1_000,
        "dedup.clusters.bands:FOLD_ROWS": 16,
        "dedup.clusters.component_phases:MOST_NODES": 10,
        "dedup.clusters.large_components:COUNTED_SHARE": 9,
        "dedup.clusters.large_components:CELLS": 2,
        "dedup.clusters.component_phases:TASK_BYTES": 2_000,
        "dedup.clusters.node_tables:FEWEST_SLOTS": 2,
        "dedup.clusters.node_tables:PIECE_SLOTS": 3,
        "dedup.clusters.pairs:PIECE_ROWS": 7,
        "dedup.clusters.pairs:WRITER_BYTES": 500,
        "dedup.exact_duplicates:TARGET_BYTES": 200,
        "dedup.giants.cut:CUT_ROWS": 3,
        "dedup.giants.plan:GIANT": 2,
        "dedup.giants.plan:LARGEST_BLOCK": 1,
        "dedup.giants.prober:OUTCOME_WORDS": 1,
        "dedup.survivor_cuts:SAMPLES": 3,
        "dedup.stage:TASK_BYTES": 500,
        "dedup.stage:BAND_BYTES": 500,
        "dedup.verification.arrange:SORTED_ROWS": 3,
        "dedup.verification.run_kernels:STEP_DOCUMENTS": 2,
        "dedup.verification.verify:WRITTEN_DOCUMENTS": 2,
    },
    "tokens": {
        "tokenize.text_batches:BATCH_BYTES": 300,
        "tokenize.encoders.base:REFERENCE_CHARACTERS": 100,
        "cache.read_ahead:BLOCK_TOKENS": 50,
        "cache.reader:CACHE_BYTES": 100,
        "cache.shard_arrays:OPEN_ARRAYS": 1,
    },
}
CUTS = {
    "storage.parquet:ROW_GROUP_BYTES": 900,
    "storage.parquet:ROW_GROUP_ROWS": 5,
    "cache.layout:CHUNK_TOKENS": 128,
    "tokenize.reference_check:WINDOW_BYTES": 64,  # this and the next: how much is verified, which the manifest counts
    "tokenize.reference_check:SMALLEST_WINDOW": 16,
}
ELSEWHERE = {
    "select.final.equal_texts:BUDGET": "select/test_final.py",
    "select.final.equal_texts:LEAST_MERGED": "select/final/test_equal_texts.py",
    "select.final.plan:TASK_BYTES": "select/test_final.py",
    "storage.atomic:MOST_LOCKS": "storage/test_locks.py",
    "storage.atomic:S3_PART_BYTES": "storage/test_atomic.py",
    "storage.atomic:S3_MOST_PARTS": "storage/test_atomic.py",
    "storage.globs:MOST_PATHS": "storage/test_globs.py",
    "engine.exchange.exchange:STAGED_BYTES": "normalize/test_route.py",
    "engine.observe.event_file:MOST_BYTES": "engine/observe/test_event_file.py",
    "engine.worker.boot_output:LINE_CHARACTERS": "engine/worker/test_boot_output.py",
    "engine.worker.child:MOST_RETAINED": "engine/worker/handles/test_kept_children.py",
    "engine.worker.memory_watcher:ENTRIES": "engine/worker/test_memory_watcher.py",
    "engine.worker.exit_causes:TAIL_BYTES": "engine/worker/test_exit_causes.py",
    "download.git.snapshot:BATCH_ROWS": "download/git/test_steps.py",
    "download.git.snapshot:HEAD_BYTES": "download/git/test_steps.py",
    "download.git.snapshot:LARGEST_FILE": "download/git/test_steps.py",
    "download.git.objects:READ_BYTES": "download/git/test_steps.py",
    "download.git.history:LARGEST_TEXT": "download/git/test_history.py",
    "download.git.history:LINE_BYTES": "download/git/test_history.py",
    "download.transfer:READ_BYTES": "test_limits.py",
    "download.hub.api:MOST_BYTES": "download/hub/test_api.py",
    "download.hub.api:MOST_CODED_BYTES": "download/hub/test_api.py",
    "download.web.content_hash:BUFFER_BYTES": "download/web/test_content_hash.py",
    "download.web.pages:MOST_PAGES": "download/web/test_pages.py",
    "download.web.pages:MOST_PAGE_BYTES": "download/web/test_web_listing.py",
    "download.web.partial_file:PART_BYTES": "download/web/test_fetch.py",
    "download.web.patience:ENOUGH": "download/web/test_fetch.py",
    "download.web.url_list:MOST_LIST_BYTES": "download/web/test_url_list.py",
    "engine.disk_limits:USUAL_FREE_BYTES": "engine/test_disk_limits.py",
    "text.word_difference:COMPARED": "text/test_word_difference.py",
    "report.pairs:MOST_CHARACTERS": "report/test_pairs.py",
    "report.provenance:MOST_STEPS": "report/test_provenance.py",
    "report.provenance:MOST_PARAMETERS": "report/test_provenance.py",
    "report.evaluation:MOST_ROWS": "report/test_evaluation.py",
    "report.rules:MOST_ROWS": "report/test_rules.py",
    "report.training:POINTS": "report/test_training.py",
    "engine.observe.event_tail:PIECE_BYTES": "engine/observe/test_event_tail.py",
    "engine.observe.event_tail:LONGEST_LINE": "engine/observe/test_event_tail.py",
    "engine.observe.event_tail:MOST_BYTES_AT_ONCE": "engine/observe/test_event_tail.py",
    "serve.access:LONGEST_ADDRESS": "serve/test_access.py",
    "serve.app:MOST_FORM_BYTES": "serve/test_access.py",
    "serve.server:MOST_HEADER_BYTES": "serve/test_access.py",
    "serve.root:MOST_LINKS": "serve/test_root.py",
    "serve.run_lines:HEAD_BYTES": "serve/test_run_lines.py",
    "serve.run_lines:TAIL_BYTES": "serve/test_run_lines.py",
    "serve.run_lines:MOST_KEPT": "serve/test_run_lines.py",
    "serve.run_state:MOST_FAILURES": "serve/test_run_state.py",
    "serve.run_state:MOST_STEPS": "serve/test_run_state.py",
    "serve.run_state:MOST_TEXT": "serve/test_run_state.py",
    "serve.training_state:PIECE_BYTES": "serve/test_training_state.py",
    "serve.training_state:LONGEST_LINE": "serve/test_training_state.py",
    "serve.training_state:POINTS": "serve/test_training_state.py",
    "normalize.config:LARGEST_DOCUMENT": "normalize/test_config.py",
    "normalize.readers.inputs:READ_AGAIN_BYTES": "normalize/readers/test_inputs.py",
    "normalize.readers.line_numbers:BLOCK_BYTES": "normalize/readers/test_line_numbers.py",
    "normalize.readers.line_numbers:MOST_BYTES": "normalize/readers/test_line_numbers.py",
    "normalize.readers.archives.tar_members:EXTENDED_BYTES": "normalize/readers/archives/test_webdataset.py",
    "normalize.readers.json_arrays.envelope:ENVELOPE_BYTES": "normalize/readers/json_arrays/test_envelope.py",
    "normalize.readers.json_arrays.envelope:MOST_BRACKETS": "normalize/readers/json_arrays/test_envelope.py",
    "normalize.readers.json_arrays.recognition:HEAD_BYTES": "normalize/readers/json_arrays/test_recognition.py",
    "normalize.readers.json_arrays.recognition:WINDOW_BYTES": "normalize/readers/json_arrays/test_recognition.py",
    "normalize.readers.xml.pages:PROLOG_BYTES": "normalize/readers/xml/test_mediawiki.py",
    "normalize.readers.columnar.tables:PIECE_BYTES": "normalize/readers/columnar/test_parquet.py",
    "normalize.readers.columnar.row_by_row:MOST_DICTIONARY_BYTES": "normalize/readers/columnar/test_parquet.py",
    "normalize.readers.streams:LARGEST_WINDOW": "test_limits.py",
    "normalize.readers.web.messages:HTTP_HEADER_BYTES": "normalize/readers/web/test_reader.py",
    "normalize.readers.web.records:BEGINNING_BYTES": "normalize/readers/web/test_records.py",
    "normalize.readers.web.records:HEADER_BYTES": "normalize/readers/web/test_records.py",
    "normalize.route:WHOLE_SLICE_BYTES": "normalize/test_record_counts.py",
    "normalize.columns.schema_union:MOST_FIELDS": "test_limits.py",
    "normalize.inspection.licenses:READ_BYTES": "normalize/inspection/test_licenses.py",
    "normalize.inspection.sample:CHECKED_BYTES": "normalize/inspection/test_draft.py",
    "normalize.inspection.sample:CHECKED_FILES": "normalize/inspection/test_suspicions.py",
    "normalize.inspection.sample:CHECKED_GROUP_BYTES": "normalize/inspection/test_suspicions.py",
    "normalize.inspection.sample:DECODED_BYTES": "normalize/inspection/test_suspicions.py",
    "pipeline.attributes.quantiles:EXACT": "pipeline/attributes/test_quantiles.py",
    "pipeline.attributes.sample:EXCERPT": "pipeline/attributes/test_sample.py",
    "pipeline.attributes.summary:DISTINCT": "pipeline/attributes/test_summary.py",
    "pipeline.attributes.summary:LABEL_BYTES": "pipeline/attributes/test_summary.py",
    "pipeline.fate.absent:LINE_BYTES": "pipeline/fate/test_absent.py",
    "pipeline.fate.absent:READ_AGAIN": "pipeline/fate/test_absent.py",
    "validate.between.removals:RANGE_IDS": "validate/between/test_removals.py",
    "validate.between.spill:BUCKET_REMOVALS": "validate/between/test_similarity.py",
    "validate.between.text_store:MOST_REMOVALS": "validate/between/test_text_store.py",
    "validate.between.text_store:MOST_BYTES": "validate/between/test_text_store.py",
    "validate.between.encoding:LONGEST_BYTES": "validate/between/test_encoding.py",
    "tokenize.encoders.long_texts:PART_BYTES": "tokenize/encoders/test_long_texts.py",
    "tokenize.encoders.long_words:WINDOW_BYTES": "tokenize/encoders/test_long_texts.py",
    "tokenize.encoders.long_words:LOOK_CHARACTERS": "tokenize/encoders/test_long_texts.py",
    "tokenize.encoders.long_words:FLUSH_CHARACTERS": "test_limits.py",
    "tokenize.encoders.long_words:FLUSH_WORDS": "test_limits.py",
    "tokenize.encoders.long_words:RENEW_BYTES": "test_limits.py",
    "tokenize.encoders.normalizing:PIECE_CHARACTERS": "tokenize/encoders/test_normalizing.py",
    "tokenize.encoders.bpe.added_matches:MOST_NODES": "tokenize/encoders/bpe/test_added_matches.py",
    "tokenize.encoders.bpe.batch:ROOM": "tokenize/encoders/bpe/test_encoder.py",
    "tokenize.encoders.bpe.encoder:PIECE_CHARACTERS": "tokenize/encoders/bpe/test_encoder.py",
    "tokenize.encoders.bpe.merges:MOST_BYTES": "tokenize/encoders/bpe/test_merges.py",
    "tokenize.document_ranges:RANGE_BYTES": "tokenize/test_document_ranges.py",
    "tokenize.document_ranges:WHOLE_BYTES": "tokenize/test_document_ranges.py",
    "tokenize.split_check:WHOLE_BYTES": "tokenize/test_split_check.py",
    "tokenize.templates.template_file:LONGEST_TEMPLATE": "tokenize/templates/test_template_file.py",
    "tokenize.templates.renderer:LONGEST_SPANS": "tokenize/templates/test_renderer.py",
    "tokenize.split_check:WHOLE_SHARE": "tokenize/test_split_check.py",
    "tokenize.split_check:WINDOW_BYTES": "tokenize/test_split_check.py",
    "loader.permutation:TABLE_SIZE": "loader/test_permutation.py",
    "loader.mixture.apportion:ANNOUNCED_BLOCKS": "loader/mixture/test_slots.py",
    "loader.mixture.apportion:MAX_BLOCK": "loader/mixture/test_config.py",
    "loader.mixture.sequence_counts:MAX_COUNTED_BLOCKS": "loader/mixture/test_sequence_counts.py",
    "loader.mixture.sequence_order:SMALL_JOIN": "loader/mixture/test_sequence_order.py",
    "loader.mixture.slots:MAX_BLOCKS": "loader/mixture/test_slots.py",
    "interop.import_cache:BATCH_TOKENS": "interop/test_import_cache.py",
    "interop.import_cache:SHARD_TOKENS": "interop/test_import_cache.py",
    "interop.levanter:CACHE_BYTES": "interop/test_levanter.py",
    "interop.lance_export:ROWS_AT_ONCE": "interop/test_lance_export.py",
    "interop.levanter_export:MOST": "interop/test_levanter_export.py",
    "interop.mds:MOST_BYTES": "interop/test_mds.py",
    "interop.mds:SHARD_BYTES": "interop/test_mds.py",
    "interop.megatron:MOST": "interop/test_megatron.py",
    "interop.zarr_pieces:CHUNK": "interop/test_levanter_export.py",
    "interop.zarr_pieces:CHUNKS": "interop/test_levanter_export.py",
    "publish.hub:MOST_FILES": "publish/test_hub.py",
    "pipeline.packing_stage:BLOCKS_A_TASK": "pipeline/test_packing_stage.py",
    "trainer.bench.measure:CHECKED_TOKENS": "trainer/bench/test_measure.py",
    "trainer.evaluation.token_lengths:MOST_IDS": "trainer/evaluation/test_token_lengths.py",
    "trainer.huggingface.folder:MOST_JSON_BYTES": "trainer/huggingface/test_folder.py",
    "trainer.huggingface.tensor_files:MOST_HEADER_BYTES": "trainer/huggingface/test_tensor_files.py",
    "trainer.models.experts.expert_tiles:LARGEST_TILE": "trainer/models/experts/test_experts.py",
    "trainer.models.experts.expert_tiles:MIDDLE_BYTES": "trainer/models/experts/test_experts.py",
    "trainer.sizes.run_file:HELD_OUT_TOKENS": "trainer/sizes/test_run_file.py",
    "trainer.models.layers:ROTARY_STRIDE": "trainer/models/test_program_size.py",
}
LOADER = {
    "loader.sources.cache_source:CACHED_BYTES": 100,
    "loader.sources.rows:AT_ONCE": 20,
    "loader.sources.rows:GAP": 3,
    "loader.mixture.apportion:STRIDE": 2,
    "loader.mixture.sequence_counts:BLOCKS_AT_ONCE": 3,
    "loader.mixture.window:LISTED_BLOCKS": 1,
    "loader.mixture.window:MAX_TABLE": 5,
}
BUDGETS = {  # crossing one is a memory failure, which tests/engine/worker/test_memory_watcher.py provokes, or a retry
    "tokenize.stage:TASK_MEMORY",
    "dedup.stage:SORTING_BYTES",
    "dedup.giants.plan:MEMORY_BYTES",
    "engine.exchange.merge:MEMORY_BYTES",
    "dedup.clusters.pairs:FIXED_BYTES",
    "dedup.stage:LEAST_MEMORY",
    "engine.scheduler.retry_policy:ALL_MEMORY",
    "engine.scheduler.task_estimates:SMALLEST_BUDGET",
    "engine.worker.memory:BACKSTOP_MARGIN",
    "engine.worker.memory:SMALL_BUDGET",
    "engine.worker.memory_watcher:FASTEST_GROWTH",
    "normalize.readers.xml.page_fields:_BUFFER_BYTES",
}
NOT_SIZES = {
    "loader.sources.exclusions:NEVER": "a step that no run reaches: the largest number in an array of steps",
    "normalize.readers.archives.tar_members:BLOCK": "the size of a block of a tar archive, which its format sets",
    "engine.freed_memory:KEPT_BYTES": "an option of the C library, which changes only where memory comes from",
    "engine.freed_memory:LARGEST_KEPT": "an option of the C library, which changes only where memory comes from",
    "engine.freed_memory:NEVER": "an option of the C library, which changes only where memory comes from",
    "tokenize.templates.second_look:SHIFT": "the first of the characters that stand for others",
    "pipeline.estimates.forecast:TASK_BYTES": "an estimate of the text of a task, for forecasts",
    "pipeline.simulate.results.component_results:LAST_NODES": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.results.giant_results:ANSWER_BYTES": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.results.giant_results:BUDGET": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.results.passage_results:BUDGET": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.effects:BATCH_BYTES": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.effects:INDEX_BYTES": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.figures:LARGE_DRIVER": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.figures:LARGE_MANIFEST": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.figures:LARGE_SHARED": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.figures:MOST_REQUESTS": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.rates:MIB": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.rates:DRIVER_MEMORY": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.effects:FOOTER_BYTES": "an estimate or a threshold of simulated runs",
    "storage.buckets.chunks:CHUNK_BYTES": "how much of a body is handed over at once, which changes no result",
    "storage.buckets.listing:PAGE_KEYS": "the most that S3 puts into a page",
    "storage.buckets.listing:OTHER_PAGE_KEYS": "another size of pages, for the second look",
    "storage.urls:READ_AHEAD_BYTES": "how much a request for an object reads ahead, which changes no result",
    "pipeline.simulate.simulation:SAMPLE_EVERY": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.results.token_results:EMPTY_LIST": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.results.encoding_results:METADATA_BYTES": "an estimate or a threshold of simulated runs",
    "pipeline.simulate.results.final_results:EMPTY_LIST": "an estimate or a threshold of simulated runs",
    "cache.raw_shard:CASTAGNOLI": "a polynomial",
    "interop.zarr_pieces:LENGTH": "the declared length of all of Levanter's arrays",
    "validate.between.similarity:SAMPLE": "the number of removals that are recomputed",
    "validate.between.plain_shingles:MASK": "a property of uint64",
    "validate.training.batches:MEMORY": "stands for no limit",
    "engine.scheduler.task_estimates:REMEMBERED": "the number of tasks from which budgets are estimated",
    "engine.scheduler.task_estimates:BATCH_TASKS": "the number of tiny tasks in one child",
    "engine.worker.heartbeat:NAME_BYTES": "the longest path on Linux",
    "engine.worker.heartbeat:SIZE": "the size of a structure",
    "engine.worker.memory:PAGE": "a property of the machine",
    "tokenize.reference_check:PERIOD": "the share of text that is verified",
    "engine.observe.progress:MEGABYTE": "a unit",
    "engine.ray_backend.connection:OBJECT_STORE_BYTES": "Ray's minimum",
    "download.hashes:SETTLED_NS": "a time",
    "download.git.commits:_LAST": "the end of the year 9999",
    "download.web.patience:SLOWEST": "a rate",
    "normalize.formats:TAR_OFFSET": "a property of tar",
    "normalize.readers.streams:HEAD_BYTES": "the length of the longest magic number, at its offset",
    "normalize.readers.web.charsets:DETECTED_BYTES": "how much of a page the charset detector reads",
    "normalize.readers.web.charsets:META_BYTES": "a property of HTML",
    "normalize.readers.web.members:SHOWN_BYTES": "how much of a member shows whether a record begins there",
    "normalize.readers.web.payloads:SHOWN_BYTES": "how much of a payload shows whether it is text",
    "normalize.readers.web.window:LONGEST_LINE": "the length of the longest line that two patterns match",
    "normalize.inspection.sample:TOLERATED": "stands for no limit",
    "normalize.where.column_types:UNLIMITED": "stands for no limit",
    "normalize.limit:UNLIMITED": "stands for no limit",
    "normalize.config:LARGEST_SEED": "a property of TOML",
    "normalize.columns.number_types:LARGEST_EXACT": "a property of float64",
    "normalize.columns.number_types:LARGEST_INT64": "a property of int64",
    "normalize.readers.json_rows:_LARGEST": "a property of int64",
    "tokenize.encode_documents:CHAT_STRIDE": "the share of messages that are verified",
    "tokenize.encoders.custom:BYTE_VALUES": "the number of bytes",
    "tokenize.make_contract:SAMPLED_TOKENS": "the number of tokens in a probe",
    "tokenize.train_stage:ALPHABET": "the number of bytes",
    "cache.contract:SMALL_VOCABULARY": "a property of uint16",
    "text.shingle_kernels:BLOCK": "a constant of compiled code",
    "text.unicode_words:CODE_POINTS": "a property of Unicode",
    "tokenize.encoders.bpe.character_tables:CODE_POINTS": "a property of Unicode",
    "tokenize.encoders.bpe.word_cache:_SHORT_SIZE": "a cache; test_encoder.py encodes more words than it holds",
    "tokenize.encoders.bpe.word_cache:_LONG_SIZE": "a cache; test_encoder.py encodes more words than it holds",
    "loader.mixture.apportion:SCALE": "a unit",
    "serve.access:SESSION_SECONDS": "a time",
    "serve.streams:RETRY_MILLISECONDS": "a time",
    "serve.server:UNREAD_MILLISECONDS": "a time",
    "loader.permutation:MASK64": "the width of a key",
    "ferries.calibration:NUMBERS": "a property of the fixed load",
    "ferries.calibration:PYTHON_LOOPS": "a property of the fixed load",
    "ferries.catalog:GIB": "a unit",
    "ferries.machine:GIB": "a unit",
    "ferries.regression:MIB": "a unit",
    "ferries.skewed_text:AT_ONCE": "a property of the generated text",
    "ferries.skewed_text:A_FOLDER": "a property of the generated text",
    "ferries.skewed_text:GIANT_BYTES": "a property of the generated text",
    "ferries.skewed_text:IDENTICAL": "a property of the generated text",
    "ferries.skewed_text:RECORD_BYTES": "a property of the generated text",
    "ferries.skewed_text:SENTENCES": "a property of the generated text",
    "ferries.skewed_text:TINY_FILES": "a property of the generated text",
    "ferries.skewed_text:VARIATIONS": "a property of the generated text",
    "ferries.skewed_text:WORDS": "a property of the generated text",
    "loader.sources.token_source:BLOCK_TOKENS": "the default of a setting",
}


def write_sources(folder: Path) -> None:
    """Two sources: one with a file of every format, and one with exact and near duplicates of it."""
    rows = [{"id": f"r{n}", "text": prose(n, 20 + n % 30), "n": str(n)} for n in range(120)]
    rows[7]["text"] = "".join(random.Random(1).choices("abcdefgh", k=3000))
    mixed = folder / "mixed"
    mixed.mkdir(parents=True)
    lines = [json.dumps({**row, "tags": ["a"] * (n % 4), "meta": {"k": n}}) + "\n" for n, row in enumerate(rows)]
    (mixed / "a.jsonl").write_text("".join(lines[:30]))
    (mixed / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[30:50]).encode(), mtime=0))
    (mixed / "c.jsonl.zst").write_bytes(zstandard.compress("".join(lines[50:60]).encode()))
    for name, delimiter, part in (("d.csv", ",", rows[60:75]), ("e.tsv", "\t", rows[75:90])):
        with open(mixed / name, "w", newline="") as sink:
            writer = csv.DictWriter(sink, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(part)
    pq.write_table(pa.Table.from_pylist(rows[90:105]), mixed / "f.parquet", row_group_size=6)
    feather.write_feather(pa.Table.from_pylist(rows[105:115]), str(mixed / "g.arrow"))
    pages = [response(page(prose(n, 30)), n) if n % 3 else warc_record(b"x", "request", n) for n in range(120, 135)]
    encoded = response(zstandard.compress(gzip.compress(page(prose(135, 30)), mtime=0)), 135, ENCODED)
    write_archive(mixed / "h.warc.gz", [*pages, encoded])
    for row in rows[115:]:
        (mixed / f"{row['id']}.txt").write_text(row["text"])
    (folder / "copies").mkdir()
    copies = [{"text": rows[n]["text"] + " end" * (n % 2)} for n in range(0, 60, 3)]
    (folder / "copies" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in copies))


def run(folder: Path, root: Path) -> tuple[dict[str, bytes], dict[str, list[int]]]:
    """Run the whole pipeline in this process. Return every file of the steps, and the tokens of every document."""
    (folder / "tokenizer.json").write_bytes(trained())
    table = {
        "name": "limits",
        "sources": [{"name": name, "url": str(folder / name)} for name in ("mixed", "copies")],
        "normalize": {"where": "n IS NULL OR n != '3'", "partition_bytes": 9_000},
        "dedup": {},
        "tokenize": {"tokenizer": str(folder / "tokenizer.json")},
    }
    table["sources"][1]["where"] = "true"
    with patch.object(lazy_executor, "LocalExecutor", InlineExecutor):
        result = datakit.run(parse_recipe(table, "test", folder), root=str(root))
    assert result.cache is not None
    steps = [Path(step.directory) for step in result.steps]
    paths = [path for step in steps for path in step.rglob("*") if path.is_file() and "ledger" not in path.parts]
    documents = {str(document.id): document.tokens.tolist() for document in open_cache(result.cache).documents()}
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}, documents


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("limits")
    write_sources(folder)
    yield folder, *run(folder, folder / "root")


def lowered(stack: ExitStack, constant: str, value: int) -> None:
    """Patch a constant where it is defined and where it is imported."""
    name, _, attribute = constant.partition(":")
    definer = importlib.import_module(f"datakit.{name}")
    assert value < getattr(definer, attribute)
    stack.enter_context(patch.object(definer, attribute, value))
    for module in [module for other, module in sys.modules.items() if other.startswith("datakit.")]:
        if module is not definer and attribute in vars(module):
            source = inspect.getsource(module)
            if f"from datakit.{name} import" in source and f"\n{attribute} =" not in source:
                stack.enter_context(patch.object(module, attribute, value))


def check(expected: Any, root: Path, constants: dict[str, int], same_bytes: bool) -> None:
    folder, files, documents = expected
    with ExitStack() as stack:
        for constant, value in constants.items():
            lowered(stack, constant, value)
        found_files, found_documents = run(folder, root)
    assert found_documents == documents
    if same_bytes:
        assert found_files.keys() == files.keys()
        assert [path for path in files if found_files[path] != files[path]] == []
    else:
        assert found_files != files, "the limit was crossed"


@pytest.mark.parametrize("room", SAME)
def test_limits_on_work_do_not_change_a_byte(expected: Any, tmp_path: Path, room: str) -> None:
    check(expected, tmp_path / "root", SAME[room], same_bytes=True)


@pytest.mark.soak
@pytest.mark.parametrize("constant", [constant for room in SAME.values() for constant in room])
def test_each_limit_on_work_does_not_change_a_byte(expected: Any, tmp_path: Path, constant: str) -> None:
    value = next(room[constant] for room in SAME.values() if constant in room)
    check(expected, tmp_path / "root", {constant: value}, same_bytes=True)


@pytest.mark.parametrize("constant", CUTS)
def test_limits_on_files_do_not_change_a_document(expected: Any, tmp_path: Path, constant: str) -> None:
    check(expected, tmp_path / "root", {constant: CUTS[constant]}, same_bytes=False)


def test_too_many_columns_are_refused(expected: Any, tmp_path: Path) -> None:
    folder, *_ = expected
    refused = pytest.raises(RefusedInputsError, match="different columns above 3")
    with patch.object(schema_union, "MOST_FIELDS", 3), refused:
        run(folder, tmp_path / "root")


def test_zstd_window_above_the_limit_is_reported(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=17, write_content_size=False)
    text = prose(1, 20_000)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(json.dumps({"text": text}).encode())
    (tmp_path / "in.jsonl.zst").write_bytes(packed)
    with patch.object(streams, "LARGEST_WINDOW", 1 << 12):
        found, counts = read(tmp_path, "in.jsonl.zst")
    assert not found
    assert [(place, "too much memory" in reason) for place, reason in reasons(counts)] == [(0, True)]


def test_long_words_in_small_batches_have_the_same_ids() -> None:
    made = load_tokenizer()
    text = " ".join([prose(1), "x" * 900, "<|endoftext|>", prose(2), "abc" * 300]) * 3
    parts = made.long_texts(made.encoder(), part_bytes=64)
    parts.words.window = 100
    expected = parts.encode_text(text).tolist()
    assert expected == made.reference_encoder().encode_batch([text])[0].tolist()
    with ExitStack() as stack:
        for name in ("FLUSH_CHARACTERS", "FLUSH_WORDS", "RENEW_BYTES"):
            stack.enter_context(patch.object(long_words, name, 3))
        assert parts.encode_text(text).tolist() == expected


def test_downloads_in_small_reads_are_the_same(tmp_path: Path) -> None:
    data = prose(1).encode()
    fsspec.filesystem("memory").pipe_file("/limits/a.txt", data)
    (listed,) = list_source("memory://limits/a.txt", (), ())
    with patch.object(transfer, "READ_BYTES", 7):
        transfer.fetch("memory://limits/a.txt", str(tmp_path / "a"), len(data), listed.checksum, lambda done: None)
    assert (tmp_path / "a").read_bytes() == data


def batches_of(mixture: Path) -> list[dict[str, Any]]:
    with Loader(load_mixture(mixture)) as loader:
        return [loader[step].arrays() for step in range(80)]


@pytest.mark.parametrize("constant", LOADER)
def test_limits_of_the_loader_do_not_change_a_batch(constant: str, mixture: Path) -> None:
    text = mixture.read_text().replace("seed = 5", "seed = 5\nblock = 16\nmemory_bytes = 20_000")
    mixture.write_text(
        text.replace('source = "web"', 'source = "web"\nshuffle = { kind = "full", block_tokens = 512 }')
    )
    usual = batches_of(mixture)
    with ExitStack() as stack:
        lowered(stack, constant, LOADER[constant])
        found = batches_of(mixture)
    for ours, theirs in zip(found, usual, strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def size_constants() -> set[str]:
    found = set()
    for room in ROOMS:
        for path in sorted((REPOSITORY / "datakit" / room).rglob("*.py")):
            module = ".".join(path.relative_to(REPOSITORY / "datakit").with_suffix("").parts)
            for statement in ast.parse(path.read_text()).body:
                for target in statement.targets if isinstance(statement, ast.Assign) else ():
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    for name in (name.id for name in names if isinstance(name, ast.Name) and name.id.isupper()):
                        value = getattr(importlib.import_module(f"datakit.{module}"), name)
                        if type(value) is int and value >= SMALLEST:
                            found.add(f"{module}:{name}")
    return found


def test_table_of_limits_is_complete() -> None:
    tables = [*SAME.values(), CUTS, ELSEWHERE, LOADER, BUDGETS, NOT_SIZES]
    listed = [constant for table in tables for constant in table]
    assert len(listed) == len(set(listed))
    assert set(listed) == size_constants()
    for constant, test in ELSEWHERE.items():
        text = (REPOSITORY / "tests" / test).read_text().replace(f'"{constant}"', "")
        assert re.search(rf"\b{constant.partition(':')[2]}\b", text), f"{test} does not mention {constant}"
