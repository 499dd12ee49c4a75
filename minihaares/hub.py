"""Text from the Hugging Face hub: which files at which revision, and how they get here.

Revisions are pinned, so the same name always means the same bytes. What is already in the hub's cache on this
machine is used without asking anybody; what is downloaded is held to the size and checksum the hub promised.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from .tokens import DataError

HUB_SECONDS = 5  # how long to wait for the hub's first answer


@dataclass(frozen=True)
class HubDataset:
    """A data set on the hub: text files if `column` is None, else that column of parquet files, a row a record."""

    repo: str
    revision: str
    train: tuple[str, ...]
    valid: tuple[str, ...]  # none: a random twentieth of the records is held out
    record: str
    column: str | None = None


HUB = {
    "tinystories": HubDataset(
        "roneneldan/TinyStories",
        "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64",
        ("TinyStoriesV2-GPT4-train.txt",),
        ("TinyStoriesV2-GPT4-valid.txt",),
        record="story",
    ),
    "wikitext103": HubDataset(
        "Salesforce/wikitext",
        "b08601e04326c79dfdd32d625aee71d232d685c3",
        tuple(f"wikitext-103-raw-v1/train-{i:05d}-of-00002.parquet" for i in range(2)),
        ("wikitext-103-raw-v1/validation-00000-of-00001.parquet",),
        record="paragraph",
        column="text",
    ),
    "yelp": HubDataset(
        "Yelp/yelp_review_full",
        "c1f9ee939b7d05667af864ee1cb066393154bf85",
        ("yelp_review_full/train-00000-of-00001.parquet",),
        ("yelp_review_full/test-00000-of-00001.parquet",),  # there is no other; the paper selects on it as well
        record="review",
        column="text",
    ),
    "codesearchnet-python": HubDataset(
        "code-search-net/code_search_net",
        "bd0cf261e357a3eb5c8fba490d23ec1a1cd59555",
        ("python/train-00000-of-00001.parquet",),
        ("python/validation-00000-of-00001.parquet",),
        record="function",
        column="whole_func_string",
    ),
    "openwebtext": HubDataset(
        "Skylion007/openwebtext",
        "b4325f019c648b1641a1784748667e8b74e5e064",
        tuple(f"plain_text/train-{i:05d}-of-00080.parquet" for i in range(80)),
        (),
        record="file",
        column="text",
    ),
}


def fetch(name: str, dataset: HubDataset, file: str, progress: bool) -> tuple[Path, str]:
    """One file of a hub data set on this disk, and where it was: "hub cache" or "hub".

    The library's own download tries for 23 seconds when there is no network, so the hub is first asked, once, for
    the file's size and checksum. DataError says what to do if it does not answer within `HUB_SECONDS`, refuses,
    breaks off, or sends something else than it promised."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url, utils

    hub = os.environ.get("HF_ENDPOINT", constants.ENDPOINT)  # read now: the library reads it when it is imported
    wanted = dict(repo_id=dataset.repo, filename=file, repo_type="dataset", revision=dataset.revision, endpoint=hub)
    try:
        return Path(hf_hub_download(**wanted, local_files_only=True)), "hub cache"
    except errors.LocalEntryNotFoundError:
        pass
    otherwise = f"pass --data-dir with a copy of {dataset.repo}, or use --corpus stories."
    try:
        promised = get_hf_file_metadata(hf_hub_url(**wanted), timeout=HUB_SECONDS)
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise DataError(
            f"{hub} refuses {file} of {dataset.repo}@{dataset.revision[:8]} (status {status}): {otherwise}"
        ) from None
    except (errors.HTTPError, OSError) as error:
        forbidden = isinstance(error, errors.OfflineModeIsEnabled)
        reason = "HF_HUB_OFFLINE forbids asking for it" if forbidden else f"{hub} does not answer"
        raise DataError(
            f"Corpus '{name}' is not in the hub's cache on this machine, and {reason}: connect to the network, "
            f"{otherwise}"
        ) from None
    quiet = not progress and not utils.are_progress_bars_disabled()
    if quiet:
        utils.disable_progress_bars()
    try:
        path = Path(hf_hub_download(**wanted))
    except (errors.HTTPError, OSError) as error:
        raise DataError(
            f"The download of {file} from {hub} broke off ({type(error).__name__}): run the same command again."
        ) from error
    finally:
        if quiet:
            utils.enable_progress_bars()
    if promised.commit_hash != dataset.revision or not arrived(path, promised.size, promised.etag):
        path.resolve().unlink()  # the cache may hold a link to the file: remove both, or the damage stays
        path.unlink(missing_ok=True)
        raise DataError(f"{file} arrived damaged from {hub} and was thrown away: run the same command again.")
    return path, "hub"


def cached(name: str) -> bool:
    """Whether every file of a data set lies in the hub's cache on this machine, at the pinned revision."""
    from huggingface_hub import try_to_load_from_cache

    d = HUB[name]
    files = (try_to_load_from_cache(d.repo, f, revision=d.revision, repo_type="dataset") for f in d.train + d.valid)
    return all(isinstance(path, str) for path in files)


def arrived(path: Path, size: int | None, etag: str | None) -> bool:
    """Whether a file is the promised one. The hub's etag is the SHA-256 of a large file, the git hash of a small."""
    if size is not None and path.stat().st_size != size:
        return False
    with path.open("rb") as handle:
        if etag and re.fullmatch("[0-9a-f]{64}", etag):
            return hashlib.file_digest(handle, "sha256").hexdigest() == etag
        if etag and re.fullmatch("[0-9a-f]{40}", etag):
            header = b"blob %d\0" % path.stat().st_size
            return hashlib.sha1(header + handle.read()).hexdigest() == etag
    return True
