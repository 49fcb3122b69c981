"""Whole trainings in both frameworks, compared at every step.

comparison, report      `compare_training`, and what it returns
sides, errors           each side run step by step and recorded; how far apart the two may be
updates                 `find_update_divergence`: optimisers alone
causes, trials          known mistakes as causes, and the steps that are taken again with one of them
settings                the table of mistakes in optimisers
loss_causes, update_causes, average_causes   the mistakes in what a step computes first, in its update, in an average
"""
