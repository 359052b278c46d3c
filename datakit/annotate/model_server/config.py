"""Defines the settings of an annotator that asks a model server, and decides which of them determine an answer.

Settings that determine a request or what its answer means enter the fingerprint. Those that only say how the work is
done (limits, prices, time limits, the name of the variable that holds the key) do not. There is no default server: a
recipe without a `url` is refused, so no text leaves the machine unless the recipe names the host.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar
from urllib.parse import SplitResult, urlsplit

import msgspec
import xxhash

from datakit.annotate.fasttext.checks import check_max_bytes
from datakit.annotate.model_server.answer_format import AnswerFormat
from datakit.redaction import has_user_info, is_secret_name
from datakit.storage.fingerprint import canonical_json, short
from datakit.toml_config import key

PLACEHOLDER = "{text}"
API = "api"  # the setting that all annotators of this kind have, and no others
CHAT = "chat/completions"  # the path below `url` to which requests are sent
OPERATIONS = (
    *("allow_http", "attempts", "concurrency", "key_env", "max_cost", "max_requests", "price_per_1k_input_tokens"),
    *("price_per_1k_output_tokens", "requests_per_minute", "timeout"),
)
OWN = ("model", "messages", "max_tokens", "n", "stream", "response_format")  # parameters that datakit itself sets
MOST_CONCURRENT = 256
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ModelServerConfig:
    """The keys of a table [annotate.model_server.NAME]."""

    VERSION: ClassVar[int] = 1

    url: Annotated[
        str,
        key("The base URL of an OpenAI-compatible API. Requests are sent to `url`/chat/completions.",
            "https://models.example.org/v1"),
    ]  # fmt: skip
    model: Annotated[str, key("The name of the model, as the server knows it.", "judge-8b")]
    prompt: Annotated[
        str,
        key("The message about each document; `{text}` stands for its text.",
            "Rate the text from 0 to 5. Answer with the number only.\n\n{text}"),
    ]  # fmt: skip
    system: Annotated[str, key("A system message that is sent before the prompt.", "You rate texts.")] = ""
    number: Annotated[
        tuple[float, ...],
        key("The answer is a number in this range, and becomes the attribute `score`.", [0, 5]),
    ] = ()  # fmt: skip
    labels: Annotated[
        tuple[str, ...],
        key("The answer is one of these labels, and becomes the attribute `label`.", ["news", "fiction"]),
    ] = ()  # fmt: skip
    fields: Annotated[
        dict[str, Any],
        key(
            "The answer is a JSON object with exactly these fields, each of which becomes an attribute. Types are "
            "`string`, `integer`, `number`, `boolean` or a list of strings.",
            {"quality": "integer", "topic": ["news", "fiction"]},
        ),
    ] = field(default_factory=dict)  # fmt: skip
    structured: Annotated[
        bool, key("With `fields`: ask the server to enforce the JSON schema (`response_format`).", True)
    ] = False  # fmt: skip
    max_bytes: Annotated[
        int, key("Of a document with more bytes, 8 evenly spaced pieces of this size in all are sent.", 8192)
    ] = 16384  # fmt: skip
    max_tokens: Annotated[int, key("The limit on the tokens of an answer.", 16)] = 64
    parameters: Annotated[
        dict[str, Any], key("Further parameters of each request.", {"temperature": 0, "seed": 1})
    ] = field(default_factory=lambda: {"temperature": 0})  # fmt: skip
    version: Annotated[
        int, key("Raise it to ask again about all documents, for example after the server's model has changed.", 2)
    ] = 1  # fmt: skip
    key_env: Annotated[
        str, key("The name of the environment variable that holds the server's key.", "MODELS_API_KEY")
    ] = ""  # fmt: skip
    allow_http: Annotated[bool, key("`true` permits unencrypted requests to other machines.", True)] = False
    concurrency: Annotated[int, key("The number of requests that a task has under way at a time.", 32)] = 8
    requests_per_minute: Annotated[
        int, key("The limit on the requests per minute of all tasks together; 0 for no limit.", 600)
    ] = 0  # fmt: skip
    max_requests: Annotated[
        int, key("The limit on all requests, including those of earlier runs; 0 for no limit.", 100_000)
    ] = 0  # fmt: skip
    max_cost: Annotated[
        float, key("The limit on the cost of all requests, in the currency of the prices; 0 for no limit.", 25.0)
    ] = 0.0  # fmt: skip
    price_per_1k_input_tokens: Annotated[float, key("The price of 1,000 tokens that are sent.", 0.00015)] = 0.0
    price_per_1k_output_tokens: Annotated[float, key("The price of 1,000 tokens of answers.", 0.0006)] = 0.0
    attempts: Annotated[
        int, key("How often the server is asked about a document before the document counts as failed.", 6)
    ] = 4  # fmt: skip
    timeout: Annotated[float, key("The time limit of a request, in seconds.", 300.0)] = 120.0

    def __post_init__(self) -> None:
        _check_url(self.url, self.allow_http)
        if not self.model:
            raise ValueError("model is empty; give the name of the server's model")
        if self.prompt.count(PLACEHOLDER) != 1:
            raise ValueError(f"prompt must contain {PLACEHOLDER} exactly once; the document's text takes its place")
        self.answer_format()
        check_max_bytes(self.max_bytes)
        if found := [name for name in OWN if name in self.parameters]:
            raise ValueError(f"parameters must not contain {found[0]!r}, which datakit sets itself")
        if self.structured and not self.fields:
            raise ValueError("structured needs `fields`, from which the JSON schema is made")
        self._check_limits()
        self._check_key()

    def _check_limits(self) -> None:
        for name, least, most in (
            ("max_tokens", 1, 1 << 20), ("version", 1, 1 << 31), ("attempts", 1, 100), ("max_requests", 0, 1 << 53),
            ("concurrency", 1, MOST_CONCURRENT), ("requests_per_minute", 0, 1 << 31), ("timeout", 1, 3600),
            ("max_cost", 0, 1 << 31), ("price_per_1k_input_tokens", 0, 1e6), ("price_per_1k_output_tokens", 0, 1e6),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from {least} to {most:,.0f}")
        if self.max_cost and not self.price_per_1k_input_tokens + self.price_per_1k_output_tokens:
            raise ValueError("max_cost needs price_per_1k_input_tokens, price_per_1k_output_tokens or both")

    def _check_key(self) -> None:
        """Refuse a variable that `redaction.py` would not recognize as a secret, and a key in place of a name."""
        if self.key_env and not (_VARIABLE.fullmatch(self.key_env) and is_secret_name(self.key_env)):
            raise ValueError(
                "key_env must be the name of an environment variable, with KEY, TOKEN or SECRET as one of its words "
                "(such as MODELS_API_KEY), so that its value is recognized as a secret; the key itself must not be in "
                "a recipe"
            )

    @property
    def host(self) -> str:
        """The host to which texts are sent, with its port if the URL gives one."""
        return urlsplit(self.url).netloc

    def answer_format(self) -> AnswerFormat:
        """Return what an answer must look like. Raises ValueError."""
        return AnswerFormat.of(self.number, self.labels, self.fields)

    def store_name(self) -> str:
        """Return the name of the folder of the answers to requests with these settings, whatever the table's name."""
        return short(xxhash.xxh3_128_hexdigest(canonical_json(self.content())))

    def content(self) -> dict[str, Any]:
        """Return the settings that determine requests and what answers mean, as they enter the fingerprint."""
        return {**_without_operations(self.plain()), API: CHAT, "format": self.VERSION}

    def operations(self) -> dict[str, Any]:
        """Return the other settings."""
        return {name: self.plain()[name] for name in OPERATIONS}

    def plain(self) -> dict[str, Any]:
        """Return all settings as JSON values."""
        return msgspec.json.decode(msgspec.json.encode(asdict(self)))


def _without_operations(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in OPERATIONS}


def is_loopback(host: str) -> bool:
    """Return True if a host name stands for this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_url(url: str, allow_http: bool) -> None:
    parts = _split(url)
    if has_user_info(url) or parts.query or parts.fragment:
        raise ValueError(
            "url must not contain a user name, a password or a query; name the variable that holds the key in `key_env`"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url {url!r} must have the form https://host/v1")
    if parts.scheme == "http" and not (allow_http or is_loopback(parts.hostname)):
        raise ValueError(
            f"url {url!r} would send texts and the key unencrypted; use https, or set `allow_http = true` if the "
            "network is your own"
        )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError("url is not a valid URL; it must have the form https://host/v1") from error
    return parts
