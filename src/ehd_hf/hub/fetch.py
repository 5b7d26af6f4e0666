"""What may go wrong between here and the Hub, said so that one can do something about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is that of the client in use
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_KNOWN = (HTTPError, HFValidationError, LocalEntryNotFoundError, ConnectionError)


@contextmanager
def hub_errors(
    repo_id: str, repo_type: str, revision: str | None = None, *, token: str | None = None, writes: bool = False
) -> Iterator[None]:
    """Errors of the Hub's client become OSError: expected, got, remedy.

    Args:
        repo_id, repo_type, revision: what is asked for.
        token: what the caller was given for it, if anything.
        writes: whether a commit is under way.
    """
    try:
        yield
    except (*_KNOWN, RuntimeError) as error:
        # The client wraps what goes wrong with a large file.
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, RevisionNotFoundError):
            refs = HfApi(token=token).list_repo_refs(repo_id, repo_type=repo_type)
            there = ", ".join(ref.name for ref in [*refs.branches, *refs.tags])
            said = f"{repo_id} has no revision {revision!r}; it has {there}. Pass one of them, or a commit."
        elif isinstance(cause, HfHubHTTPError):
            answer = _answer(cause, repo_id, repo_type, (token or get_token()) is not None, writes)
            said = f"The Hub {answer} (HTTP {cause.response.status_code})"
        elif isinstance(cause, HFValidationError):
            said = f"A repository is named somebody/name; got {repo_id!r}. Check the name."
        elif isinstance(cause, _KNOWN):
            said = (
                f"The Hub at {constants.ENDPOINT} could not be asked for {repo_id}: {_line(cause)}."
                f"{_again(writes)} Check the connection, HF_ENDPOINT and HF_HUB_OFFLINE."
            )
        else:
            raise
        raise OSError(said) from error


def _answer(error: HfHubHTTPError, repo_id: str, repo_type: str, has_token: bool, writes: bool) -> str:
    status, wants = error.response.status_code, f"wants a token that may {'write to' if writes else 'read'} {repo_id}"
    if status == 401 and not has_token:
        return f"{wants}; got none. Run `hf auth login`, or set HF_TOKEN."
    if status == 401:
        return f"{wants}; got one it does not accept. Run `hf auth login` again."
    if status == 403:
        return f"{wants}; got one that may not. Take another token, or a repository of your own."
    if isinstance(error, RepositoryNotFoundError):
        return f"has no {repo_type} repository {repo_id}, or a private one that this token may not see. Check both."
    return f"answered {repo_id} with: {_line(error.server_message or error)}.{_again(writes)}"


def _again(writes: bool) -> str:
    return " A commit is whole or not there, and what has arrived is not sent twice: run it again." if writes else ""


def _line(text: object) -> str:
    return " ".join(str(text).split()).rstrip(".")
