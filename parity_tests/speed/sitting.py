"""All that is measured in one sitting, on one machine: workloads, ceilings, the start."""

from dataclasses import dataclass, field, replace

from parity_tests.speed.agreement import DisagreementError
from parity_tests.speed.limits import CEILINGS
from parity_tests.speed.machine import find_cpp_compiler, find_device
from parity_tests.speed.measure import Measured, Say, measure
from parity_tests.speed.processes import ContestantError
from parity_tests.speed.rounds import Spread
from parity_tests.speed.start import measure_start
from parity_tests.speed.workload import Ratio, Workload
from parity_tests.speed.workloads import ALL_RATIOS, RATIOS, find_workload

Rates = dict[str, dict[str, float]]
"""Of each ceiling, operations a second by framework."""


@dataclass
class Sitting:
    """What was measured so far."""

    device: str
    compiler: str | None
    say: Say
    results: list[Measured] = field(default_factory=list)
    rates: Rates = field(default_factory=dict)
    start: dict[str, Spread] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """What could not be measured, and why: a contestant that died, or two that disagree."""

    def take(self, workload: Workload) -> Measured | None:
        """Measure one workload; a failure is noted, and the others go on."""
        try:
            return measure(workload, self.device, self.compiler, self.say)
        except (ContestantError, DisagreementError) as error:
            self.failures.append(str(error))
            return None

    def take_workloads(self, names: list[str], quick: bool) -> None:
        """The workloads of these names, in fewer rounds if quick, and then with memory only where a ratio needs it."""
        for name in names:
            workload = find_workload(name)
            if quick:
                read = any(ratio.memory and ratio.workload == name for ratio in RATIOS)
                workload = replace(workload, rounds=max(3, workload.rounds // 2), has_memory=read)
            result = self.take(workload)
            if result is not None:
                self.results.append(result)

    def take_ceilings(self) -> None:
        """Those that the workloads measured are held against."""
        for name, workload in CEILINGS.items():
            if any(name in result.workload.limit for result in self.results):
                result = self.take(find_workload(workload))
                if result is not None:
                    self.rates[name] = {of: 1 / entry.spread.median for of, entry in result.entries.items()}

    def take_start(self, rounds: int) -> None:
        """The wait for the first step."""
        try:
            self.start = measure_start(self.device, rounds, self.say)
        except ContestantError as error:
            self.failures.append(str(error))

    def ratios(self) -> dict[Ratio, Spread | None]:
        """Every ratio, None where it was not measured."""
        by_name = {result.workload.name: result for result in self.results}
        ratios: dict[Ratio, Spread | None] = {}
        for ratio in ALL_RATIOS:
            result = by_name.get(ratio.workload)
            if ratio in RATIOS:
                ratios[ratio] = None if result is None else result.ratio(ratio)
            else:
                ratios[ratio] = self.start.get(ratio.name.partition("_")[0])
        return ratios


def sit_down(say: Say) -> Sitting:
    """Look at the machine."""
    say("looking at the machine")
    return Sitting(find_device(), find_cpp_compiler(), say)


def sit_through(names: list[str], quick: bool, ceilings: bool, say: Say) -> Sitting:
    """Everything that these names, `start` among them, stand for."""
    sitting = sit_down(say)
    sitting.take_workloads([name for name in names if name != "start"], quick)
    if ceilings:
        sitting.take_ceilings()
    if "start" in names:
        sitting.take_start(3 if quick else 7)
    return sitting
