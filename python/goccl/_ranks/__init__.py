"""The ranks of a library on this host, as processes of their own: started, asked to measure, and
ended.

``goccl bench`` and ``goccl tune`` measure with them. The ranks of GoCCL's C ABI need nothing
else; what other libraries need is in :mod:`goccl._bench`.
"""
