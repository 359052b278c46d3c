"""Makes a cache's contract: finds the begin- and end-of-text tokens, compares the encoder's ids for the golden strings
with the reference's, and tests on a probe whether encoding in parts is exact.
"""

from __future__ import annotations

import msgspec

from datakit.cache.contract import AS_TEXT, PARTS, SPECIAL_STRINGS, WHOLE, Contract, Golden, Special
from datakit.errors import TokenizerError, suggestion
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.custom import CustomTokenizer
from datakit.tokenize.encoders.tokenizer import Tokenizer

AnyTokenizer = Tokenizer | CustomTokenizer
ADDED = ("none", "bos", "eos", "both")
BEGINS = ("<|begin_of_text|>", "<|startoftext|>", "<|beginoftext|>", "<s>", "<bos>")
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
GOLDEN = (
    "Hello, world!",
    " two  spaces\n\n\ttabs and 3.14159 of 1,000,000",
    "def add(a, b):\n    return a + b  # ok\n",
    "naïve café — “quoted”",
    "日本語と한국어, ภาษาไทย, हिन्दी, العربية",
    "e\u0301 and \u00e9; \U0001f469\u200d\U0001f680",
    "it's we'll THEY'VE \u00a0\u3000 end ",
    "before<|endoftext|>after",
)
SAMPLED_TOKENS = 400
PROBE_PART_BYTES = 48  # parts so small that a probe of a few KiB exercises every code path


def make_contract(
    tokenizer: AnyTokenizer,
    encoder: Encoder,
    add: str,
    bos: str | None,
    eos: str | None,
    *,
    special_strings: str = "keep",
) -> Contract:
    """Make the contract. Raises TokenizerError if a begin- or end-of-text token is not found or is ambiguous, or if the
    reference and the encoder disagree on the golden strings.
    """
    contract = contract_without_probe(tokenizer, encoder, add, bos, eos, special_strings=special_strings)
    return msgspec.structs.replace(contract, long_texts=_long_texts(tokenizer, encoder, special_strings))


def contract_without_probe(
    tokenizer: AnyTokenizer,
    encoder: Encoder,
    add: str,
    bos: str | None,
    eos: str | None,
    *,
    special_strings: str = "keep",
) -> Contract:
    """Make the contract, but skip the test of whether encoding in parts is exact, the slowest part of `make_contract`.
    Raises the errors of `make_contract`.
    """
    if add not in ADDED:
        raise TokenizerError(f"tokenize.add: {add!r} is not one of {', '.join(ADDED)}; {suggestion(add, ADDED)}")
    reference = tokenizer.reference_encoder(special_strings)
    if special_strings == "text":
        _require_ordinary_text(tokenizer, encoder)
    return Contract(
        tokenizer_sha256=tokenizer.sha256,
        encoder=encoder.name,
        vocabulary_size=tokenizer.vocabulary_size,
        bos=_special(tokenizer, "bos", bos, BEGINS) if add in ("bos", "both") else None,
        eos=_special(tokenizer, "eos", eos, ENDS) if add in ("eos", "both") else None,
        golden=_golden(reference or encoder, encoder, tokenizer),
        special_strings=AS_TEXT if special_strings == "text" else SPECIAL_STRINGS,
        encoder_version=encoder.version,
        fallback=tokenizer.refusal if encoder.name == "tokenizers" else "",
    )


def _special(tokenizer: AnyTokenizer, side: str, named: str | None, usual: tuple[str, ...]) -> Special:
    """Return the token `named` or, if this is None, the only token in `usual` that the vocabulary contains."""
    found = {token: tokenizer.token_id(token) for token in ([named] if named else usual)}
    present = [(token, number) for token, number in found.items() if number is not None]
    if len(present) == 1:
        return Special(*present[0])
    special = tokenizer.special_tokens
    has = f"its special tokens are {', '.join(special)}" if special else "it has no special tokens"
    if named:
        raise TokenizerError(f"tokenize.{side}: the tokenizer has no token {named!r}; {has}")
    names = ", ".join(token for token, _ in present)
    what = f"more than one token with a usual name ({names})" if present else "no token with a usual name"
    raise TokenizerError(f"the tokenizer has {what} for {side}; {has}; set tokenize.{side} to the name of a token")


