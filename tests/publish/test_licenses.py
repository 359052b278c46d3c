"""A publication states the license of every source, or is refused."""

from __future__ import annotations

import pytest
import yaml

from datakit.errors import LicenseError
from datakit.publish.licenses import HUB_LICENSES, HUB_NAMES, OTHERS, front_matter, link, require_licenses


def stated(*licenses: str) -> dict[str, object]:
    """The front matter about sources with these licenses, as YAML reads it."""
    return yaml.safe_load("\n".join(front_matter({str(number): one for number, one in enumerate(licenses)})))


@pytest.mark.parametrize(
    ("license_", "expected"),
    [
        ("CC-BY-4.0", {"license": "cc-by-4.0"}),
        ("ODC-By-1.0", {"license": "odc-by"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("MIT OR Apache-2.0", {"license": ["mit", "apache-2.0"]}),
        ("(CC-BY-SA-3.0 AND GFDL-1.3-or-later)", {"license": ["cc-by-sa-3.0", "gfdl"]}),
        (
            "PSF-2.0",
            {
                "license": "other",
                "license_name": "psf-2.0",
                "license_link": "https://spdx.org/licenses/PSF-2.0.html",
            },
        ),
        (
            "https://host.org/terms",
            {"license": "other", "license_name": "custom", "license_link": "https://host.org/terms"},
        ),
    ],
)
def test_one_license_is_stated_as_the_hub_names_it(license_: str, expected: dict[str, object]) -> None:
    assert require_licenses(["a"], {"a": license_}) == {"a": license_}
    assert stated(license_) == expected


def test_a_mix_is_a_list_or_refers_to_the_table() -> None:
    assert stated("MIT", "CC-BY-4.0", "MIT") == {"license": ["mit", "cc-by-4.0"]}
    assert stated("MIT", "PSF-2.0") == {"license": "other", "license_name": "mixed", "license_link": "README.md"}


@pytest.mark.parametrize(
    "license_", [None, "", "  ", "unknown", "NOASSERTION", "see website", "CC-BY-44", "ftp://a/b", "()"]
)
def test_what_cannot_be_stated_is_refused_with_the_source_and_the_key(license_: str | None) -> None:
    with pytest.raises(LicenseError, match=r"license of source 'web' is .*set `license = ") as refused:
        require_licenses(["web", "good"], {"web": license_, "good": "MIT"})
    assert "'good'" not in str(refused.value)


def test_every_source_without_a_license_is_named() -> None:
    with pytest.raises(LicenseError, match="'a' is not known; the license of source 'b' is not known"):
        require_licenses(["a", "b"], {})


def test_identifiers_lead_to_their_pages() -> None:
    assert link("PSF-2.0") == "https://spdx.org/licenses/PSF-2.0.html"
    assert link("https://host.org/terms") == "https://host.org/terms"
    assert link("MIT OR Apache-2.0") == ""
    assert set(HUB_NAMES.values()) <= HUB_LICENSES
    assert not {name.lower() for name in OTHERS} & HUB_LICENSES
