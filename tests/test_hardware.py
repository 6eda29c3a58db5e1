"""The thread plan and the free memory on fake machines: affinity, second threads of a core, limits of containers.

Guards against twice as many threads as cores (slower by half), against the cores and the memory of the whole host being
counted in a container that may use a part of them, and against the file cache being taken for memory in use.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from galago import hardware
from galago.hardware import ThreadPlan, available_memory, plan_threads


class Machine:
    """Fake /sys and /proc below a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch = root, monkeypatch
        monkeypatch.setattr(hardware, "SYS", root / "sys")
        monkeypatch.setattr(hardware, "PROC", root / "proc")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.fsencode(text + "\n"))

    def cpus(self, *siblings: str) -> None:
        """One string per CPU: the CPUs of its core, as the kernel lists them."""
        for cpu, listed in enumerate(siblings):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", listed)
        self.allow(*range(len(siblings)))

    def allow(self, *cpus: int) -> None:
        self.monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(cpus), raising=False)

    def group(self, lines: str) -> None:
        self.write("proc/self/cgroup", lines)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_what_was_asked_for(machine: Machine) -> None:
    machine.cpus("0", "1")
    assert plan_threads(7) == ThreadPlan(7, "as requested")


def test_one_thread_per_core(machine: Machine) -> None:
    """A desktop with 4 cores of two threads, numbered as AMD and Intel do."""
    machine.cpus("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")
    assert plan_threads() == ThreadPlan(4, "4 physical cores of 8 usable CPUs")
    machine.cpus("0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7")  # a hybrid: two fast cores, four without a twin
    assert plan_threads() == ThreadPlan(6, "6 physical cores of 8 usable CPUs")


@pytest.mark.parametrize(
    ("allowed", "cores"), [((0, 1), 2), ((0, 4), 1), ((2,), 1), ((1, 2, 5), 2)], ids=["two cores", "twins", "one", "3"]
)
def test_affinity(allowed: tuple[int, ...], cores: int, machine: Machine) -> None:
    machine.cpus("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")
    machine.allow(*allowed)
    assert plan_threads() == ThreadPlan(cores, f"{cores} physical cores of {len(allowed)} usable CPUs")


def test_a_kernel_that_tells_nothing(machine: Machine) -> None:
    machine.allow(0, 1, 2)
    assert plan_threads().threads == 3


