"""`datakit validate`, `datakit cache show`, `stats`, `import` and `export`, as a person types them."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from datakit.cache.reader import open_cache
from datakit.cache.summary import counted
from datakit.cli import main
from datakit.tokenize.encoders.token_text import load_reference, pieces, token_text
from datakit.validate.token_cache import require_intact
from tests.interop.test_cache_import import consolidated, documents, read_by_hand
from tests.support.caches import make_cache, trained
from tests.support.partitions import identity, words
from tests.support.paths import REPOSITORY

ODD = "naïve \U0001f469\u200d\U0001f680 日本語\n\ttab \x1b[31mred\x1b[0m end"
TEXTS = {"novels": [*words(1, 60), ODD], "laws": words(2, 30)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_cache(tmp_path_factory.mktemp("made"), TEXTS, bits=1))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as ended:  # what the console script ends with
        code = int(ended.code or 0)
    found = capsys.readouterr()
    return code, found.out, found.err


def said_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = said(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


@pytest.mark.parametrize("name", ["validate", "cache show", "cache stats", "cache import", "cache export"])
def test_every_command_has_examples(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = said(capsys, *name.split(), "--help")
    assert code == 0
    assert out.count(f"  datakit {name} ") >= 2


# --- validate


def test_an_intact_cache(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "validate", cache)
    assert (code, "intact" in out) == (0, True)
    found = said_json(capsys, "validate", cache)
    assert (found["intact"], found["damaged"], found["bytes"]) == (True, [], require_intact(open_cache(cache)))


def test_all_damage_is_listed_with_what_to_do(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    data, listed = copy / "laws/shard-00000/c/0", copy / "novels/shard-00001.docs.parquet"
    data.write_bytes(b"\xff" + data.read_bytes()[1:])
    listed.unlink()
    code, out, err = said(capsys, "validate", str(copy))
    assert code == 2
    assert "2 damaged files" in err
    lines = out.splitlines()[1:]
    assert [str(copy) in line and "make it again" in line for line in lines] == [True, True]
    code, out, _ = said(capsys, "validate", str(copy), "--json")
    found = json.loads(out)
    assert (code, found["intact"]) == (2, False)
    assert {Path(entry["url"]) for entry in found["damaged"]} == {data, listed}
    (copy / "manifest.json").unlink()
    code, out, err = said(capsys, "validate", str(copy))
    assert (code, "no finished token cache" in err) == (2, True)
    code, out, _ = said(capsys, "validate", str(copy), "--json")
    assert (code, "no finished token cache" in json.loads(out)["refused"]) == (2, True)


# --- show


def test_a_document_by_id_row_or_position(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    opened, text = open_cache(cache), TEXTS["laws"][7]
    row = opened.find(identity(text))
    assert row is not None
    expected = text + "<|endoftext|>"
    for choice in (["--document", identity(text)], ["--document", str(row)],
                   ["--position", str(opened.position_of(row) + 3)]):  # fmt: skip
        found = said_json(capsys, "cache", "show", cache, *choice)
        assert "".join(piece["text"] for piece in found["pieces"]) == expected
        assert (found["document"], found["row"], found["source"]) == (identity(text), row, "laws")
        code, out, err = said(capsys, "cache", "show", cache, *choice)
        assert code == 0
        assert out.replace("⟧⟦", "").strip("⟦⟧\n") == expected
        assert out.count("⟦") == found["count"]
        assert f"document {identity(text)}, row {row}, source laws" in err


def test_a_step_is_a_sequence_of_the_cache(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = said_json(capsys, "cache", "show", cache, "--step", "3", "--length", "50")
    ids = [number for piece in found["pieces"] for number in piece["ids"]]
    assert ids == open_cache(cache).read(150, 200).tolist()
    code, out, _ = said(capsys, "cache", "show", cache, "--step", "3", "--length", "50", "--limit", "5", "--ids")
    assert (code, out.splitlines()[-1]) == (0, " ".join(map(str, ids[:5])))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (["--document", "0" * 31 + "a"], "has no document '0000"),
        (["--document", "99999"], "document 99999 of"),
        (["--position", "99999999"], "token 99999999 of"),
        (["--step", "99999"], r"has \d+ sequences of 4,096 tokens, from 0 on"),
        (["--step", "0", "--length", "0"], "sequences of 0 tokens"),
        (["--step", "0", "--position", "0"], "give one of"),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    cache: str, capsys: pytest.CaptureFixture[str], choice: list[str], message: str
) -> None:
    code, out, err = said(capsys, "cache", "show", cache, *choice)
    assert (code, out) == (2, "")
    assert re.search(message, err), err


def test_a_document_cannot_command_the_terminal(cache: str) -> None:
    """On a terminal each token has a colour, and the only escape sequences are ours."""
    command = [sys.executable, "-m", "datakit", "cache", "show", cache, "--document", identity(ODD)]
    plain = on_a_terminal(command, NO_COLOR="1")
    coloured = on_a_terminal(command)
    assert b"\x1b" not in plain
    assert "⟦".encode() in plain
    text = re.sub(rb"\x1b\[(48;5;\d+|0)m", b"", coloured)
    assert b"\x1b" not in text
    assert "␛[31mred␛[0m" in text.decode()
    assert len(set(re.findall(rb"\x1b\[48;5;\d+m", coloured))) > 3


def on_a_terminal(command: list[str], **variables: str) -> bytes:
    """What a command writes to a terminal's stdout."""
    leader, follower = pty.openpty()
    environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "PYTHONPATH": str(REPOSITORY)}
    environment |= {"TERM": "xterm-256color", **variables}
    process = subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment)
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux's way to say that nobody has the other end open
            break
        if not part:
            break
        written += part
    os.close(leader)
    assert process.wait() == 0
    return written


