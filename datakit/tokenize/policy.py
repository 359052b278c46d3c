"""From a tokenizer and what the recipe asks for to the contract of a cache."""

from __future__ import annotations

from datakit.errors import TokenizerError, suggestion
from datakit.tokenize.contract import Contract, Golden, Special
from datakit.tokenize.tokenizer import Encoder, ReferenceEncoder, Tokenizer

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


def make_contract(tokenizer: Tokenizer, encoder: Encoder, add: str, bos: str | None, eos: str | None) -> Contract:
    """The contract, with golden vectors that reference and encoder agree on. Raises TokenizerError."""
    if add not in ADDED:
        raise TokenizerError(f"tokenize.add: {add!r} is none of {', '.join(ADDED)}; {suggestion(add, ADDED)}")
    return Contract(
        tokenizer_sha256=tokenizer.sha256,
        encoder=encoder.name,
        vocabulary_size=max(tokenizer.reference.get_vocab(with_added_tokens=True).values()) + 1,
        bos=_special(tokenizer, "bos", bos, BEGINS) if add in ("bos", "both") else None,
        eos=_special(tokenizer, "eos", eos, ENDS) if add in ("eos", "both") else None,
        golden=_golden(tokenizer, encoder),
    )


def _special(tokenizer: Tokenizer, side: str, named: str | None, usual: tuple[str, ...]) -> Special:
    """The token with this name, or the only one of the usual names that the vocabulary has."""
    found = [token for token in ([named] if named else usual) if tokenizer.reference.token_to_id(token) is not None]
    if len(found) == 1:
        number = tokenizer.reference.token_to_id(found[0])
        assert number is not None
        return Special(found[0], number)
    special = [token.content for token in tokenizer.reference.get_added_tokens_decoder().values() if token.special]
    has = f"its special tokens are {', '.join(special)}" if special else "it has no special tokens"
    if named:
        raise TokenizerError(f"tokenize.{side}: the tokenizer has no token {named!r}; {has}")
    what = f"more than one usual name ({', '.join(found)})" if found else "none of the usual names"
    raise TokenizerError(f"the tokenizer has {what} for {side}; {has}: set tokenize.{side} to one of them")


def _golden(tokenizer: Tokenizer, encoder: Encoder) -> list[Golden]:
    expected, lengths = ReferenceEncoder(tokenizer.reference).encode_batch(GOLDEN)
    found, _ = encoder.encode_batch(GOLDEN)
    if expected.tolist() != found.tolist():
        raise TokenizerError(
            f"{encoder.name} and `tokenizers` differ on fixed strings; set tokenize.encoder='tokenizers'"
        )
    ends = lengths.cumsum().tolist()
    pairs = zip(GOLDEN, [0, *ends], ends, strict=False)
    return [Golden(text, expected[start:end].tolist()) for text, start, end in pairs]
