"""``goccl bench``: how fast each collective is, beside other libraries, in one run.

Buffers, and how a size is counted ``bytes`` is the size of the larger buffer of a rank, as in
    nccl-tests: the whole buffer for allreduce, broadcast, reduce, alltoall, sendrecv and pingpong;
    all blocks together for allgather and gather (output), reduce_scatter and scatter (input). A
    size that does not divide into elements and blocks is rounded up, and the row tells the rounded
    size. ``-b``, ``-e``, and ``-i`` or ``-f`` give a range of sizes, as with nccl-tests. Buffers
    are touched before anything is measured, and the input is rewritten with new values before every
    iteration, outside the measured time.

Time Before an iteration and after it all ranks meet in a barrier of shared memory that has nothing
    to do with the library under test. The time of an iteration is that of its slowest rank. Median
    and 99th percentile are taken over the iterations of all blocks of one placement.

What is called ``--dtype`` and ``--op`` may name several, or all, and each has a table: every dtype
    and reduce op of goccl.h, as far as the op has a meaning for the dtype. A library that lacks one
    is skipped there, with a line that tells why. ``--root`` may be any rank. ``--place`` measures
    in place, out of place, or both: in place a rank has one buffer, and where one side is smaller
    it is the rank's own block of the other. Broadcast has one buffer, and is always in place;
    alltoall, sendrecv and pingpong are never so. torch.distributed has allreduce and reduce in
    place only. MPI's reduce_scatter in place leaves its result in another block, and is skipped.

Ping-pong ``pingpong`` is what OSU's ``osu_latency`` and IMB's ``PingPong`` print: half of a round
    trip of blocking sends and receives between ranks 0 and 1, by the clock of rank 0. Each sends
    from one buffer and receives into another. A round trip that is not measured goes before each
    measured one, for ranks leave the barrier one after the other. Other ranks do nothing.

Beside busy programs ``--beside 1:0`` measures while a program of nice level 0 keeps a CPU busy, and
    compares medians and means. They may name different winners: a library that never gives its CPU
    away may have the better median, and the worse mean.

Ways into GoCCL ``goccl`` is called through torch.distributed from Python. ``goccl-c`` (``--through
    c``) is called by a loop in C, ``goccl_bench_measure()``, with the same buffers, values, barrier
    and checks. The transport ``mapped`` is shared memory with buffers that peers map, as those of
    ``goccl.empty()``.

Schedules of alltoall ``--schedule sequential,window=2,parallel`` measures alltoall with each. ``in
    flight``, ``staging`` and ``incast`` are the most that a rank may have under way at once,
    however fast or slow the ranks are: bytes that it has sent and does not know to be taken, these
    together with the bytes sent to it as far as they go through staging memory, and how many ranks
    send to it. They are found from the plans, by their prover, and not measured.

Bandwidth
    ``algbw = bytes / median``, and ``busbw = algbw * factor`` with the factors of nccl-tests, see
    :data:`goccl._ranks.collectives.COLLECTIVES`. Both in GB/s, 1 GB = 10^9 bytes.

Errors The first and the last iteration of a block are not measured but checked, element by element,
    and so is the first call of a table; of every measured iteration the first and last element are
    checked. Inputs are small whole numbers, of which each op makes a result that is exact in each
    dtype, so that a result has to be equal to what NumPy makes of them. ``wrong`` counts what
    differed, over all ranks. ``--check 0`` compares nothing.

Placement Virtual CPUs may share a last-level cache now and not a second later, and that alone
    changes a result by a factor of two. So the libraries take turns in short blocks, and the round
    trip of a cache line between two CPUs is probed between blocks: *near* below 200 ns, *far* from
    there, *mixed* where it changed during the block, *unknown* where no probe is at hand. Only rows
    of the same placement are compared.

Devices ``--device cuda`` measures GoCCL with tensors of a device of torch, through
    torch.distributed. Rank r has device r, or starts again from the first. Values are copied there,
    and results back, outside the measured time. A call is over when the device has nothing more to
    do for it.

The whole comparison ``--suite host`` is a name for a set of options, which other options narrow:
    ``goccl bench --suite host`` measures all collectives with all libraries and ways, and writes
    ``host.json``, ``host.md`` and ``host.png``. The Markdown holds the machine, how often GoCCL was
    ahead, and a table for each collective; a cell in which GoCCL loses is bold and names the
    winner.

Output Rows are told as they are measured. ``--format`` chooses what is printed: the table, that of
    nccl-tests 2.19, or a line a row, as CSV or JSON. ``--json FILE`` holds the whole run: version,
    machine, libraries, settings, command, rows and failures. It is written anew after each size, by
    a rename, so that a run that is interrupted or killed keeps its rows, and ``ended`` is null
    until the run is over. The formats of nccl-tests, ``--format nccl`` and ``--nccl-json``, are of
    one library. Their times are medians, as in all formats; what was not measured is N/A, or null.
    Where the placement changed, they show that with the most iterations.

Comparison of runs ``goccl bench compare OLD NEW`` tells which rows are slower or faster beyond the
    noise, see :mod:`goccl._bench.compare`; ``goccl bench plot`` draws one file or several.

Many ranks A process imports what a library needs, once, and forks its ranks, so that 128 of them
    fit and begin in seconds. Below a table stand three figures of each library: *init*, the seconds
    from when all processes run, and know of each other, to when all have joined the group; the
    first call of the collective, with the first size, which makes the connections that no
    collective before has made; and the memory of a rank after it (PSS, in the mean). With ``--ranks
    2,4,8,16,32,64,128 --plot FILE`` there are curves over the number of ranks. There are 128 at
    most: sums of the whole numbers by which results are checked are up to 256 then, which bfloat16
    just holds.

Several hosts Where a launcher such as torchrun has started a ``goccl bench`` for each rank, with
    the same options, they are the ranks. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT tell. Rank 0
    writes the result. The barrier is made of TCP connections: ranks leave it within about a
    message's way of each other. Nothing is known of the placement of CPUs, and no MPI takes part.

Peers Gloo comes with torch. An MPI is looked for in a folder of its own,
    ``~/.cache/goccl/peers/PACKAGE`` (or ``$GOCCL_BENCH_PEERS/PACKAGE``), and in this environment
    where no other MPI is installed beside it. The command that fills the folder is told where an
    MPI is missing. ``mpi-abi`` is whichever MPI has ``libmpi_abi.so``, the ABI of MPI-5: in the
    folder ``mpi-abi``, or that whose ``mpiexec`` is on PATH. It needs an mpi4py that is built for
    the ABI (``MPI4PY_BUILD_MPIABI=1``); the wheels of mpi4py 4.1 are not.
"""

from __future__ import annotations

from .options import add_arguments, main

__all__ = ["add_arguments", "main"]
