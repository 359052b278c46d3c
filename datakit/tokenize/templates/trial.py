"""Tries a chat template before the first conversation is read, when the contract is made: a template that cannot be
compiled, that exceeds its limits with two short messages, or that needs a date ends the run in its first seconds.

The trial itself may fail for other reasons: a template can require a system message, for example. In this case, the
first conversation shows whether the template works.
"""

from __future__ import annotations

import msgspec

from datakit.cache.contract import ChatTemplate, Contract
from datakit.errors import TokenizerError
from datakit.tokenize.templates.limits import Limits
from datakit.tokenize.templates.renderer import Renderer

TRIAL = ({"role": "user", "content": "What is two plus two?"}, {"role": "assistant", "content": "Four."})
TRIAL_LIMITS = Limits(seconds=5.0, characters=1 << 20)  # the longest prefaces that we know have 10 KB


def tried_template(template: ChatTemplate, contract: Contract) -> ChatTemplate:
    """Return the template. If nothing beside the tokenizer says which string the begin- or end-of-text token has, the
    template gets that of the contract. Raises TokenizerError if the template cannot be used.
    """
    ends = {"bos_token": contract.bos, "eos_token": contract.eos}
    strings = {name: special.token for name, special in ends.items() if special is not None}
    variables = {name: text for name, text in {**strings, **template.variables}.items() if text}
    template = msgspec.structs.replace(template, variables=variables)
    renderer = Renderer(template, TRIAL_LIMITS)
    try:
        renderer.start()
        _check_date(template, renderer.needs_date)
        renderer.try_out(list(TRIAL))
    finally:
        renderer.close()
    return template


def _check_date(template: ChatTemplate, needed: bool) -> None:
    if needed and not template.date:
        raise TokenizerError(
            "the chat template shows the current date (strftime_now), so its tokens would depend on the day; set "
            "tokenize.chat_date to the date that it should show, such as '2026-01-31'"
        )
    if template.date and not needed:
        raise TokenizerError("tokenize.chat_date has no effect, because the chat template shows no date; remove it")
