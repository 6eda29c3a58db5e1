"""What this machine is, as far as the choice of threads needs it.

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
    found = [q for q in (*_quotas_v2(), _quota_v1()) if q is not None]
    return min(found, default=None)


def _quotas_v2() -> list[float | None]:
    path = next((line[3:] for line in _text(PROC / "self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = SYS / "fs/cgroup" / path.lstrip("/")
    root = SYS / "fs/cgroup"
    chain = [folder, *folder.parents]
    return [_ratio(_text(f / "cpu.max").split()) for f in chain if f == root or root in f.parents]


def _quota_v1() -> float | None:
    folder = SYS / "fs/cgroup/cpu"
    return _ratio([_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")])


def _ratio(parts: list[str]) -> float | None:
    """quota / period from the two numbers of a limit; None for "max", -1 or nothing."""
    if len(parts) != 2 or not parts[0].isdecimal() or not parts[1].isdecimal():
        return None
    return int(parts[0]) / int(parts[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
