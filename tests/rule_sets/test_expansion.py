"""Naming a rule set is the same as writing out its rules, and every mistake names the next step."""

from __future__ import annotations

import tomllib
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.api import run
from datakit.conditions.config import Rule
from datakit.conditions.expressions import Conditions
from datakit.errors import RecipeError
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.fate.fates import why
from datakit.pipeline.rule_effects.effects import SampleOptions, effects
from datakit.recipe import load_recipe
from datakit.rule_sets.config import SetTable
from datakit.rule_sets.expansion import rules_of
from datakit.rule_sets.files import parts_of, rule_set_names
from datakit.toml_config import decoded
from datakit.validate.validation import validate
from tests.support.annotate.rules_inputs import listed
from tests.support.annotate.rules_recipe import LONG, SHARED, recipe_with
from tests.support.command_line import invoke
from tests.support.partitions import identity

EVERY_PART = [(name, part) for name in rule_set_names() for part in parts_of(name)]
HEURISTICS = "[annotate.heuristics]\n"
MINE = """
[[rules]]
name = "early"
where = "document.n < 5"

[[rules]]
name = "long"
where = "document.long OR len(personal.spans) > 0"

[[rules]]
name = "most"
lowest = 0.5
by = "document.n"
"""
USED = '[annotate.personal]\n[[rules]]\nset = "sets/My Rules.toml"\nsources = ["a"]\nwithout = ["most"]\n'


def content(folder: Path, rules: str) -> object:
    """Return the parameters of the steps `rules` and `select`, which their fingerprints cover."""
    settings = configure(load_recipe(recipe_with(folder, rules)))
    return [settings[stage][None].content for stage in ("rules", "select") if stage in settings]


