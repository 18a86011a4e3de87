"""Find out which package indexes answer, within seconds: all are asked at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path

from spark_build.doctor.model import IndexAnswer, IndexFacts
from spark_build.errors import SparkBuildError
from spark_build.sources import http, simple_api
from spark_build.sources.http import PipConfig

PATIENCE = 2.0  # seconds for an answer
# Names are looked up without a time limit of ours.
LONGEST = PATIENCE + 1.0


def reachable(lacking: Callable[[], int]) -> IndexFacts:
    """Ask every index that pip is configured for; `lacking` is called when none answers.

    lacking: how many things a build would have to fetch.
    """
    try:
        found = simple_api.configured()
    except SparkBuildError as error:
        return IndexFacts(problem=error.message)
    config = replace(found.config, timeout=PATIENCE)
    answers: dict[str, IndexAnswer] = {}

    def ask(url: str) -> None:
        answers[url] = _ask_index(url, config)

    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in found.urls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LONGEST
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = "no answer in time"
    asked = tuple(
        answers.get(url) or IndexAnswer(where=http.host_of(url), failure=silent) for url in found.urls
    )
    links = bool(found.links)
    if all(answer.failure for answer in asked):
        return IndexFacts(asked=asked, links=links, lacking=lacking())
    return IndexFacts(asked=asked, links=links)


def _ask_index(url: str, config: PipConfig) -> IndexAnswer:
    where = http.host_of(url)
    if not http.is_remote(url):
        there = Path(http.path_of(url)).is_dir()
        return IndexAnswer(where=where, failure="" if there else "there is no such folder")
    try:
        with http.Session(config, retries=0) as session:
            answer = session.ask("HEAD", f"{url.rstrip('/')}/pip/")
    except http.NETWORK_ERRORS as error:
        return IndexAnswer(where=where, failure=http.network_reason(error))
    except SparkBuildError as error:
        return IndexAnswer(where=where, failure=error.message)
    if answer.status_code in (401, 403, 407) or answer.status_code >= 500:
        return IndexAnswer(where=where, failure=f"it answers {answer.status_code}")
    return IndexAnswer(where=where, ahead=_ahead(answer.headers.get("Date", "")))


def _ahead(date: str) -> float | None:
    """Return how far a server's clock is ahead of ours, in seconds."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