def _require_ordinary_text(tokenizer: AnyTokenizer, encoder: Encoder) -> None:
    """Raise TokenizerError if the encoder, which should treat special tokens' strings as ordinary text, returns a
    special token for one of them (some models contain these strings).
    """
    for token, number in special_ids(tokenizer).items():
        if number in encoder.encode_batch([token, f"a{token}b", f"a {token} b"])[0]:
            raise TokenizerError(
                f"tokenize.special_strings = 'text' is impossible with this tokenizer, because its model encodes "
                f"the string {token!r} as a special token even in ordinary text; set tokenize.special_strings to 'keep'"
            )


def special_ids(tokenizer: AnyTokenizer) -> dict[str, int]:
    """Return the ids of the tokenizer's special tokens, by string."""
    found = {token: tokenizer.token_id(token) for token in tokenizer.special_tokens}
    return {token: number for token, number in found.items() if number is not None}


def _golden(reference: Encoder, encoder: Encoder, tokenizer: AnyTokenizer) -> list[Golden]:
    """Return the golden strings with their ids. Raises TokenizerError if the encoder and the reference give different
    ids for these strings or for the added tokens.
    """
    added = [] if isinstance(tokenizer, CustomTokenizer) else tokenizer.reference.get_added_tokens_decoder().values()
    texts = [*GOLDEN, *(f"a{token.content}b {token.content}{token.content}" for token in added)]
    expected, lengths = reference.encode_batch(texts)
    found, _ = encoder.encode_batch(texts)
    if expected.tolist() != found.tolist():
        raise TokenizerError(
            f"{encoder.name} and `tokenizers` encode the built-in test strings or the tokenizer's added tokens "
            "differently; set tokenize.encoder = 'tokenizers'"
        )
    ends = lengths.cumsum().tolist()
    pairs = zip(GOLDEN, [0, *ends], ends, strict=False)
    return [Golden(text, expected[start:end].tolist()) for text, start, end in pairs]


def _long_texts(tokenizer: AnyTokenizer, encoder: Encoder, special_strings: str) -> str:
    """Return PARTS if encoding in parts is known to be exact for this tokenizer and a probe encoded in tiny parts
    confirms it; otherwise, return WHOLE and the reason.
    """
    parts = tokenizer.long_texts(encoder, special_strings).cutting
    reference = tokenizer.reference_encoder(special_strings)
    if parts.reason or reference is None:
        return f"{WHOLE}: {parts.reason}"
    parts.part_bytes = PROBE_PART_BYTES
    probe = _probe(tokenizer.special_tokens) + _vocabulary_sample(tokenizer)
    if parts.encode_text(probe).tolist() != reference.encode_batch([probe])[0].tolist():
        return f"{WHOLE}: encoded in parts, a probe has other tokens"
    return PARTS


def _vocabulary_sample(tokenizer: AnyTokenizer) -> str:
    """Return a text that contains many of the tokens as words of their own and cannot be cut safely between them."""
    if isinstance(tokenizer, CustomTokenizer):
        return ""
    size = tokenizer.vocabulary_size
    numbers = {*range(0, size, max(1, size // SAMPLED_TOKENS)), *range(max(0, size - SAMPLED_TOKENS // 4), size)}
    texts = [tokenizer.reference.decode([number]).strip() for number in sorted(numbers)]
    return "、、".join(text for text in texts if text and "\N{REPLACEMENT CHARACTER}" not in text)


def _probe(special: list[str]) -> str:
    """Return a few KiB of varied text: the golden strings, repeated characters, and special tokens."""
    runs = [character * 200 for character in ("a", " ", "\n", "7", "-", "漢", "\u0301", "'s", "\r\n", "<|")]
    return "".join(text + run for text, run in zip(GOLDEN * 2, runs, strict=False)) + " x ".join([*runs, *special])
