"""A template that cannot be used ends a run when the contract is made."""

from __future__ import annotations

import pytest

from datakit.cache.contract import ChatTemplate, Contract, Special
from datakit.errors import TokenizerError
from datakit.tokenize.templates import trial
from datakit.tokenize.templates.limits import Limits
from datakit.tokenize.templates.trial import tried_template

CONTRACT = Contract("", "", 9, None, Special("</s>", 1), [])
DATED = "{{ strftime_now('%d %b %Y') if strftime_now is defined }}"


def template(text: str, date: str = "", **variables: str) -> ChatTemplate:
    return ChatTemplate("", text, "", variables, date)


def test_special_tokens_are_those_of_the_contract_unless_a_file_names_them() -> None:
    assert tried_template(template("a"), CONTRACT).variables == {"eos_token": "</s>"}
    assert tried_template(template("a", eos_token="<e>"), CONTRACT).variables == {"eos_token": "<e>"}
    assert tried_template(template("a", pad_token="<p>"), CONTRACT).variables == {
        "eos_token": "</s>",
        "pad_token": "<p>",
    }
    assert tried_template(template("a", eos_token=""), CONTRACT).variables == {}


def test_template_that_shows_the_date_needs_one_and_no_other_has_one() -> None:
    with pytest.raises(TokenizerError, match=r"shows the current date .* set tokenize\.chat_date"):
        tried_template(template(DATED), CONTRACT)
    assert tried_template(template(DATED, "2026-01-31"), CONTRACT).date == "2026-01-31"
    with pytest.raises(TokenizerError, match="chat_date has no effect"):
        tried_template(template("a", "2026-01-31"), CONTRACT)


def test_template_may_refuse_the_trial_but_not_exceed_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    tried_template(template("{{ raise_exception('a system message is needed') }}"), CONTRACT)
    monkeypatch.setattr(trial, "TRIAL_LIMITS", Limits(seconds=5.0, characters=1000))
    with pytest.raises(TokenizerError, match="writes more than 1,000 characters, even for two short messages"):
        tried_template(template("{% for a in range(9999) %}words{% endfor %}"), CONTRACT)
