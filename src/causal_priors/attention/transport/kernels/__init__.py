"""Triton kernels of the exact operator: one program per problem (batch x head).

A program walks the row blocks in order (backward: in reverse) and, inside, the key tiles. Nothing is shared between
programs, so there are no atomics and the result is the same every time. The carry log C is read and written in global
memory by its program alone; `tl.debug_barrier` stands between a write and the next read by other threads.
"""
