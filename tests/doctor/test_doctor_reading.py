"""What the doctor reads of files and commands: the real thing, and anything else without an error."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.doctor import collect, probe
from spark_build.doctor.model import version

MACHINES = Path(__file__).parents[1] / "data" / "machines"


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z_0-9]{0,9}", fullmatch=True), st.text("ab \"'$()#=", max_size=12)
    )
)
def test_shell_values(values: dict[str, str]) -> None:
    text = "# a comment\n" + "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    assert probe.shell_values(text) == values


@given(st.text())
def test_nothing_raises(text: str) -> None:
    probe.shell_values(text)
    probe.meminfo(text)
    probe.pressure(text)
    probe.macros(text, "A", "B")
    probe.driver_module(text)
    probe.nvcc(text)
    probe.compiler(text)
    probe.host_limits(text)
    probe.allows_compat(text)
    collect.failure(text)
    assert collect.parse_smi(text) is None
    assert probe.addresses(text) == {}
    assert all(isinstance(number, int) for number in version(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["ifname", "addr_info", "local"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_json_for_addresses(value: object) -> None:
    probe.addresses(json.dumps(value))


@given(st.binary(max_size=70))
def test_any_bytes_for_elf(head: bytes) -> None:
    assert probe.elf_machine(head) in {"", *probe.ELF_MACHINES.values()} or head[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("said", "kind_and_version"),
    [
        ("c++ (Ubuntu 13.3.0-6ubuntu2~24.04.1) 13.3.0\nCopyright", ("gcc", "13.3.0")),
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", ("gcc", "12.2.0")),
        ("aarch64-linux-g++ (crosstool-NG 1.25.0) 12.2.0", ("gcc", "12.2.0")),
        ("c++ (GCC) 15.3.0", ("gcc", "15.3.0")),
        ("g++ (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", ("gcc", "11.4.1")),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: aarch64", ("clang", "18.1.3")),
        ("clang version 20.1.8", ("clang", "20.1.8")),
        ("nothing", ("", "")),
    ],
)
def test_compilers(said: str, kind_and_version: tuple[str, str]) -> None:
    assert probe.compiler(said) == kind_and_version


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("580.65.06", (580, 65, 6)), ("V13.0.88", (13, 0, 88)), ("6.17.0-1014-nvidia", (6, 17, 0, 1014)), ("", ()), ("of unknown version", ())],
)  # fmt: skip
def test_versions(text: str, numbers: tuple[int, ...]) -> None:
    assert version(text) == numbers


def test_nvcc_and_the_module() -> None:
    assert probe.nvcc("Cuda compilation tools, release 13.0, V13.0.88\n") == ("13.0", "13.0.88")
    old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    assert probe.driver_module(old) == "535.183.01"
    new = (MACHINES / "spark/root/proc/driver/nvidia/version").read_text()
    assert probe.driver_module(new) == "580.142"


def test_headers() -> None:
    text = "#ifndef X\n#define A_MAJOR 2\n  # define A_MINOR   28 // x\n#define A_MINORITY 9\n"
    assert probe.macros(text, "A_MAJOR", "A_MINOR") == "2.28"
    assert probe.macros(text, "A_MAJOR", "A_PATCH") == ""
    assert probe.version_of_file("/x/libnccl.so.2.28.3") == "2.28.3"
    assert probe.version_of_file("/x/libnccl.so.2") == ""


def test_compat_mode_in_json_with_comments() -> None:
    assert probe.allows_compat('{ "properties": {\n   "allow_compat_mode" : false, // no\n} }') is False
    assert probe.allows_compat('// "allow_compat_mode": false\n  "allow_compat_mode": true') is True
    assert probe.allows_compat("{}") is None


def test_the_recorded_h200() -> None:
    found = collect.parse_smi((MACHINES / "h200/nvidia-smi.xml").read_text())
    assert found is not None
    driver, newest, (card,) = found
    assert (driver, newest, card.name, card.state) == ("580.159.04", "13.0", "NVIDIA H200", "P0")
    assert (card.clock_mhz, card.max_clock_mhz, card.limit_watts, card.used_mib) == (1980, 1980, 700.0, 0)
    assert (card.processes, card.reasons) == (0, ())


def test_what_a_spark_does_not_tell_is_unknown() -> None:
    found = collect.parse_smi((MACHINES / "spark-worn/nvidia-smi.xml").read_text())
    assert found is not None
    (card,) = found[2]
    assert (card.used_mib, card.limit_watts) == (None, None)
    # Xorg draws and does not count; one process computes.
    assert (card.processes, card.reasons) == (1, ("HW thermal slowdown",))


def test_addresses_of_the_machine_itself_are_no_static_ones() -> None:
    said = (MACHINES / "spark-worn/machine.json").read_text()
    found = probe.addresses(json.loads(said)["commands"]["ip -j addr"])
    assert found["enp1s0f1np1"] == (("192.168.177.11",), ("192.168.177.11",))
    assert found["enP2p1s0f1np1"] == (("169.254.7.1",), ("169.254.7.1",))
