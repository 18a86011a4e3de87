"""The papers of published wheels, beside and inside them, through the command line."""

from __future__ import annotations

import getpass
import hashlib
import json
import socket
import zipfile
from pathlib import Path
from typing import Any

from spark_build.wheels.reader import content_digest, read_facts
from tests.conftest import Root, make_root
from tests.helpers.recipe_roots import make, statuses
from tests.helpers.validators import check_provenance, check_sbom
from tests.helpers.wheels import write_wheel

INNER_SBOM = "sboms/spark-build.cdx.json"
INNER_PROVENANCE = "spark-build.provenance.json"
REPACK = """\
name = "demo"
distribution = "demo"
summary = "a vendor's wheel"
kind = "repack"

[build]
requires = []
"""


def entry(root: Root, name: str) -> Path:
    """The store's entry of a built wheel."""
    (found,) = root.folder.glob(f"wheelhouse/store/??/*/{name}-1.0-*.whl")
    return found.parent


def wheel_of(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def inside(folder: Path, name: str) -> bytes:
    """A file of the dist-info folder of an entry's wheel."""
    with zipfile.ZipFile(wheel_of(folder)) as archive:
        (found,) = [one for one in archive.namelist() if one.endswith(f".dist-info/{name}")]
        return archive.read(found)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def dependencies(document: Any) -> dict[str, Any]:
    listed = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    return {one["name"]: one for one in listed}


def test_beside_a_wheel(built: Root) -> None:
    folder = entry(built, "tiny")
    document = check_provenance((folder / "provenance.json").read_bytes())
    wheel = wheel_of(folder)
    assert document["subject"] == [{"name": wheel.name, "digest": {"sha256": sha256(wheel)}}]
    definition = document["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["train"] == "t"
    assert definition["internalParameters"]["buildKey"] == folder.name
    assert definition["internalParameters"]["sandbox"]["kind"] in ("bubblewrap", "unshare", "none")
    assert {"tiny-1.0.tar.gz", "setuptools", "wheel"} <= dependencies(document).keys()
    assert len(dependencies(document)["setuptools"]["digest"]["sha256"]) == 64
    papers = {
        one["name"]: one["digest"]["sha256"] for one in document["predicate"]["runDetails"]["byproducts"]
    }
    assert papers == {
        name: sha256(folder / name)
        for name in ("audit.json", "build.log", "judgement.json", "key.json", "sbom.json")
    }
    sbom = check_sbom((folder / "sbom.json").read_bytes())
    assert sbom["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": sha256(wheel)}]


def test_inside_a_wheel(built: Root) -> None:
    folder = entry(built, "tiny")
    wheel = wheel_of(folder)
    document = check_provenance(inside(folder, INNER_PROVENANCE))
    # The wheel's own sha256 cannot be in it; what it installs has a digest, too.
    assert document["subject"][0]["digest"] == {"sparkBuildContent": content_digest(wheel)}
    assert read_facts(wheel).record_problems == ()
    sbom = check_sbom(inside(folder, INNER_SBOM))
    assert sbom["metadata"]["component"]["purl"] == "pkg:pypi/tiny@1.0"
    assert sbom["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"  # of the source, not of the build
    text = (inside(folder, INNER_PROVENANCE) + inside(folder, INNER_SBOM)).decode()
    for private in (socket.gethostname(), f"/{getpass.getuser()}", str(built.folder), str(built.links)):
        assert private not in text


def test_needs_are_named_with_the_digests_of_their_wheels(tmp_path: Path) -> None:
    root = make(tmp_path, {"aa": "", "bb": ""}, {"bb": "aa"})
    root.json("build", "--no-closure", "bb")
    beside = dependencies(check_provenance((entry(root, "bb") / "provenance.json").read_bytes()))["aa"]
    first = wheel_of(entry(root, "aa"))
    assert beside["digest"] == {"sha256": sha256(first), "sparkBuildContent": content_digest(first)}
    assert beside["annotations"] == {"sparkbuild_role": "need", "sparkbuild_provider": "store"}
    within = dependencies(check_provenance(inside(entry(root, "bb"), INNER_PROVENANCE)))["aa"]
    assert within["digest"] == {"sparkBuildContent": content_digest(first)}


def test_a_need_with_other_papers_and_the_same_content_rebuilds_nothing(tmp_path: Path) -> None:
    root = make(tmp_path, {"aa": "", "bb": ""}, {"bb": "aa"})
    root.json("build", "--no-closure", "bb")
    old = wheel_of(entry(root, "aa"))
    recipe = root.folder / "recipes/aa.toml"
    recipe.write_text(f'{recipe.read_text()}\n[build.env.A]\nvalue = "1"\nwhy = "another key"\n')
    again = root.json("build", "--no-closure", "bb")
    assert statuses(again) == {"aa": "built", "bb": "reused"}
    (new,) = (path for path in root.folder.glob("wheelhouse/store/??/*/aa-*.whl") if path != old)
    assert inside(new.parent, INNER_PROVENANCE) != inside(old.parent, INNER_PROVENANCE)
    assert content_digest(new) == content_digest(old)


def test_papers_travel_with_the_wheels(built: Root, tmp_path: Path) -> None:
    archive = tmp_path / "wheels.tar"
    assert built.run("wheelhouse", "export", str(archive)).returncode == 0
    other = make_root(tmp_path / "other")
    done = other.run("wheelhouse", "import", "--unsigned", str(archive))
    assert done.returncode == 0, done.stderr
    for name in ("provenance.json", "sbom.json", "audit.json"):
        assert (entry(other, "tiny") / name).read_bytes() == (entry(built, "tiny") / name).read_bytes()


def test_a_vendors_wheel_stays_as_it_is_and_has_papers_beside_it(tmp_path: Path) -> None:
    vendor = write_wheel(tmp_path / "links")
    root = make_root(tmp_path)
    (root.folder / "recipes/demo.toml").write_text(REPACK)
    pin = f'{{ kind = "wheel", project = "demo", filename = "{vendor.name}", sha256 = "{sha256(vendor)}" }}'
    train = (root.folder / "recipes/trains/t.toml").read_text()
    root.train(f'{train}\n[components.demo]\nversion = "1.0"\nsources = [{pin}]\n')
    root.json("build", "--no-closure", "demo")
    folder = entry(root, "demo")
    assert wheel_of(folder).read_bytes() == vendor.read_bytes()
    document = check_provenance((folder / "provenance.json").read_bytes())
    assert document["predicate"]["runDetails"]["builder"]["id"].endswith("#not-needed")
    assert dependencies(document)[vendor.name]["digest"] == {"sha256": sha256(vendor)}
    sbom = check_sbom((folder / "sbom.json").read_bytes())
    assert sbom["components"] == []
    assert "timestamp" not in sbom["metadata"]
    done = root.json("build", "--no-closure", "demo", "--check-reproducible")
    assert done["repetitions"][0]["identical"]


def test_the_key_is_that_of_the_papers(built: Root) -> None:
    folder = entry(built, "tiny")
    serial = check_sbom((folder / "sbom.json").read_bytes())["serialNumber"]
    assert serial != check_sbom(inside(folder, INNER_SBOM))["serialNumber"]
    assert json.loads((folder / "key.json").read_text())["key"] == folder.name
