"""The saved state of a training.

run_folder  the folder of a run: made, locked, written, checked, read to translate with
checkpoint  the states from which a training goes on, by Orbax
importing   a run folder of a checkpoint that another program wrote
"""
