"""Implements `datakit export hf`, which writes a trained model as a folder in the format of the model hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from datakit.cli.console import bytes_text, note, progress_note, say, say_json
from datakit.cli.parameters import Flag, Settings
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.trainer.trained.export_folder import Origins

GB = 1_000_000_000


def export_hf(
    run: str,
    /,
    *,
    output: str | None = None,
    checkpoint: str | None = None,
    ema: Flag = False,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    shard_size: float = 5.0,
    root: str = "./data",
    set_: Settings = (),
    json: Flag = False,
) -> int:
    """Write a trained model as a folder that transformers and inference engines open.

    The folder gets config.json, safetensors files, the caches' tokenizer with the special tokens that the model saw in
    training, and a model card. It is written completely or not at all, and never replaces another folder. Models of the
    kinds dense and olmoe can be exported if they compute what Llama, Qwen3, OLMoE, Mixtral, Qwen2-MoE or Qwen3-MoE
    computes.

    Examples:
      datakit export hf data/my-run/train-0123456789ab
      datakit export hf my-run.toml --output models/mine --ema --dtype float32

    Parameters
    ----------
    run
        The directory of a finished run, a run file (TOML), or the name of a built-in run.
    output
        The new folder; by default huggingface/step-<step> in the run's directory.
    checkpoint
        Directory of a checkpoint; by default the run's newest checkpoint.
    ema
        Export the averaged weights.
    dtype
        Number type of the tensors.
    shard_size
        Maximum size of a file of tensors in GB; a larger model gets several files and an index.
    root
        The directory that holds the runs, if a run file is given.
    set_
        Override a value of the run file. Can be repeated.
    json
        Print one JSON object.
    """
    from datakit.trainer import require_jax

    require_jax()
    from datakit.trainer.huggingface.export_checkpoint import config_to_hub
    from datakit.trainer.trained.export_folder import Options, export_folder
    from datakit.trainer.trained.find import find_trained

    options = Options(dtype, ema, round(shard_size * GB))
    found = find_trained(run, root, set_, checkpoint, note)
    config_to_hub(found.config)  # raises UsageError before anything is read
    origins = _origins(found.directory) if found.manifest else None
    done = export_folder(found, output, options, origins, progress_note("exporting:"))
    if json:
        say_json(done)
        return 0
    say(done.folder)
    if not done.created:
        note("this export was already there; nothing is written")
    note(f"step {done.step:,} of {done.checkpoint}: {counted(done.files, 'file')}, {bytes_text(done.bytes)}")
    note(f"open it:   transformers.AutoModelForCausalLM.from_pretrained({done.folder!r})")
    return 0


def _origins(directory: str) -> Origins:
    """Return what the lineage of a finished run says about its sources and their licenses."""
    from datakit.lineage import read_lineage
    from datakit.publish.licenses import front_matter
    from datakit.trainer.trained.export_folder import Origins
    from datakit.trainer.trained.model_card import Source

    sources = read_lineage(directory).sources
    licenses = {one.name: one.license for one in sources if one.license}
    complete = bool(sources) and len(licenses) == len({one.name for one in sources})
    described = [Source(one.name, one.license, one.url, one.revision) for one in sources]
    return Origins(described, front_matter(licenses) if complete else ())
