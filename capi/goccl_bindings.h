/*
 * goccl_bindings.h - functions for those who bind GoCCL to a language or a framework, such as
 * torch, and for tools. A program needs goccl.h only; what that says of threads, errors and handles
 * holds here.
 */
#ifndef GOCCL_BINDINGS_H
#define GOCCL_BINDINGS_H

#include "goccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- for bindings and tools: goccl_bindings.h ---------------------------------------------- */

/* For callers that check the arguments of collectives themselves: tells that they refused a
 * collective, or a batch with one, so that peers learn of it as of one that the library refused.
 * Call it instead of the collective, on the thread that would have called that, once for a whole
 * batch, and not while the thread records a batch; not for what the library has refused, and not
 * for goccl_send() and goccl_recv(). `reason` says what was wrong; it may be NULL. Never blocks. In
 * a forked child it does nothing. */
goccl_result goccl_comm_refuse(goccl_comm comm, const char *reason);

/* Takes a place in the order of `comm` for a collective that another library does, "gloo" for
 * instance: call it before that library, on the thread that calls that. `collective` is one of
 * those of GOCCL_ALGO. Where a rank waits at this place for 200 ms in a collective of its own, or
 * is refused one, all are told GOCCL_MISMATCH. What ranks wait for in other libraries is not known
 * here: the arguments are not compared, nor do ranks notice that side-step to different ones. Never
 * blocks. Between collectives here and there is no order but this: wait for one before the next
 * uses its buffers. Of `library` texts have the first 16 bytes. GOCCL_INVALID_ARGUMENT:
 * `collective` is none, or `library` empty; peers are told. */
goccl_result goccl_comm_side_step(goccl_comm comm, const char *collective, const char *library);

/* Writes what the setting `name`, such as "GOCCL_SOCKET_IFNAME", is by the environment, or else by
 * a file of settings; "": it is by neither. Other variables are those of the environment. Files are
 * read once, when a process makes its first communicator or asks for the first setting. `value`,
 * `size` and `needed` are as in goccl_info(). Thread-safe. */
goccl_result goccl_getenv(const char *name, char *value, size_t size, size_t *needed);

/* Logs `text` as the library logs. The level is not GOCCL_LOG_DEFAULT, and the subsystem one of
 * those of GOCCL_DEBUG_SUBSYS. In a forked child it does nothing. */
goccl_result goccl_log(goccl_log_level level, const char *subsystem, const char *text);

/* What a rank of an all-to-all may have under way at once, at most, however fast or slow the ranks
 * are. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_peaks) */
  uint64_t in_flight; /* bytes that it has sent, and does not know to be taken */
  uint64_t staging;   /* these and the bytes sent to it, as far as they go through staging memory */
  int incast;         /* peers that send to it */
} goccl_peaks;

/* Finds it from the plans for `ranks` ranks (1 to 64) of a host, joined by "shm" or "tcp", that
 * send `bytes` to each other. It is proved, not measured. `schedule` is as in goccl_call. */
goccl_result goccl_alltoall_peaks(int ranks, const char *transport, const char *schedule,
                                  uint64_t bytes, goccl_peaks *peaks);

/* Writes a JSON object that tells how rank 0 of a group would go about a collective ("allreduce",
 * "alltoall", ...) of float32, with `bytes` in a rank's larger buffer, with the settings of the
 * environment. The group need not exist: of `ranks` ranks, on hosts of `ranks_per_host` each, that
 * have CPUs as this one and are joined by "shm", "tcp" or "verbs" within a host. They are numbered
 * host by host, or where `by_turns` is not 0 are dealt out to the hosts one by one.
 * `ranks_per_domain` of a host, in order, run on CPUs that share a cache and a NUMA node; 0: all.
 * Nothing is run. The members:
 *   "algorithm"  as goccl_comm_algorithm() names it
 *   "direct"     whether a plan without messages is tried first, for blocks of goccl_mem_alloc()
 *   "levels"     of an algorithm in levels: "radix", "stride", "between_hosts", "within_domain",
 *                "estimated_us"
 *   "ordered"    whether ranks go host by host and domain by domain, not by their numbers
 *   "estimated_us"  what the algorithm is thought to take, if it was weighed against others
 *   "others"     algorithms that were weighed, too: "algorithm", "radices" of one in levels, and
 *                "estimated_us"
 *   "plans"      that follow one another, each of a part of the blocks
 *   "chunk"      bytes of a message that goes through staging memory, at most
 *   "peers"      with which the rank exchanges messages
 *   "messages"   that it sends
 *   "sent"       bytes in them
 * `json`, `size` and `needed` are as in goccl_info(). */
goccl_result goccl_plan_info(const char *collective, int ranks, int ranks_per_host,
                             int ranks_per_domain, int by_turns, const char *transport,
                             uint64_t bytes, char *json, size_t size, size_t *needed);

/* Asks all processes on this host that have communicators, of this user, or of all for root, what
 * they do, and over their links the ranks on other hosts; if `all` is not 0 one process connects to
 * those that none is connected with. Writes a JSON object:
 *   "groups"  of each its "name", "epoch", "members" and "verdict": "kind" ("well" or what is odd),
 *             "ranks" and "text"
 *   "silent"  the numbers of processes that are there and have not answered
 * A member has "rank", "host", "pid", "state" ("answers", "stopped", "silent", "gone" or
 * "unreachable"), and "failed", "call", "messages" and "under_way" as in goccl_status().
 * Takes 4 seconds at most, with `all` 10. Whoever is asked stops for nothing. `json`, `size` and
 * `needed` are as in goccl_info(). GOCCL_SYSTEM: the sockets of this host cannot be read. */
goccl_result goccl_ps(int all, char *json, size_t size, size_t *needed);

/* Judges what processes tell, wherever they are, and writes the object of goccl_ps().
 *   processes: a JSON array of objects of goccl_status(). Not NULL; it stays the caller's.
 * `json`, `size` and `needed` are as in goccl_info(). GOCCL_INVALID_ARGUMENT: it is no such array.
 */
goccl_result goccl_ps_judge(const char *processes, char *json, size_t size, size_t *needed);

/* Asks the processes that goccl_ps() asks to write what goccl_dump() writes, and writes a JSON
 * object:
 *   "processes"  of each its "pid", "files", which it has written, and "error": "", or why not all
 *                are written
 *   "silent"     the numbers of processes that have not answered
 *   prefix: begins the paths of the files, which must be absolute. Not NULL; it stays the caller's.
 *   pid: 0, or the one process to ask.
 * They write with their own rights. `json`, `size` and `needed` are as in goccl_info().
 * GOCCL_INVALID_ARGUMENT: the prefix cannot be one. GOCCL_SYSTEM: the sockets of this host cannot
 * be read. */
goccl_result goccl_ps_dump(const char *prefix, int pid, char *json, size_t size, size_t *needed);

/* Leaves in *now the present moment, for goccl_trace_copy(); 0: nobody traces. Thread-safe. */
goccl_result goccl_trace_now(uint64_t *now);

/* Adds the span of a copy from the memory of a device (out: 0) or to it (1) to all traces: from a
 * moment to now. Nothing happens where that is 0. Thread-safe. */
goccl_result goccl_trace_copy(int out, uint64_t begin, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* GOCCL_BINDINGS_H */
