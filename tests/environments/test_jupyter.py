"""`env create --jupyter`, with the real ipykernel and Jupyter's own tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_build.environments import interpreters
from spark_build.environments.create import install
from spark_build.errors import StoreError
from spark_build.wheelhouse.generations import Generation
from tests.environments.test_create import run_in
from tests.helpers.commands import hint_text, invoke
from tests.helpers.wheelhouse import demo_house, home_in, make_wheel, publish, put_built, put_public

TALK = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="my-env", startup_timeout=60)
reply = client.execute_interactive("import demo; print(demo.VERSION)", timeout=60, output_hook=lambda message:
    print(message["content"].get("text", ""), end=""))
client.stop_channels(); manager.shutdown_kernel(now=True)
"""


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    """A wheelhouse with demo and the public ipykernel, as an import of its wheels leaves it."""
    root = tmp_path_factory.mktemp("kernels")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary=:all:",
        "--dest",
        str(root / "dist"),
    ]
    subprocess.run([*command, "ipykernel"], check=True, timeout=300)
    home = home_in(root)
    public = [put_public(home.store, path) for path in sorted((root / "dist").glob("*.whl"))]
    return publish(home, [put_built(home.store, make_wheel(root / "own")), *public])


@pytest.mark.network
def test_jupyter_finds_the_kernel_and_runs_code_in_it(
    generation: Generation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    folder = tmp_path / "My env"
    install(generation, folder, ["demo", "ipykernel"], with_pip=False)
    name, place = interpreters.register_kernel(folder)
    assert (name, place) == ("my-env", tmp_path / "jupyter" / "kernels" / "my-env")
    listed = run_in(
        folder,
        "from jupyter_client.kernelspecapp import KernelSpecApp as A; A.launch_instance(['list', '--json'])",
    )
    spec = json.loads(listed)["kernelspecs"]["my-env"]["spec"]
    assert (spec["display_name"], spec["argv"][0]) == ("Python (My env)", str(folder / "bin" / "python"))
    assert run_in(folder, TALK) == "1.0"
    assert interpreters.register_kernel(folder) == (name, place), "once more is the same kernel"
    other = tmp_path / "elsewhere" / "My env"
    install(generation, other, ["ipykernel"], with_pip=False)
    assert interpreters.register_kernel(other)[0].startswith("my-env-"), (
        "the first environment keeps its kernel"
    )
    assert json.loads((place / "kernel.json").read_text())["argv"][0] == str(folder / "bin" / "python")


def test_without_ipykernel_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    _, house = demo_house(tmp_path)
    with pytest.raises(StoreError, match="needs ipykernel in the wheelhouse") as caught:
        interpreters.refuse_without(house)
    assert "pip download" in hint_text(caught.value.hint)
    house.folder.parent.parent.rename(
        house.folder.parent.parent.with_name(house.folder.parent.parent.name.replace("1.0", "2.13"))
    )
    command = [sys.executable, "-m", "spark_build", "--root", str(tmp_path), "env", "create", "--jupyter"]
    done = invoke([*command, str(tmp_path / "env")])
    assert (done.returncode, (tmp_path / "env").exists()) == (10, False)
    assert "wheelhouse import" in done.stderr
