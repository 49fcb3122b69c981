"""The formula by hand, and the command line."""

import pytest

from train.scaling import Cluster, all_reduce_seconds, estimate_step, print_table


def test_the_formula_by_hand():
    cluster = Cluster(per_host=8, inside=100e9, between=10e9, latency=1e-5)
    seconds = 2 * 7 / 8 * 0.01 + 2 * 3 / 4 * 0.1 + 2 * (3 + 2) * 1e-5
    assert all_reduce_seconds(1e9, cluster, 4) == pytest.approx(seconds)
    assert all_reduce_seconds(1e9, Cluster(1), 1) == 0
    assert estimate_step(0.5, 1e9, cluster, 4, fixed=0.1, share=1 / 32) == pytest.approx(0.1 + 0.4 / 32 + seconds)


def test_the_table(capsys):
    print_table(5e6, 0.02, 4000, hosts=(1, 1000))
    _, one, host, thousand = capsys.readouterr().out.splitlines()
    assert one.split() == ["1", "0.00", "ms", *["20.00", "ms", "2e+05", "100.0%"] * 2]
    assert (host.split()[0], thousand.split()[0]) == ("8", "8,000")
    with pytest.raises(SystemExit, match="--fixed-seconds below --step-seconds"):
        print_table(5e6, 0.02, 4000, fixed_seconds=0.02)
