"""Ports of PyTorch models to Flax Linen, Flax NNX, Equinox and plain functions, right and with mistakes planted.

`python -m parity_tests.zoo` compares them all and prints how many mistakes are caught, located and explained. Most are
modelled on what people reported in public; the issue is named beside the mistake.
"""