def test_pieces_are_the_text_and_every_token_is_in_one(cache: str) -> None:
    """Characters that are several tokens are one piece; a window that begins inside one loses no token either."""
    tokenizer = load_reference(f"{cache}/tokenizer.json")
    ids = tokenizers.Tokenizer.from_file(f"{cache}/tokenizer.json").encode(ODD, add_special_tokens=False).ids
    found = list(pieces(tokenizer, ids))
    assert "".join(piece.text for piece in found) == ODD
    assert any(len(piece.ids) > 1 for piece in found)
    for start in range(len(ids)):
        assert [number for piece in pieces(tokenizer, ids[start:]) for number in piece.ids] == ids[start:]
    assert token_text(tokenizer, 0) == "<|endoftext|>"
    assert all(token_text(tokenizer, number) for number in range(tokenizer.vocabulary_size))


# --- stats


def test_the_numbers_are_those_of_the_documents(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = said_json(capsys, "cache", "stats", cache)
    lengths = [len(document.tokens) for document in open_cache(cache).documents()]
    assert found["documents"] == len(lengths)
    for bucket in found["lengths"]:
        assert bucket["documents"] == sum(bucket["from"] <= length < bucket["below"] for length in lengths)
    assert sum(bucket["documents"] for bucket in found["lengths"]) == len(lengths)
    exact = dict(counted(open_cache(cache), 1000))
    assert all(0 < entry["count"] <= exact[entry["id"]] for entry in found["frequent"])
    assert sum(source["tokens"] for source in found["sources"].values()) == found["tokens"] == sum(lengths)
    code, out, _ = said(capsys, "cache", "stats", cache)
    assert code == 0
    assert re.search(r"^novels +2 +61 ", out, re.MULTILINE)


def test_the_plot_is_a_picture(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "stats.png"
    for _ in range(2):  # the second replaces the first
        code, _, err = said(capsys, "cache", "stats", cache, "--plot", str(target))
        assert (code, f"plot: {target}" in err) == (0, True)
        assert target.read_bytes().startswith(b"\x89PNG")
        assert len(target.read_bytes()) > 20_000
    code, _, err = said(capsys, "cache", "stats", cache, "--plot", str(tmp_path / "stats.txt"))
    assert (code, "must end in .png" in err) == (2, True)


# --- import and export


def test_there_and_back(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix, tokenizer = str(tmp_path / "out"), f"{cache}/tokenizer.json"
    written = said_json(capsys, "cache", "export", cache, prefix)
    assert written["sequences"] == len(read_by_hand(tmp_path / "out")[0])
    code, _, err = said(capsys, "cache", "import", prefix, str(tmp_path / "in"), "--tokenizer", tokenizer)
    assert (code, "say --copy" in err) == (2, True)
    found = said_json(
        capsys, "cache", "import", prefix, str(tmp_path / "in"), "--tokenizer", tokenizer, "--copy", "--add", "eos"
    )
    assert found["tokens"] == written["tokens"] == open_cache(cache).tokens
    assert (open_cache(str(tmp_path / "in")).read(0, 999) == open_cache(cache).read(0, 999)).all()
    assert said(capsys, "validate", str(tmp_path / "in"))[0] == 0


def test_an_imported_cache_is_looked_into_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_bytes(trained())
    consolidated(tmp_path / "old", documents(1, 30))
    new, tokenizer = str(tmp_path / "new"), str(tmp_path / "tokenizer.json")
    code, out, err = said(capsys, "cache", "import", str(tmp_path / "old"), new, "--tokenizer", tokenizer)
    assert (code, out) == (0, f"{new}\n")
    assert "30 documents" in err
    assert "left where they are" in err
    assert said(capsys, "cache", "show", new, "--document", "3")[0] == 0
    found = said_json(capsys, "cache", "stats", new)  # its manifest does not list frequent tokens: they are counted
    assert found["frequent"][0]["id"] == counted(open_cache(new), 1)[0][0]
    code, _, err = said(capsys, "cache", "import", str(tmp_path / "nothing"), new, "--tokenizer", tokenizer)
    assert (code, "shard_ledger.json nor" in err) == (2, True)


def test_the_examples_of_the_documentation_run(cache: str) -> None:
    page = (REPOSITORY / "docs" / "cache.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    opened = open_cache(cache)
    exec(examples[0], {"directory": cache})
    names: dict[str, Any] = {"directory": cache}
    exec(examples[1], names)
    document = opened.document(opened.documents_count - len(names["lengths"]))
    assert names["first"].tolist() == document.tokens.tolist()
    assert names["starts"][-1] == len(names["tokens"]) == opened.shards[-1].tokens