def with_mine(folder: Path, text: str = MINE) -> Path:
    (folder / "sets").mkdir(exist_ok=True)
    (folder / "sets" / "My Rules.toml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "part"), [*(one for one in EVERY_PART if one[0] != "fineweb2"), ("fineweb2", "deu_Latn")]
)
def test_a_set_is_what_its_printed_rules_are(tmp_path: Path, name: str, part: str) -> None:
    chosen = () if part == "rules" else ("--part", part)
    printed = invoke("rules", "show", name, *chosen, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    stop_words = f'stop_words = ["{part}"]\n' if chosen else ""
    named = f'[[rules]]\nset = "{name}"\n' + (f'part = "{part}"\n' if chosen else "")
    written = content(tmp_path, HEURISTICS + stop_words + printed.stdout)
    assert content(tmp_path, HEURISTICS + stop_words + named) == written


def test_the_set_is_the_fingerprint_not_its_name(tmp_path: Path) -> None:
    with_mine(tmp_path)
    before = content(tmp_path, USED)
    (tmp_path / "sets" / "my rules.toml").write_text(MINE + "# a comment\n")
    assert content(tmp_path, USED.replace("My Rules", "my rules")) == before
    with_mine(tmp_path, MINE.replace("n < 5", "n < 6"))
    assert content(tmp_path, USED) != before


def test_names_thresholds_sources_and_conditions(tmp_path: Path) -> None:
    used = SetTable(
        set="gopher_quality", name="web", where="document.kind = 'web' -- all", sources=("a",),
        without=("many_words", "hashes"), thresholds={"few_words": 30.0, "short_words": 2.5, "long_words": 1e-7},
    )  # fmt: skip
    rules = {rule["name"]: rule for rule in rules_of(used, tmp_path)}
    assert [*rules][:3] == ["web.few_words", "web.short_words", "web.long_words"] and len(rules) == 8
    assert rules["web.few_words"] == {
        "name": "web.few_words",
        "where": "(document.kind = 'web' -- all\n) AND (heuristics.non_symbol_words < 30)",
        "sources": ["a"],
    }
    assert rules["web.short_words"]["where"].endswith("(heuristics.mean_word_length < 2.5)")
    assert rules["web.long_words"]["where"].endswith("(heuristics.mean_word_length > 1e-07)")
    Conditions([decoded(rule, Rule, "") for rule in rules.values()]).check(["heuristics"])
    with_mine(tmp_path)
    share = SetTable(
        set="sets/My Rules.toml", thresholds={"most": 0.25}, without=("early", "long"), where="source = 'a'"
    )
    assert rules_of(share, tmp_path) == [
        {"name": "my_rules.most", "lowest": 0.25, "by": "document.n", "where": "(source = 'a')"}
    ]


def test_a_null_restriction_is_not_true_for_rules_with_missing(tmp_path: Path) -> None:
    (tmp_path / "sure.toml").write_text("""
        rules = [{name = "x", where = "document.n < 5", missing = true}, {name = "y", where = "document.n < 5"}]
    """)
    used = SetTable(set="sure.toml", where="document.kind = 'a' OR document.kind = 'b' -- web")
    rules = [decoded(rule, Rule, "") for rule in rules_of(used, tmp_path)]
    Conditions(rules).check([])
    documents = "(VALUES (NULL, NULL), (NULL, 1), ('a', NULL), ('b', 1), ('c', NULL)) documents(kind, n)"
    decided = [
        [value for (value,) in duckdb.execute(f"SELECT ({where}) FROM {documents}").fetchall()]
        for where in (rule.where.replace("document.", "") for rule in rules)
    ]
    assert decided == [[False, False, None, True, False], [None, None, None, True, False]]


@given(threshold=st.floats(allow_nan=False, allow_infinity=False))
def test_a_threshold_is_the_number_that_the_rule_compares_with(threshold: float) -> None:
    (rule,) = rules_of(SetTable(set="mc4", thresholds={"few_long_lines": threshold}), Path())
    written = rule["where"].removeprefix("heuristics.third_longest_line < ")
    assert float(written) == threshold
    assert duckdb.execute(f"SELECT CAST({written} AS DOUBLE)").fetchall() == [(threshold,)]


def test_every_shipped_rule_has_a_threshold() -> None:
    for name, part in EVERY_PART:
        rules = parts_of(name)[part]
        used = SetTable(set=name, part=part, thresholds={rule["name"]: 0.125 for rule in rules})
        for rule, found in zip(rules, rules_of(used, Path()), strict=True):
            assert found["where"].split() == [*rule["where"].split()[:2], "0.125"]


def test_final_rules_can_be_a_set(tmp_path: Path) -> None:
    final = '[annotate.personal]\n[select.edits.mail]\nspans = "personal.spans"\naction = "cut"\n'
    (tmp_path / "short.toml").write_text('[[rules]]\nname = "bytes"\nwhere = "edited.bytes < 10"\n')
    named = content(tmp_path, f'{final}[[select.rules]]\nset = "short.toml"\n')
    copied = content(tmp_path, f'{final}[[select.rules]]\nname = "short.bytes"\nwhere = "edited.bytes < 10"\n')
    assert named == copied
    with pytest.raises(RecipeError, match=r"rule 'short.bytes' reads edited.bytes, but .* move the rule to"):
        content(tmp_path, '[[rules]]\nset = "short.toml"\n')


def test_a_run_counts_and_explains_each_rule_of_a_set(tmp_path: Path) -> None:
    """The lists of 1 and of 3 workers are those of the rules written out."""
    with_mine(tmp_path)
    result = run(recipe_with(tmp_path, USED), root=tmp_path / "root", workers=3)
    (rules,) = result.steps_of("rules")
    reasons = {row["id"]: row["reason"] for row in listed(Path(rules.directory), "a")}
    mails = [identity(f"Write to ada@mail.invalid.org {text[::-1]}") for text in SHARED[:3]]
    assert reasons == {
        **{identity(text): "rule:my_rules.early" for text in SHARED[:5]},
        **dict.fromkeys([*mails, identity(LONG)], "rule:my_rules.long"),
    }
    assert listed(Path(rules.directory), "b") == []
    written = MINE[: MINE.index('[[rules]]\nname = "most"')]
    written = written.replace('name = "', 'sources = ["a"]\nname = "my_rules.')
    other = run(recipe_with(tmp_path, "[annotate.personal]" + written), root=tmp_path / "other", workers=1)
    assert Path(other.steps_of("rules")[0].directory).name == Path(rules.directory).name
    assert [listed(Path(other.steps_of("rules")[0].directory), "a")] == [listed(Path(rules.directory), "a")]
    assert validate(str(tmp_path / "root")).findings == []
    dataset = str(tmp_path / "root" / "shelf")
    (fate,) = why(dataset, id=identity(LONG)).documents
    assert "by rule my_rules.long" in [one.explanation for one in fate.stages]
    counts = {(one.rule, one.source): one.decides for one in effects(dataset, SampleOptions()).rules}
    assert counts["my_rules.early", "a"] == 5 and counts["my_rules.long", "a"] == 4
    assert "4 by rule my_rules.long" in repr(result)


def test_assignments_reach_the_rules_of_a_set(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_with(tmp_path, HEURISTICS + '[[rules]]\nset = "gopher_quality"\n'))
    changed = recipe.with_overrides(["rules.gopher_quality.few_words.where=heuristics.words < 9"])
    assert changed.rules[0] == {"name": "gopher_quality.few_words", "where": "heuristics.words < 9"}
    assert changed.rules[1:] == recipe.rules[1:]
    named = recipe.with_overrides(['rules=[{set = "mc4"}]'])
    assert [rule["name"] for rule in named.rules] == ["mc4.few_long_lines"]


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ('set = "gofer_quality"', "rule set 'gofer_quality': unknown rule set .* did you mean 'gopher_quality'"),
        ("set = 3", "rule set 3: set: Expected `str`, got `int`"),
        ('set = "mc4"\naction = "keep"', "rule set 'mc4': unknown key 'action'"),
        ('set = "fineweb2"', "has parts; set `part` to one of arb_Arab, "),
        ('set = "fineweb2"\npart = "deu_latn"', "has no part 'deu_latn'; did you mean 'deu_Latn'"),
        ('set = "c4"\nwithout = ["few_sentence"]', "without: the set has no rule 'few_sentence'; did you mean"),
        ('set = "c4"\nthresholds = {few_sentence = 3}', "thresholds: the set has no rule 'few_sentence'; did you mean"),
        ('set = "c4"\nthresholds = {few_sentences = "3"}', "thresholds.*Expected `float`, got `str`"),
        ('set = "c4"\nthresholds = {few_sentences = nan}', "few_sentences is nan; it must be a finite number"),
        ('set = "c4"\nwithout = ["few_sentences"]\nthresholds = {few_sentences = 3}', "`without` and in `thresholds`"),
        ('set = "mc4"\nwithout = ["few_long_lines"]', "leaves out every rule; remove the table"),
        ('set = "mc4"\nwhere = "source = \'a\') OR (true"', "rule set 'mc4': where: .*is not a SQL expression"),
        ('set = "mc4"\nwhere = ""', "where is '', which is no condition; leave it out"),
        ('set = "mc4"\nsources = ["c"]', "rule 'mc4.few_long_lines': no source 'c'"),
        ('set = "mc4"\n[[rules]]\nset = "mc4"\nsources = ["a"]', "2 rule sets have the name 'mc4'; set `name`"),
        ('set = "mc4"\n[[rules]]\nname = "mc4.few_long_lines"\nwhere = "true"', "two rules are named 'mc4.few_long"),
        ('set = "mc4"\nname = "My set"', "rule 'My set.few_long_lines': name is"),
        ('set = "absent.toml"', "absent.toml does not exist; give the path of a rule set, relative to the recipe"),
        ('set = "bad/list.toml"', "'rules' is not an array of tables; a rule set holds"),
        ('set = "bad/nameless.toml"', "number 1: the rule has no name"),
        ('set = "bad/empty.toml"', "has no rules; add"),
        ('set = "bad/nested.toml"', "the rule 'x' names a set; a set holds rules only"),
        ('set = "bad/none.toml"', "bad/none.toml has no rules; add"),
        ('set = "bad/typo.toml"', "rule 'typo.x': unknown key 'wehre'; did you mean 'where'"),
        ('set = "bad/sources.toml"\nsources = ["a"]', "`sources` is set here and in the set's rule 'x'"),
        ('set = "bad/sources.toml"\nthresholds = {x = 1}', "does not compare one number with a threshold"),
        ('set = "bad/parentheses.toml"\nwhere = "source = \'a\'"', "rule 'parentheses.x', where: .* is not a SQL"),
    ],
)  # fmt: skip
def test_mistakes_name_the_next_step(tmp_path: Path, rules: str, problem: str) -> None:
    files = {
        "list": "rules = 3", "none": "rules = []", "nameless": "[[rules]]\nwhere = 'true'", "empty": "",
        "nested": "[[rules]]\nname = 'x'\nset = 'c4'", "typo": "[[rules]]\nname = 'x'\nwehre = 'true'",
        "sources": "[[rules]]\nname = 'x'\nwhere = 'true'\nsources = ['a']",
        "parentheses": "[[rules]]\nname = 'x'\nwhere = 'false) OR (true'",
    }  # fmt: skip
    (tmp_path / "bad").mkdir()
    for name, text in files.items():
        (tmp_path / "bad" / f"{name}.toml").write_text(text)
    with pytest.raises(RecipeError, match=problem):
        configure(load_recipe(recipe_with(tmp_path, f"{HEURISTICS}[[rules]]\n{rules}\n")))


