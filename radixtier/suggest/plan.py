"""What to start on this machine, and why.

Owns the order: first what is in the way, then the servers, then a line for each choice. Invariant: a plan with a
problem has no server. Any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from radixtier.config import Problem, RadixTierConfig
from radixtier.machine import Machine
from radixtier.suggest.reasons import about_drives, about_gpus, about_model, about_sizes, about_the_rest
from radixtier.suggest.servers import Facts, Server, Wishes, make_servers
from radixtier.tools.findings import Finding

FIX = "name directories that differ, on drives with more room"
"""For what the configuration refuses here: nothing but directories was given yet."""


class Plan(NamedTuple):
    """Servers to start, and a finding for each choice and for what is in the way."""

    servers: tuple[Server, ...]
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What is in the way."""
        return tuple(finding for finding in self.findings if finding.level == "problem")


def plan(facts: Facts, wishes: Wishes) -> Plan:
    """Turn facts into servers, with a finding for each choice."""
    findings = [*about_model(facts.model), *about_gpus(facts)]
    findings += [found for directory in facts.directories for found in directory.findings]
    if not _blocked(findings):
        # What the server's own start would refuse, on the directories that exist already.
        paths = tuple(directory.path for directory in facts.directories)
        problems = RadixTierConfig(enable=True, nvme_path=paths).validate(Machine(facts.ram))
        findings += [Finding("problem", _topic(problem), problem.why, FIX) for problem in problems]
    if _blocked(findings):
        return Plan((), tuple(findings))
    servers = make_servers(facts, wishes)
    findings += [*about_sizes(facts, servers[0]), *about_drives(facts, servers), *about_the_rest(wishes, servers)]
    # The others have the same sizes, unless their drives or GPUs differ.
    for server in servers[1:]:
        findings += [each for each in about_sizes(facts, server) if each.level != "ok" and each not in findings]
    return Plan(() if _blocked(findings) else servers, tuple(findings))


def _topic(problem: Problem) -> str:
    return f"{problem.setting} {problem.value}"


def _blocked(findings: list[Finding]) -> bool:
    return any(finding.level == "problem" for finding in findings)
