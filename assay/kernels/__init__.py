"""Tensors on the CPU -> what a loop in C makes of them, compiled for the processor at hand when it is first wanted.

Beside the matrix products a decoding step of a small model is many small operations, each of which reads and writes
memory and sets all threads to work anew (`decode packed` beside `decode kernels` in benchmarks/choices.py). Here each
of them is a pass or two, and where products can be compiled too a decoding step is one call. Without a C compiler
everything runs as before, on torch's own operations.
"""
