"""A source that names a dataset of the catalog is the same source as one written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import datakit
from datakit.datasets.entry import Entry
from datakit.datasets.lookup import dataset
from datakit.errors import RecipeError
from datakit.recipe import Source, load_recipe
from tests.support.command_line import command, invoke
from tests.support.datasets.examples import ENTRIES, example
from tests.support.datasets.recorded_hub import recorded_hub
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import prose

RECIPE = """
name = "mixed"

[[sources]]
catalog = "fineweb-2"
parameters = { language = "deu_Latn" }

[[sources]]
catalog = "fineweb-2"
parameters = { language = "dan_Latn" }
name = "danish"
sample = 0.5
revision = "0123456789abcdef0123456789abcdef01234567"

[[sources]]
name = "own"
url = "texts"
"""


def sources_of(folder: Path, text: str) -> tuple[Source, ...]:
    (folder / "r.toml").write_text(text)
    return load_recipe(folder / "r.toml").sources


def refusal(folder: Path, table: str) -> str:
    with pytest.raises(RecipeError) as caught:
        sources_of(folder, f'name = "x"\n[[sources]]\n{table}\n')
    assert str(folder / "r.toml") in str(caught.value)
    return str(caught.value)


def test_several_datasets_stand_beside_sources_of_ones_own(tmp_path: Path) -> None:
    german, danish, own = sources_of(tmp_path, RECIPE)
    url = "hf://datasets/HuggingFaceFW/fineweb-2/data/{}/train"
    assert (german.name, german.url) == ("fineweb-2-deu_Latn", url.format("deu_Latn"))
    assert (german.license, german.include, german.revision, german.sample) == (
        "ODC-By-1.0",
        ("*.parquet",),
        None,
        None,
    )
    assert (danish.name, danish.url, danish.sample) == ("danish", url.format("dan_Latn"), 0.5)
    assert danish.revision == "0123456789abcdef0123456789abcdef01234567"
    assert own.url == str(tmp_path / "texts")


@ENTRIES
def test_source_equals_the_one_written_by_hand(entry: Entry, tmp_path: Path) -> None:
    by_hand = example(entry)
    lines = [f"{name} = {json.dumps(value)}" for name, value in by_hand.items()]
    (written,) = sources_of(tmp_path, "\n".join(['name = "x"', "[[sources]]", *lines]))
    chosen = ", ".join(f"{name} = {json.dumps(one.example)}" for name, one in entry.parameters.items())
    named = [
        f'catalog = "{entry.name}"',
        f"parameters = {{ {chosen} }}",
        *['url = "/copy"'] * ("url" not in entry.source),
    ]
    (found,) = sources_of(tmp_path, "\n".join(['name = "x"', "[[sources]]", *named]))
    assert found == written


def test_copy_is_read_without_the_revision_of_the_catalog(tmp_path: Path) -> None:
    (copy,) = sources_of(tmp_path, 'name = "x"\n[[sources]]\ncatalog = "fineweb-edu-10bt"\nurl = "copy"\n')
    assert (copy.url, copy.revision, copy.include) == (str(tmp_path / "copy"), None, ("*.parquet",))
    (copy,) = sources_of(tmp_path, 'name = "x"\n[[sources]]\ncatalog = "fineweb-2"\nurl = "copy"\n')
    assert copy.name == "fineweb-2", "a parameter of the URL alone is not needed"
    assert "needs the parameter 'language'" in refusal(tmp_path, 'catalog = "gutenberg"\nurl = "copy"')


def test_mistakes_are_reported_with_the_nearest_name(tmp_path: Path) -> None:
    assert "did you mean 'fineweb-2'?" in refusal(tmp_path, 'catalog = "finweb-2"')
    assert 'write, for example, parameters = { language = "dan_Latn" }' in refusal(tmp_path, 'catalog = "fineweb-2"')
    wrong = refusal(tmp_path, 'catalog = "fineweb-2"\nparameters = { language = "../x" }')
    assert "'../x' is no 'language' of fineweb-2" in wrong and "[a-z]{3}_[A-Z][a-z]{3}" in wrong
    assert "has no parameter 'lang'; did you mean 'language'?" in refusal(
        tmp_path, 'catalog = "fineweb-2"\nparameters = { lang = "deu_Latn" }'
    )
    assert "it has none" in refusal(tmp_path, 'catalog = "arxiv"\nparameters = { year = "2024" }')
    assert "has no effect without `catalog`" in refusal(tmp_path, 'name = "a"\nurl = "b"\nparameters = {}')
    assert "catalog: Expected" in refusal(tmp_path, "catalog = 5")
    both = refusal(tmp_path, 'catalog = "fineweb-2"\n[dedup]\nx = 1\n[tokenise]')
    assert "2 mistakes" in both and "tokenise" in both and "needs the parameter" in both
    assert "unknown key 'txt'" in refusal(tmp_path, 'catalog = "arxiv"\ntxt = "a"')


@pytest.mark.parametrize("name", ["the-stack-v2", "nsf-awards"])
def test_dataset_that_must_be_obtained_says_how(tmp_path: Path, name: str) -> None:
    refused = refusal(tmp_path, f'catalog = "{name}"')
    assert f"{name} cannot be downloaded by datakit. {dataset(name).obtain}" in refused


def test_license_and_columns_of_a_dataset_reach_the_lineage(tmp_path: Path) -> None:
    """A copy in the form of a dataset of the catalog runs, and its license is where readers look for it."""
    (tmp_path / "copy").mkdir()
    for name, count in (("c4-train.00000-of-01024.json.gz", 20), ("c4-validation.00000-of-00008.json.gz", 1)):
        lines = [json.dumps({"text": prose(n), "url": f"https://x.org/{n}"}) + "\n" for n in range(count)]
        (tmp_path / "copy" / name).write_bytes(gzip.compress("".join(lines).encode()))
    (tmp_path / "r.toml").write_text('name = "clean"\n[[sources]]\ncatalog = "c4"\nurl = "copy"\n[dedup]\n')
    result = datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=1)
    assert result.steps_of("normalize")[0].manifest.totals.rows == 20
    place = tmp_path / "root" / "clean"
    lineage = json.loads(invoke("lineage", place, "--format", "json", cwd=tmp_path).stdout)
    (source,) = lineage["sources"]
    assert (source["name"], source["license"]) == ("c4", "ODC-By-1.0")
    croissant = json.loads(invoke("lineage", place, "--format", "croissant", cwd=tmp_path).stdout)
    assert croissant["license"] == ["ODC-By-1.0"]


LISTINGS = REPOSITORY / "tests" / "fixtures" / "hub_listings"


@pytest.mark.parametrize("path", sorted(LISTINGS.glob("*.json")), ids=lambda path: path.stem)
def test_plan_of_a_recorded_listing_has_the_sizes_of_the_entry(path: Path, tmp_path: Path) -> None:
    """With the real client, against a server that answers as the Hub does; nothing is downloaded."""
    pytest.importorskip("huggingface_hub")
    recorded = json.loads(path.read_text())
    wanted = [one for one in recorded["tree"] if one["path"].endswith(".parquet")]
    with recorded_hub(recorded) as (endpoint, asked):
        planned = command("plan", path.stem, "--json", cwd=tmp_path, HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="0")
    assert planned.returncode == 0, planned.stderr
    (download,) = [step for step in json.loads(planned.stdout)["steps"] if step["stage"] == "download"]
    size = sum(one["size"] for one in wanted)
    assert download["reads"][0].endswith(f": {len(wanted)} files, {size:,} bytes")
    assert (download["tasks"], download["disk"]) == (len(wanted), size)
    assert size == dataset(path.stem).size.bytes
    assert any(recorded["revision"] in one for one in asked), "the revision of the entry is listed"
    assert list(tmp_path.iterdir()) == [], "nothing is written"