def test_without_affinity(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert plan_threads().threads == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert plan_threads().threads == 1


EIGHT = tuple(str(cpu) for cpu in range(8))
LIMITS = {  # cpu.max -> threads
    "200000 100000": 2,
    "350000 100000": 3,
    "50000 100000": 1,
    "max 100000": 8,
    "1600000 100000": 8,
    "": 8,
    "damaged": 8,
}


@pytest.mark.parametrize("limit", LIMITS)
def test_quota_of_a_container(limit: str, machine: Machine) -> None:
    """cgroup v2 with its own namespace: the container sees itself as the root."""
    machine.cpus(*EIGHT)
    machine.group("0::/")
    machine.write("sys/fs/cgroup/cpu.max", limit)
    assert plan_threads().threads == LIMITS[limit]


def test_a_quota_between_two_cores_is_rounded_down(machine: Machine) -> None:
    """Four threads on three and a half CPUs would be stopped at the end of every period."""
    machine.cpus("0", "1", "2", "3")
    machine.write("sys/fs/cgroup/cpu.max", "350000 100000")
    assert plan_threads() == ThreadPlan(3, "cgroup quota of 3.5 CPUs")


def test_the_reason_names_the_quota(machine: Machine) -> None:
    machine.cpus(*EIGHT)
    machine.write("sys/fs/cgroup/cpu.max", "150000 100000")
    assert plan_threads() == ThreadPlan(1, "cgroup quota of 1.5 CPUs")


def test_the_tightest_ancestor_counts(machine: Machine) -> None:
    """cgroup v2 on a host: limits of slices above the process hold too, those beside it do not."""
    machine.cpus(*EIGHT)
    machine.group("0::/user.slice/user-1000.slice/app.scope")
    machine.write("sys/fs/cgroup/user.slice/cpu.max", "600000 100000")
    machine.write("sys/fs/cgroup/user.slice/user-1000.slice/cpu.max", "300000 100000")
    machine.write("sys/fs/cgroup/user.slice/user-1000.slice/app.scope/cpu.max", "max 100000")
    machine.write("sys/fs/cgroup/system.slice/cpu.max", "100000 100000")
    assert plan_threads() == ThreadPlan(3, "cgroup quota of 3 CPUs")


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux only")
@pytest.mark.parametrize("name", ["工作", os.fsdecode(b"\xff\xfe")], ids=ascii)
def test_a_group_of_any_name(name: str, machine: Machine) -> None:
    machine.cpus(*EIGHT)
    machine.group(f"0::/{name}")
    machine.write(f"sys/fs/cgroup/{name}/cpu.max", "200000 100000")
    assert plan_threads().threads == 2


V1 = "12:cpuset:/\n4:cpu,cpuacct:{path}\n1:name=systemd:/\n0::/ignored"


@pytest.mark.parametrize("folder", ["", "/docker/abc"], ids=["seen as the root", "at its path"])
@pytest.mark.parametrize(("quota", "threads"), [("250000", 2), ("-1", 8)])
def test_quota_of_version_1(quota: str, threads: int, folder: str, machine: Machine) -> None:
    """In a container /proc names a path of the host, while the mount shows the container's own group as its root."""
    machine.cpus(*EIGHT)
    machine.group(V1.format(path="/docker/abc"))
    machine.write(f"sys/fs/cgroup/cpu{folder}/cpu.cfs_quota_us", quota)
    machine.write(f"sys/fs/cgroup/cpu{folder}/cpu.cfs_period_us", "100000")
    assert plan_threads().threads == threads


def test_the_smaller_of_cores_and_quota(machine: Machine) -> None:
    machine.cpus("0,2", "1,3", "0,2", "1,3")
    machine.write("sys/fs/cgroup/cpu.max", "300000 100000")
    assert plan_threads() == ThreadPlan(2, "2 physical cores of 4 usable CPUs")


GIB = 2**30
MEMINFO = f"MemTotal: {32 * 2**20} kB\nMemFree: {2**20} kB\nMemAvailable: {16 * 2**20} kB\nHugePages_Total: 0"


def test_memory_of_the_kernel(machine: Machine) -> None:
    assert available_memory() is None
    machine.write("proc/meminfo", MEMINFO)
    assert available_memory() == 16 * GIB


@pytest.mark.parametrize(
    ("folder", "limit", "used", "prefix"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current", ""),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ],
    ids=["version 2", "version 1"],
)
def test_memory_of_a_container(folder: str, limit: str, used: str, prefix: str, machine: Machine) -> None:
    """8 GiB, of which 7 are in use, but 5 of those are the cache of files that were read."""
    machine.write("proc/meminfo", MEMINFO)
    machine.group("4:memory:/docker/abc\n0::/")
    machine.write(f"{folder}/{limit}", str(8 * GIB))
    machine.write(f"{folder}/{used}", str(7 * GIB))
    assert available_memory() == GIB
    stat = f"anon {2 * GIB}\n{prefix}inactive_file {4 * GIB}\n{prefix}active_file {GIB}\n"
    machine.write(f"{folder}/memory.stat", stat)
    assert available_memory() == 6 * GIB
    machine.write(f"{folder}/{used}", str(14 * GIB))  # the limit was lowered below what is in use
    assert available_memory() == 0


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", ""])
def test_memory_without_a_limit(limit: str, machine: Machine) -> None:
    machine.write("proc/meminfo", MEMINFO)
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        machine.write(path, limit)
    for path in ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory/memory.usage_in_bytes"):
        machine.write(path, str(7 * GIB))
    assert available_memory() == 16 * GIB


def test_this_machine() -> None:
    assert 1 <= plan_threads().threads <= (os.cpu_count() or 1)
    assert available_memory() is None or available_memory() > 0


def test_memory_is_the_least_of_kernel_and_cgroups(machine: Machine) -> None:
    assert available_memory() is None  # no /proc: nothing is known, nothing is refused
    machine.write("proc/meminfo", "MemTotal:       8000000 kB\nMemAvailable:    4000000 kB")
    assert available_memory() == 4_000_000 * 1024
    machine.group("0::/box")
    machine.write("sys/fs/cgroup/box/memory.max", "max")
    machine.write("sys/fs/cgroup/box/memory.current", "1")
    assert available_memory() == 4_000_000 * 1024
    machine.write("sys/fs/cgroup/box/memory.max", "3000000000")
    machine.write("sys/fs/cgroup/box/memory.current", "1000000000")
    assert available_memory() == 2_000_000_000


def test_a_full_cgroup_has_no_memory_left(machine: Machine) -> None:
    machine.write("proc/meminfo", "MemAvailable:    4000000 kB")
    machine.group("4:memory:/box")
    machine.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1000")
    machine.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "2000")
    assert available_memory() == 0
