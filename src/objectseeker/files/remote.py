"""Files at addresses such as s3://bucket/image.jpg, read through fsspec if it is installed.

No address may contain a credential: addresses are written into runs, reports and messages, and these are shared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from objectseeker.errors import ObjectSeekerError, import_optional

ATTEMPTS = 3  # to read one file; object storage fails occasionally
RETRY_DELAY = 0.5  # seconds before the second attempt, twice as long before the third
READ_TIMEOUT = 20.0  # seconds that a web server may leave a request without a byte
TOTAL_TIMEOUT = 300.0  # seconds that one request to it may take in all

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+"  # two letters at least: C: is a drive
_URL = re.compile(rf"{_SCHEME}(::{_SCHEME})*://")
_AUTHORITY = re.compile(rf"({_SCHEME})://([^/?#]*)")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_PARAMETER = re.compile(r"[?&;]([^=&;]+)=")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of a parameter's name: X-Amz-Signature, accessKeyId, api_key
_SECRETS = frozenset(
    {"accesskey", "accesstoken", "apikey", "auth", "authorization", "credential", "credentials", "jwt", "key"}
    | {"passwd", "password", "pwd", "secret", "sig", "signature", "token"}
)
_WEB = ("http", "https")
_GONE = (404, 410)
_LATER = (408, 425, 429)  # errors that may pass


@dataclass(frozen=True, slots=True)
class Url:
    """Address of a file, with as much of the interface of a path as images need."""

    text: str

    def __post_init__(self) -> None:
        reject_credentials(self.text)

    def __str__(self) -> str:
        return self.text

    def __fspath__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """Name of the file itself: b.png for zip://a/b.png::s3://bucket/c.zip."""
        return self.text.split("::")[0].rstrip("/").rpartition("/")[2]


def is_url(text: str) -> bool:
    """Return whether the text is an address, not a path."""
    return _URL.match(text) is not None


def reject_credentials(url: str) -> None:
    """Reject an address that contains a password or token, without repeating it."""
    for link in url.split("::"):
        authority = _AUTHORITY.match(link)
        if authority is not None and (secret := _credential(authority[1].lower(), authority[2], link)):
            _, at, host = authority[2].rpartition("@")
            shown = host[:80] if at or ":" not in host else ""  # else a part of the password may be in it
            raise ObjectSeekerError(
                f"an address at {authority[1]}://{shown} contains {secret}, which would be written into every result. "
                "Remove it, and put it where your storage looks for it, as in ~/.netrc, ~/.aws/credentials or "
                "~/.config/fsspec."
            )


def redact_url(url: str) -> str:
    """Return an address that may be shown: without user, password, parameters and fragment.

    If a password may extend further, as one that contains a /, only the scheme remains.
    """
    scheme, _, location = url.partition("://")
    authority = re.split(r"[/?#]", location, maxsplit=1)[0]
    host, after_host = authority.rpartition("@")[2], location[len(authority) :]
    if "@" in after_host or not _HOST.fullmatch(host):
        return f"{scheme}://..."
    return f"{scheme}://{host}{re.split('[?#]', after_host)[0]}"


def _credential(scheme: str, authority: str, link: str) -> str | None:
    """Describe the secret in an address. The part before @ may be no user, as in abfs://container@host."""
    user, at, _ = authority.rpartition("@")
    slash_in_password = ":" in authority and not authority.rpartition(":")[2].isdigit() and "@" in link
    if ":" in user or (not at and slash_in_password) or (at and scheme in _WEB):
        return "a user's name or password"
    for name in _PARAMETER.findall(link) if scheme in _WEB else ():
        if not _SECRETS.isdisjoint(word.lower() for word in _WORD.findall(name)):
            return f"a credential as {name[:40]}"
    return None


def read_url(url: str) -> bytes:
    """Return the content of the file; retry failures that may pass."""
    for attempt in range(ATTEMPTS):
        try:
            with _fsspec(url).open(url, "rb", **_options(url)) as file:
                return bytes(file.read())
        except ObjectSeekerError:
            raise
        except Exception as error:  # every kind of storage has its own exceptions
            reason = _reason(error)
            status = _status(reason)
            if _is_gone(reason):
                raise ObjectSeekerError("there is no such file") from None
            is_permanent = status is not None and status < 500 and status not in _LATER
            if attempt == ATTEMPTS - 1 or is_permanent:
                raise ObjectSeekerError(_sentence(reason)) from None
            time.sleep(RETRY_DELAY * 2**attempt)
    raise AssertionError("unreachable")