@pytest.mark.parametrize(
    ("annotate", "problem"),
    [
        ("", r"rule 'fineweb2.deu_latn.\w+' reads heuristics.\w+, but the recipe has no \[annotate.heuristics\]; add"),
        (HEURISTICS, r"rule 'fineweb2.deu_latn.few_stop_words'.*; add \"deu_Latn\" to its `stop_words`"),
    ],
)
@pytest.mark.parametrize("array", ["rules", "select.rules"])
def test_what_a_set_needs_is_named_before_anything_runs(
    tmp_path: Path, annotate: str, problem: str, array: str
) -> None:
    used = f'[[{array}]]\nset = "fineweb2"\npart = "deu_Latn"\n'
    with pytest.raises(RecipeError, match=problem):
        configure(load_recipe(recipe_with(tmp_path, annotate + used)))


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    rules = '[[rules]]\nset = "gofer"\n[[rules]]\nset = "c4"\nwithout = ["x"]\n[passages.lines]\nunti = "line"\n'
    with pytest.raises(RecipeError, match="unknown rule set 'gofer'") as caught:
        load_recipe(recipe_with(tmp_path, rules))
    assert "without: the set has no rule 'x'" in str(caught.value)


def test_sets_are_listed(tmp_path: Path) -> None:
    found = invoke("rules", "sets", cwd=tmp_path, COLUMNS="80")
    assert all(name in found.stdout for name in rule_set_names())
    assert max(map(len, found.stdout.splitlines())) <= 80
    refused = invoke("rules", "show", "c4", "--samples", "3", cwd=tmp_path)
    assert refused.returncode and "--samples has no effect on a rule set" in refused.stderr
    refused = invoke("rules", "show", str(tmp_path), "--part", "x", cwd=tmp_path)
    assert refused.returncode and "`datakit rules sets` lists them" in refused.stderr
    printed = invoke("rules", "show", "mc4", cwd=tmp_path).stdout
    assert tomllib.loads(printed)["rules"][0]["name"] == "mc4.few_long_lines"
