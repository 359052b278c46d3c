"""Lists how each task function of the stages is simulated. A new task function needs a line here and a line in
`rates.py`.
"""

from __future__ import annotations

from datakit.errors import StepFailedError
from datakit.pipeline.simulate.effects import PhaseOf, Run, Simulator
from datakit.pipeline.simulate.results import component_results as components
from datakit.pipeline.simulate.results import dedup_results as dedup
from datakit.pipeline.simulate.results import encoding_results as encoding
from datakit.pipeline.simulate.results import final_results as final
from datakit.pipeline.simulate.results import giant_results as giants
from datakit.pipeline.simulate.results import passage_results as passages
from datakit.pipeline.simulate.results import substring_results as substrings
from datakit.pipeline.simulate.results import text_results as text
from datakit.pipeline.simulate.results import token_results as tokens

SIMULATORS: dict[str, Simulator] = {
    "datakit.download.stage:fetch_file": text.fetch_file,
    "datakit.download.git.steps:fetch_repository": text.fetch_repository,
    "datakit.normalize.where.column_types:find_types": text.find_types,
    "datakit.normalize.limit:count_documents": text.count_documents,
    "datakit.normalize.archives.index:index_archive": text.index_archive,
    "datakit.normalize.route:route_slice": text.route_slice,
    "datakit.normalize.sort:sort_partition": text.sort_partition,
    "datakit.normalize.origins:write_files": text.write_files,
    "datakit.annotate.write_tables:annotate_partition": text.annotate_partition,
    "datakit.annotate.model_server.ask:ask_partition": text.ask_partition,
    "datakit.conditions.count_ranks:count": tokens.count_ranks,
    "datakit.conditions.check_tables:check_tables": tokens.check_tables,
    "datakit.rules.write_lists:apply": tokens.apply_rules,
    "datakit.engine.exchange.merge_tasks:merge_runs": text.merge_runs,
    "datakit.dedup.minhash.signatures_stage:sign_partition": dedup.sign_partition,
    "datakit.dedup.score_tables:check_tables": dedup.check_tables,
    "datakit.dedup.exact_duplicates:find_copies": dedup.find_copies,
    "datakit.dedup.clusters.bands:route": dedup.route_bands,
    "datakit.dedup.clusters.bands:connect": dedup.connect,
    "datakit.dedup.clusters.labels:label": components.label,
    "datakit.dedup.clusters.rounds:link": components.link,
    "datakit.dedup.clusters.rounds:large": components.large,
    "datakit.dedup.clusters.rounds:small": components.small,
    "datakit.dedup.clusters.rounds:finish": components.finish,
    "datakit.dedup.clusters.labels:resolve": components.resolve,
    "datakit.dedup.clusters.labels:label_parts": components.label_parts,
    "datakit.dedup.verification.cluster_shingles:route": dedup.route_shingles,
    "datakit.dedup.verification.verify:judge": dedup.judge,
    "datakit.dedup.giants.cut:cut": giants.cut,
    "datakit.dedup.giants.settle:settle": giants.settle,
    "datakit.dedup.giants.probe:probe": giants.probe,
    "datakit.dedup.attributes:write": dedup.write_attributes,
    "datakit.passages.route:route": passages.route,
    "datakit.passages.find_copies:find": passages.find_copies,
    "datakit.passages.substrings.tasks:compare_stretches": substrings.compare_stretches,
    "datakit.passages.substrings.tasks:read_texts": substrings.read_texts,
    "datakit.passages.substrings.tasks:compare_substrings": substrings.compare_substrings,
    "datakit.passages.write_tables:write": passages.write_tables,
    "datakit.select.write_selections:select": tokens.select,
    "datakit.select.edit_documents:select_and_edit": tokens.select_and_edit,
    "datakit.select.final.rewrite_lists:rewrite": final.rewrite,
    "datakit.select.final.equal_texts:route": final.route_edited,
    "datakit.select.final.equal_texts:find": final.find_equal,
    "datakit.select.final.assign_buckets:assign": final.assign_buckets,
    "datakit.consolidate.write_partitions:consolidate": tokens.consolidate,
    "datakit.consolidate.stage:write_card": tokens.write_card,
    "datakit.tokenize.train_stage:train_task": tokens.train_task,
    "datakit.tokenize.contract_stage:write_tokenizer": encoding.write_tokenizer,
    "datakit.tokenize.contract_stage:settle": encoding.settle_contract,
    "datakit.tokenize.tasks:take_tokenizer": encoding.take_tokenizer,
    "datakit.tokenize.tasks:encode": encoding.encode,
    "datakit.tokenize.tasks:encode_range": encoding.encode_range,
    "datakit.tokenize.tasks:join": encoding.join,
}


def simulators(about: PhaseOf) -> dict[str, Run]:
    """Return the functions that simulate a phase's tasks, by task function. Raises an error if one is missing."""
    functions = dict.fromkeys(task.function for task in about.phase.tasks)
    for function in functions:
        if function not in SIMULATORS:
            raise StepFailedError(
                f"phase {about.phase.name!r} of stage {about.step.stage!r} cannot be simulated: {__name__} does not "
                f"list its task function {function}"
            )
    return {function: SIMULATORS[function](about) for function in functions}
