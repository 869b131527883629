"""Make a link that opens a trace of an object store in Perfetto, for any browser."""

from __future__ import annotations

import http.client
import urllib.request
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tracekit.storage import signed_url, without_secrets
from tracekit.structs import Struct

if TYPE_CHECKING:
    from tracekit.view.open.ui import PerfettoUI

_TIMEOUT_S: Final = 30
_RULE: Final = (
    '[{"AllowedOrigins": ["%s"], "AllowedMethods": ["GET", "HEAD"], "AllowedHeaders": ["*"], "MaxAgeSeconds": 3600}]'
)
_REMEDIES: Final = {
    "s3": "aws s3api put-bucket-cors --bucket {bucket} --cors-configuration '{{\"CORSRules\": {rule}}}'",
    "gs": "gcloud storage buckets update gs://{bucket} --cors-file=FILE, with a FILE of "
    '[{{"origin": ["{origin}"], "method": ["GET", "HEAD"], "maxAgeSeconds": 3600}}]',
}


class TraceLink(Struct, frozen=True):
    """A link into a Perfetto UI."""

    address: str  # the link. Anyone who has it can read the trace
    problem: str | None  # the reason why the UI cannot fetch the trace, and the remedy; None if it can


def trace_link(url: str, ui: PerfettoUI, life_s: int) -> TraceLink:
    """Return the link that opens a trace (a URL that fsspec can sign), after a check that the storage lets the UI fetch it.

    It works for ``life_s`` seconds if the storage can limit that. Raises StorageError if the trace does not exist, or the storage
    has no address for a browser.
    """
    address = signed_url(url, life_s)
    return TraceLink(ui.link(address), _problem(url, address, ui.origin))


def _problem(url: str, address: str, origin: str) -> str | None:
    """Fetch the first byte as the UI would, and explain a refusal."""
    shown = without_secrets(url)
    try:
        request = urllib.request.Request(address, headers={"Origin": origin, "Range": "bytes=0-0"})  # noqa: S310 - signed_url
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            allowed = answer.headers.get("Access-Control-Allow-Origin")
    except (OSError, http.client.HTTPException, ValueError) as error:  # the last two: of a malformed answer or URL
        return f"{shown}: cannot be fetched from here: {error}"
    if allowed in ("*", origin):
        return None
    scheme, bucket = urlsplit(url)[:2]
    remedy = _REMEDIES.get(scheme, "add the header Access-Control-Allow-Origin: {origin} to the answers of {bucket}")
    remedy = remedy.format(bucket=bucket, origin=origin, rule=_RULE % origin)
    return f"{shown}: the storage does not let {origin} fetch it. Allow it: {remedy}"
