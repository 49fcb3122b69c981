"""Compute what more devices would give: `python -m train.scaling --help`."""

import math
from dataclasses import dataclass, replace

import tyro
from tyro.conf import OmitArgPrefixes


@dataclass(frozen=True)
class Cluster:
    """Hosts of the same kind, and how fast they send. The defaults are those of data sheets of 2023: eight GPUs in a
    host with NVLink, and a network of 400 Gbit/s for each host. Real ones are slower."""

    per_host: int = 8
    """Devices in a host."""
    inside: float = 450e9
    """Bytes a second that a device sends to the others of its host."""
    between: float = 50e9
    """Bytes a second that a host sends to the others."""
    latency: float = 10e-6
    """Seconds from one device to another until the first byte arrives."""


def all_reduce_seconds(num_bytes: float, cluster: Cluster, hosts: int) -> float:
    """Return the time to sum an array of so many bytes over all devices.

        2 (d − 1) / d · bytes / inside  +  2 (h − 1) / h · bytes / between  +  2 (⌈log₂ d⌉ + ⌈log₂ h⌉) · latency

    for h hosts of d devices. Each host adds up its devices' arrays, each device a part; the hosts add up their sums;
    each host sends the result to its devices. So every member of a group of n sends 2 (n − 1) / n of the array, the
    least that is possible, in 2 ⌈log₂ n⌉ steps.

    Source: Thakur et al., 2005, "Optimization of Collective Communication Operations in MPICH", section 4.5.
    """
    d, h = cluster.per_host, hosts
    sending = 2 * (d - 1) / d * num_bytes / cluster.inside + 2 * (h - 1) / h * num_bytes / cluster.between
    return sending + 2 * (math.ceil(math.log2(d)) + math.ceil(math.log2(h))) * cluster.latency


def estimate_step(
    compute: float, num_bytes: float, cluster: Cluster, hosts: int, fixed: float = 0.0, share: float = 1.0
) -> float:
    """Return the time of a training step whose batch is divided among all devices.

        fixed + (compute − fixed) · share + all_reduce_seconds(bytes)

    The gradients are summed when all are computed, so that the two times add up.

    Args:
        compute: the seconds of a step on one device.
        num_bytes: what is summed, see `train.communication`: the gradients.
        fixed: the part of them that fewer rows do not make shorter, as one time step follows another.
        share: the rows of a device, divided by those that `compute` was measured with: 1 where the batch grows with the
            devices (weak scaling), 1 / devices where it stays the same (strong scaling).
    """
    return fixed + (compute - fixed) * share + all_reduce_seconds(num_bytes, cluster, hosts)


def print_table(
    parameters: float,
    step_seconds: float,
    tokens: float,
    fixed_seconds: float = 0.0,
    hosts: tuple[int, ...] = (1, 8, 1000),
    cluster: OmitArgPrefixes[Cluster] = Cluster(),
) -> None:
    """Compute what more devices would give, with float32 gradients; nothing is measured. See docs/scaling.md.
    $ python -m train.scaling --parameters 5.0e6 --step-seconds 0.02 --tokens 4096

    Args:
        parameters: parameters of the model, as summary.json has them.
        step_seconds: seconds of a training step on one device, measured.
        tokens: target tokens of this step.
        fixed_seconds: seconds of a step with very few rows, measured.
        hosts: numbers of hosts.
        cluster: the hosts, and how fast they send. The defaults are of data sheets of 2023; real ones are slower.
    """
    numbers = (parameters, step_seconds, tokens, step_seconds - fixed_seconds, *hosts)
    if min(*numbers, cluster.per_host, cluster.inside, cluster.between) <= 0:
        raise SystemExit("error: all numbers must be above 0, and --fixed-seconds below --step-seconds")
    print("devices   all-reduce   batch grows: step   tokens/s   of ideal   same batch: step   tokens/s   of ideal")
    for n, kind in [(1, replace(cluster, per_host=1)), *((n, cluster) for n in hosts)]:
        count, num_bytes = n * kind.per_host, 4 * parameters
        cells = [f"{count:>7,}   {all_reduce_seconds(num_bytes, kind, n) * 1e3:>7.2f} ms"]
        for share in (1.0, 1 / count):
            seconds = estimate_step(step_seconds, num_bytes, kind, n, fixed_seconds, share)
            rate, ideal = count * share * tokens / seconds, step_seconds * share / seconds
            cells.append(f"{seconds * 1e3:>14.2f} ms {rate:>10.3g} {ideal:>10.1%}")
        print("   ".join(cells))


if __name__ == "__main__":
    tyro.cli(print_table, prog="python -m train.scaling")