@contextmanager
def _storage(url: str, action: str) -> Iterator[Any]:
    """Yield fsspec; any failure inside the block becomes a one-line error."""
    try:
        yield _fsspec(url)
    except ObjectSeekerError:
        raise
    except Exception as error:  # every kind of storage has its own exceptions
        reason = _reason(error)
        problem = "there is no file or folder" if _is_gone(reason) else f"cannot {action}"
        raise ObjectSeekerError(f"{problem} {url}: {_sentence(reason)}. Check the address.") from None


@contextmanager
def open_url(url: str) -> Iterator[BinaryIO]:
    """Open the file, to read it piece by piece."""
    with _storage(url, "read") as fsspec, fsspec.open(url, "rb", **_options(url)) as file:
        yield file


def is_folder(url: str) -> bool:
    """Return whether there are files below the address; raise an error if there is nothing."""
    with _storage(url, "open") as fsspec:
        system, path = fsspec.core.url_to_fs(url, **_options(url))
        return bool(system.info(path)["type"] == "directory")


def walk_url(url: str) -> Iterator[tuple[str, str, int]]:
    """Yield every file below a folder, sorted by path: path below the folder, address and size in bytes.

    One folder's names are in memory at a time.
    """
    with _storage(url, "list") as fsspec:
        system, root = fsspec.core.url_to_fs(url, **_options(url))
        for path, size in _walk(system, root):
            yield path[len(root) :].lstrip("/"), _address(system, path, root, url), size


def _walk(system: Any, folder: str) -> Iterator[tuple[str, int]]:
    for entry in sorted(system.ls(folder, detail=True, refresh=True), key=lambda entry: entry["name"].rstrip("/")):
        path = entry["name"].rstrip("/")
        if entry["type"] == "directory":
            yield from _walk(system, path)
        elif path != folder.rstrip("/"):  # object storage may list the folder itself as an empty object
            yield path, int(entry["size"] or 0)


def _address(system: Any, path: str, root: str, url: str) -> str:
    """Return the address of a file below `url`, with its host and the links of a chain."""
    first, *links = url.split("::")
    if links:
        return "::".join([f"{first.partition(':')[0]}://{path.lstrip('/')}", *links])
    address, authority = str(system.unstrip_protocol(path)), _AUTHORITY.match(url)
    if authority is None or authority[2] in address:
        return address
    return f"{url.rstrip('/')}/{path[len(root) :].lstrip('/')}"


def _fsspec(url: str) -> Any:
    reject_credentials(url)
    return import_optional("fsspec", f"reading {url} needs fsspec: pip install 'objectseeker[cloud]'")


def _options(url: str) -> dict[str, Any]:
    """Return timeouts for web servers, and that ~/.netrc is read; the user's own settings take precedence."""
    web = {link.partition("://")[0] for link in url.split("::")} & {*_WEB}
    if not web:
        return {}
    aiohttp = import_optional("aiohttp", f"reading {url} needs aiohttp: pip install aiohttp")
    from fsspec.config import conf

    timeout = aiohttp.ClientTimeout(total=TOTAL_TIMEOUT, sock_connect=READ_TIMEOUT, sock_read=READ_TIMEOUT)
    ours = {"timeout": timeout, "trust_env": True}
    return {scheme: {"client_kwargs": ours | conf.get(scheme, {}).get("client_kwargs", {})} for scheme in web}


def _reason(error: BaseException) -> BaseException:
    """Return why it failed: fsspec reports every failure of a web server as a missing file."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and (isinstance(cause, OSError | TimeoutError) or _status(cause)):
        return _reason(cause)  # type: ignore[arg-type]  # it is one
    return error


def _is_gone(reason: BaseException) -> bool:
    return isinstance(reason, FileNotFoundError) or _status(reason) in _GONE


def _status(error: BaseException | None) -> int | None:
    """Return the error status of a web server, if it sent one."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) and status >= 400 else None


def _sentence(error: BaseException) -> str:
    if (status := _status(error)) is not None:
        return " ".join(f"the server answers {status} {getattr(error, 'message', '')}".split())
    if isinstance(error, TimeoutError):
        return f"no answer within {READ_TIMEOUT:g} seconds"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
