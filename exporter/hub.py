"""Files of a model hub: from the cache where they are there, else downloaded, else a clear end."""

from __future__ import annotations

import os
from pathlib import Path

from lgip_ort.errors import UsageFault

TOKENIZER_FILES = ["*.json", "*.model", "merges.txt", "vocab.txt"]

ANSWER_SECONDS = 5
"""How long the hub may take to answer before it counts as out of reach."""


def snapshot(repo: str, patterns: list[str], revision: str | None = None) -> tuple[Path, str]:
    """The folder with the files of `repo` that match `patterns`, and the commit they are from.

    `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and `HF_ENDPOINT` are honoured. Raises UsageFault where the files are
    neither in the cache nor within reach.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, etag_timeout=ANSWER_SECONDS))
    except (OSError, HfHubHTTPError, HFValidationError, RuntimeError) as error:
        raise UsageFault(_unreachable(repo, constants.HF_HUB_CACHE, error)) from error
    return folder, folder.name


def only(folder: Path, repo: str, names: list[str]) -> Path:
    """The first of `names` that exists in `folder`. Raises UsageFault where none does: the cache holds half a model."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UsageFault(_unreachable(repo, str(folder), FileNotFoundError(f"no {' or '.join(names)}")))


def _unreachable(repo: str, cache: str, error: Exception) -> str:
    reason = (str(error) or type(error).__name__).strip().splitlines()[0]
    offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
    return (
        f"{repo} is neither in the cache {cache} nor within reach{offline}: {reason}\n"
        f"What works without a network: fill the cache on a machine that has one (hf download {repo}) and "
        "set HF_HOME to it; or --weights PATH with a local checkpoint; or --weights random, which builds the true "
        "architecture with seeded weights."
    )
