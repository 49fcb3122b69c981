"""The harness: it holds any PyTorch program against its JAX port, and knows neither library of this project.

It imports one module of theirs, `jax_attn.compiler`: the faults of the compiler, and whether there is a device.

compare    the call: it reads the two, maps the weights, measures and explains; `report` is what it returns
mapping    the weights put into place, by trying where names and shapes leave it open
corpus     an iterator of batches as inputs: the worst example, and what was never met
pair       both programs with the weights in place, and the ways to measure them; `trained`: what an optimiser would do
compiled   a compiled JAX program against its own operations: `compare_compiled`
sharded    a program on many devices against one device: `compare_sharded`
dumped     a run of PyTorch that another tool has dumped: `compare_dump`
generation models that generate: full forward, steps with a cache, free-running: `compare_generation`
checkpoint two files of weights, bit for bit: `compare_weights`; `stored`: tensors in the files of others
divergence the first tensor that differs, and what explains it, for any case
measure    the records of a case, its runs in both frameworks, errors and bounds
weights    which weight of PyTorch stands where in JAX
place      where two programs part: submodules, tensors, values
cause      which known mistake explains a difference
training   whole trainings, step by step: `compare_training`, `find_update_divergence`
command    `jax-attn compare`, which calls the user's function; `record` writes the files
golden     PyTorch's side in a file, for a machine without PyTorch; `dump` writes it
plugin     the fixture `parity` for pytest
"""
