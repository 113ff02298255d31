"""Image files where they lie: in folders, or in zip archives that are read without being unpacked.

A member's path is the path of its archive and its own name in it: `val2017.zip/val2017/000000000139.jpg`.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo

from lgip_ort.errors import UsageFault

MAX_MEMBER = 2**28
"""Largest member in bytes that is unpacked into memory."""


def is_file(path: Path) -> bool:
    """Whether a file or an archive's member is there. Raises UsageFault where the archive is broken."""
    if place := _in_archive(path):
        try:
            return not _info(*place).is_dir()
        except KeyError:
            return False
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for a name that is too long


def digest(path: Path) -> str:
    """The sha256 of a file's content, or of a member's once unpacked; what hinders reading it, where something does."""
    try:
        source = readable(path)
        if isinstance(source, BytesIO):
            return hashlib.sha256(source.getbuffer()).hexdigest()
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        return type(error).__name__  # it will be skipped, with the reason


def readable(path: Path) -> Path | BytesIO:
    """What a decoder can open: `path` itself, or the content of the member that it names.

    Any thread may call it, and a forked process too. Raises UsageFault where the archive is broken, and whatever
    zipfile raises, or ValueError for more than MAX_MEMBER bytes, where the member is.
    """
    place = _in_archive(path)
    if place is None:
        return path
    info = _info(*place)
    if info.file_size > MAX_MEMBER:
        raise ValueError(f"{info.file_size:,} bytes, more than {MAX_MEMBER:,}")
    return BytesIO(_archive(place[0]).read(info))


def plain_name(path: str) -> str:
    """`path` as it would be beside the archive, were it unpacked there."""
    return re.sub(r"^.*\.zip/", "", path, flags=re.IGNORECASE | re.DOTALL)


def _in_archive(path: Path) -> tuple[Path, str] | None:
    """The archive that `path` leads into and the member's name, None where it leads into none."""
    if ".zip" not in str(path).lower():  # of 100,000 paths nearly all end here
        return None
    for parent in path.parents:
        if parent.suffix.lower() == ".zip" and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return None


def _info(archive: Path, member: str) -> ZipInfo:
    return _archive(archive).getinfo(member)


def _archive(path: Path) -> ZipFile:
    """The opened archive, opened anew where the file was replaced; a fork must not share the place it reads at."""
    try:
        stat = path.stat()
        return _opened(path, stat.st_mtime_ns, stat.st_size, os.getpid())
    except Exception as error:  # a damaged directory raises what it likes, struct.error among it
        raise UsageFault(f"{path}: not a whole zip archive: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=8)
def _opened(path: Path, changed: int, size: int, process: int) -> ZipFile:
    return ZipFile(path)
