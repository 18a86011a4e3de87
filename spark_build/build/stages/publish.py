"""Commit the wheel and its attestations to the store under the build key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_build.build import attestations, environment
from spark_build.build.context import Job, Outputs
from spark_build.text import digest, document
from spark_build.wheelhouse import store

NAME = "publish"


def inputs(job: Job) -> Any:
    """Return the key for the commit."""
    return {"key": job.key}


def intact(job: Job, _outputs: Outputs) -> bool:
    """Return whether the entry is in the store."""
    return store.read(job.home.store, job.key) is not None


def run(job: Job, earlier: Mapping[str, Outputs]) -> Outputs:
    """Commit; an identical entry of another process is as good."""
    audited, judgement = earlier["audit"], environment.judgement_inputs_of(job.step)
    described = {
        "name": audited["name"],
        "version": audited["version"],
        "origin": "built",
        "recipe": job.step.recipe.name,
        "requires": audited["requires"],
        "content_digest": audited["content_digest"],
        "judgement": digest(judgement),
    }
    job.log.flush()
    made = {
        "key.json": document({"key": job.key, "plan_key": job.step.key, "inputs": job.inputs}),
        store.JUDGEMENT: document({"key": digest(judgement), "inputs": judgement}),
        "audit.json": (job.work / "audit.json").read_bytes(),
        "build.log": Path(job.log.name).read_bytes(),
    }
    store.commit(
        job.home.store,
        key=job.key,
        wheel=job.out / audited["wheel"] if audited["wheel"] else None,
        prefix=job.prefix if earlier["build"]["prefix"] else None,
        described=described,
        papers={**made, **attestations.beside(job, earlier, made)},
    )
    return {"key": job.key}
