"""What a program runs on.

devices, processes  the mesh of devices; several processes that train together
memory              how much there is
whole_files         files that are whole or not there, and the SHA-256 by which damage is found
"""
