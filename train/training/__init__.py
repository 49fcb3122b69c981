"""What happens between the data and the run folder.

loop, step              the epochs; a few steps as one compiled program
optimizer               that of a configuration
report                  what a training tells its run
recorder, console       what is written down; what is shown
fine_tuning, signals    a training that begins with another run; a training that is asked to stop
learning_curve          the picture of the losses
"""
