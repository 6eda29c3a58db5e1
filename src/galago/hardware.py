"""What this machine is, as far as the choice of threads and the check of memory need it.

A process may use fewer cores than the machine has: an affinity mask (taskset, cpusets) or a cgroup quota (containers)
limits it, and a second thread on the same physical core adds nothing to arithmetic. `plan_threads` takes the smallest
of these and says why.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """How many threads compute, and the reason in a few words."""

    threads: int
    reason: str


def plan_threads(requested: int | None = None) -> ThreadPlan:
    """One thread per physical core that this process may use, within its quota; or what was asked for."""
    if requested is not None:
        return ThreadPlan(requested, "as requested")
    allowed = _affinity()
    cores = _physical_cores(allowed)
    quota = _cgroup_quota()
    if quota is not None and max(1, math.floor(quota)) < cores:
        return ThreadPlan(max(1, math.floor(quota)), f"cgroup quota of {quota:g} CPUs")
    return ThreadPlan(cores, f"{cores} physical cores of {len(allowed)} usable CPUs")


def available_memory() -> int | None:
    """Bytes that this process may still allocate without swapping: what the kernel has, within the cgroup's limit.

    None where the kernel does not tell. Cached pages of files, mapped weights among them, count as available.
    """
    kernel = _numbers(PROC / "meminfo").get("MemAvailable:")
    found = [None if kernel is None else kernel * 1024]
    found += [
        _left(folder, "memory.max", "memory.current", ("active_file", "inactive_file"))
        for folder in _cgroup_folders("fs/cgroup", "")  # v2
    ]
    found += [
        _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
        for folder in _cgroup_folders("fs/cgroup/memory", "memory")  # v1
    ]
    return min((left for left in found if left is not None), default=None)


def _left(folder: Path, limit: str, used: str, cached: tuple[str, str]) -> int | None:
    """A cgroup's limit minus what it uses and cannot drop; None without a limit."""
    numbers = [_text(folder / limit), _text(folder / used)]
    if not all(number.isdecimal() for number in numbers):
        return None
    kept = _numbers(folder / "memory.stat")
    return max(int(numbers[0]) - int(numbers[1]) + sum(kept.get(name, 0) for name in cached), 0)


def _numbers(path: Path) -> dict[str, int]:
    """The lines "name number ..." of a file."""
    lines = (line.split() for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _affinity() -> frozenset[int]:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _physical_cores(cpus: frozenset[int]) -> int:
    """Distinct cores among `cpus`; all of them where the kernel does not tell."""
    siblings = set()
    for cpu in cpus:
        path = SYS / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings.add(_text(path) or str(cpu))
    return max(1, len(siblings))


def _cgroup_quota() -> float | None:
    """CPUs' worth of time this process's cgroup grants, the tightest of its ancestors; None without a limit."""
    found = [_ratio(_text(folder / "cpu.max").split()) for folder in _cgroup_folders("fs/cgroup", "")]  # v2
    found += [
        _ratio([_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")])
        for folder in _cgroup_folders("fs/cgroup/cpu", "cpu")  # v1
    ]
    return min((quota for quota in found if quota is not None), default=None)


def _cgroup_folders(mount: str, controller: str) -> list[Path]:
    """This process's cgroup in the hierarchy of `controller` ("" for v2) and all above it.

    A container may see a path that does not exist below its own mount: what is left then is the root, its own group.
    """
    lines = [line.split(":", 2) for line in _text(PROC / "self/cgroup").splitlines()]
    path = next((line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), "/")
    root = SYS / mount
    folder = root / path.lstrip("/")
    return [f for f in (folder, *folder.parents) if f == root or root in f.parents]


def _ratio(parts: list[str]) -> float | None:
    """quota / period from the two numbers of a limit; None for "max", -1 or nothing."""
    if len(parts) != 2 or not parts[0].isdecimal() or not parts[1].isdecimal():
        return None
    return int(parts[0]) / int(parts[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()  # a cgroup has any name
    except OSError:
        return ""
