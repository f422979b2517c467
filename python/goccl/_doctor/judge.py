"""What is odd in what the ranks have told and measured. Pure: data in, findings out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, TypeVar

from goccl._options import VARIABLES

from .pairs import Pair

_SLOWER = 3.0  # times the median of like pairs: an odd latency
_SLOWER_BY_US = 5.0  # and so much more than it: caches make smaller differences
_NARROWER = 0.5  # of the median of like pairs: an odd bandwidth
_LEAST_PAIRS = 3  # of a kind, to have a median that means something
_CLOCK = 0.1  # seconds
_ONE_WAY = 0.5  # of the bandwidth the other way: odd
_COPY = 0.1  # of a rank's own copies in memory: odd for shared memory
_BUSY = 0.5  # of a host's CPUs: a load that explains slow ranks
MEET, SMALL, LARGE = STEPS = ("meet", "small", "large")  # what a pair does, one after the other
_TRANSPORTS = ("mem", "shm", "verbs", "tcp")  # the best first

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True)
class Facts:
    """What a rank tells of itself.

    Attributes:
        host: the host's name.
        where: tells hosts apart, whatever their names.
        pid: of the process.
        cpus: that it may use.
        versions: by the name of the software.
        settings: that the environment or a file sets, by name; a secret is "(hidden)".
        load: how many programs ran on the host in the last minute, in the mean, before the ranks
            came.
        host_cpus: all that the host has; 0 where that is not known.
        copy_GBps: of the rank's own copies in memory, in 10^9 bytes a second; 0 where that is not
            known.
    """

    host: str
    where: str
    pid: int
    cpus: int
    versions: dict[str, str]
    settings: dict[str, str]
    load: float = 0.0
    host_cpus: int = 0
    copy_GBps: float = 0.0  # noqa: N815  the unit's own spelling

    @property
    def busy(self) -> bool:
        """Whether other programs kept so many CPUs of the host that ranks may be slow."""
        return self.load > _BUSY * (self.host_cpus or self.cpus)


@dataclass(frozen=True)
class Joint:
    """What a pair of ranks has measured.

    Attributes:
        transport: what joins them; "" where nothing does.
        reason: why it is that transport.
        latency_us: of an exchange of 4 bytes, in microseconds.
        up_GBps: from the lower rank to the higher, in 10^9 bytes a second.
        down_GBps: from the higher rank to the lower.
        clock_s: how far the clock of the higher rank is ahead, in seconds.
        failed: the step that failed, and that has no values: MEET, SMALL or LARGE; "" where none
        did.
        error: why it failed.
    """

    transport: str = ""
    reason: str = ""
    latency_us: float = 0.0
    up_GBps: float = 0.0  # noqa: N815  the unit's own spelling
    down_GBps: float = 0.0  # noqa: N815
    clock_s: float = 0.0
    failed: str = ""
    error: str = ""

    def did(self, step: str) -> bool:
        """Whether a step, and all before it, did not fail."""
        return not self.failed or STEPS.index(step) < STEPS.index(self.failed)


@dataclass(frozen=True)
class Finding:
    """Something odd.

    Attributes:
        ranks: whom it concerns.
        text: what is odd.
        check: what to look at.
    """

    ranks: list[int]
    text: str
    check: str


@dataclass
class Job:
    """All that is known of a job.

    Attributes:
        size: how many ranks it was to have.
        facts: of the ranks that came, by rank.
        pairs: that were measured, or were to be.
        lost: the ranks that came and then fell silent.
        interfaces: that listen, by rank.
        store: where the ranks meet, in words.
    """

    size: int
    facts: dict[int, Facts]
    pairs: dict[Pair, Joint] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    interfaces: dict[int, str] = field(default_factory=dict)
    store: str = "the host of rank 0"


def judge(job: Job) -> list[Finding]:
    """Finds what is odd, the gravest first.

    Args:
        job: what is known.

    Returns:
        The findings; none where all is well.
    """
    slow, narrow = list(_slow(job, _LATENCY)), list(_slow(job, _BANDWIDTH))
    return [
        *_absent(job),
        *_unreachable(job),
        *_stuck(job),
        *_different(job),
        *_transports(job),
        *slow,
        *narrow,
        *_beyond_limits(job, slow, narrow),
        *_clocks(job),
    ]


def _absent(job: Job) -> Iterable[Finding]:
    absent = [rank for rank in range(job.size) if rank not in job.facts]
    if absent:
        yield Finding(
            absent,
            f"{names(absent)} did not come",
            f"that the launcher has started them, and that they can reach {job.store}; what they "
            f"print",
        )
    for rank in job.lost:
        facts = job.facts[rank]
        yield Finding(
            [rank],
            f"rank {rank} ({facts.host}, pid {facts.pid}) came, and then answered no more",
            f"what it prints; whether it was killed (out of memory: dmesg), or is stopped; "
            f"whether its host"
            f" still reaches {job.store}, with large packets, too (ping -M do -s 1472)",
        )


def _unreachable(job: Job) -> Iterable[Finding]:
    """Pairs that do not meet. Hosts are named where all pairs between them fail, else ranks."""
    met = {
        pair: joint.did(MEET) for pair, joint in job.pairs.items() if not set(job.lost) & set(pair)
    }
    between: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in met:
        low, high = sorted(job.facts[rank].where for rank in pair)
        if low != high:
            between[low, high].append(pair)
    reached = {hosts: any(met[pair] for pair in pairs) for hosts, pairs in between.items()}
    for hosts, couples in _fewest(reached):
        pairs = sorted(pair for couple in couples for pair in between[couple])
        called = sorted(_host(job, host) for host in hosts)
        text = _alone("host", called) + f": {job.pairs[pairs[0]].error}"
        check = (
            "the text above; firewalls (each rank listens on a port that the kernel picks); the "
            "route"
            " between the hosts (ip route get); GOCCL_SOCKET_IFNAME"
        )
        yield Finding(_all_of(job, hosts, pairs), text, check)
        met = {pair: did for pair, did in met.items() if pair not in pairs}
    for ranks, pairs in _fewest(met):
        text = _alone("rank", sorted(ranks)) + f": {job.pairs[pairs[0]].error}"
        yield Finding(sorted(ranks or _members(pairs)), text, "the text above; GOCCL_SOCKET_IFNAME")


def _fewest(well: Mapping[tuple[_T, _T], bool]) -> list[tuple[tuple[_T, ...], list[tuple[_T, _T]]]]:
    """Explains which couples are not well by as few names as can be.

    Returns:
        Names, and the couples that they explain: one that is well with none, else a couple; no name
        where no couple is well.
    """
    ill = [couple for couple, is_well in well.items() if not is_well]
    if len(ill) > 1 and len(ill) == len(well):
        return [((), ill)]
    found: list[tuple[tuple[_T, ...], list[tuple[_T, _T]]]] = []
    tried = Counter(one for couple in well for one in couple)
    for one, times in Counter(one for couple in ill for one in couple).most_common():
        its = [couple for couple in ill if one in couple]
        if its and times > 1 and times == tried[one]:
            found.append(((one,), its))
            ill = [couple for couple in ill if one not in couple]
    return [*found, *((couple, [couple]) for couple in ill)]


def _alone(kind: str, called: Sequence[object]) -> str:
    if not called:
        return f"no two {kind}s can be joined"
    if len(called) == 1:
        return f"{kind} {called[0]} can be joined with no other"
    return f"{kind}s {called[0]} and {called[1]} cannot be joined"


def _members(pairs: Iterable[Pair]) -> list[int]:
    return sorted({rank for pair in pairs for rank in pair})


def _all_of(job: Job, hosts: Sequence[str], pairs: Iterable[Pair]) -> list[int]:
    return [rank for rank in _members(pairs) if not hosts or job.facts[rank].where in hosts]


def _host(job: Job, where: str) -> str:
    ranks = [rank for rank, facts in sorted(job.facts.items()) if facts.where == where]
    return f"{job.facts[ranks[0]].host} ({names(ranks)})"


def _stuck(job: Job) -> Iterable[Finding]:
    """Pairs that meet, and then fail."""
    for (a, b), joint in job.pairs.items():
        if joint.failed == SMALL:
            way = joint.transport
            text = f"ranks {a} and {b} were joined by {way}, and then failed: {joint.error}"
            yield Finding([a, b], text, "the text above")
    large = {pair: joint.did(LARGE) for pair, joint in job.pairs.items() if joint.did(SMALL)}
    for ranks, pairs in _fewest(large):
        who = names(sorted(ranks)) if ranks else "all ranks"
        verb = "exchanges" if len(ranks) == 1 else "exchange"
        text = f"{who} {verb} small messages, but no large ones: {job.pairs[pairs[0]].error}"
        apart = any(job.facts[a].where != job.facts[b].where for a, b in pairs)
        check = "the MTU of all that is on the way (ping -M do -s 1472); " if apart else ""
        yield Finding(sorted(ranks or _members(pairs)), text, f"{check}the text above")


def _different(job: Job) -> Iterable[Finding]:
    """Versions and settings that should be the same on all ranks."""
    software = dict.fromkeys(name for facts in job.facts.values() for name in facts.versions)
    for name in software:
        versions = {rank: facts.versions.get(name, "none") for rank, facts in job.facts.items()}
        yield from _disagree(versions, f"versions of {name}", "that all ranks run one installation")
    for name in (name for name, setting in VARIABLES.items() if setting.same):
        settings = {rank: facts.settings.get(name, "not set") for rank, facts in job.facts.items()}
        yield from _disagree(
            settings, name, "that the launcher hands the variable to all ranks alike"
        )


def _disagree(values: Mapping[int, str], what: str, check: str) -> Iterable[Finding]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        found[value].append(rank)
    if len(found) < 2:
        return
    usual = max(found.values(), key=len)
    odd = [rank for rank in sorted(values) if rank not in usual]
    parts = "; ".join(f"{value} on {names(ranks)}" for value, ranks in found.items())
    yield Finding(odd, f"{what} differ: {parts}", check)


def _like(job: Job, step: str) -> dict[bool, dict[Pair, Joint]]:
    """The pairs that did a step, by whether they share a host."""
    found: dict[bool, dict[Pair, Joint]] = {True: {}, False: {}}
    for (a, b), joint in job.pairs.items():
        if joint.did(step):
            found[job.facts[a].where == job.facts[b].where][a, b] = joint
    return found


def _transports(job: Job) -> Iterable[Finding]:
    for within, pairs in _like(job, MEET).items():
        counted = Counter(joint.transport for joint in pairs.values())
        if len(counted) < 2:
            continue
        usual = max(counted, key=lambda kind: (counted[kind], -_TRANSPORTS.index(kind)))
        where = "within a host" if within else "between hosts"
        for (a, b), joint in pairs.items():
            if joint.transport != usual:
                yield Finding(
                    [a, b],
                    f"ranks {a} and {b} are joined by {joint.transport}, other pairs {where} by "
                    f"{usual}:"
                    f" {joint.reason}",
                    "the reason above; `goccl info` on both hosts",
                )


class _Measure(NamedTuple):
    """A kind of measurement.

    step: that tells it.
    values: of a pair, by the ranks from which and to which.
    odd: whether a value is odd beside a median.
    check_host, check_route: what to check then, within one host and between two.
    """

    what: str
    unit: str
    step: str
    values: Callable[[Pair, Joint], dict[Pair, float]]
    odd: Callable[[float, float], bool]
    check_host: str
    check_route: str


def _latencies(pair: Pair, joint: Joint) -> dict[Pair, float]:
    return {pair: joint.latency_us}


def _bandwidths(pair: Pair, joint: Joint) -> dict[Pair, float]:
    return {pair: joint.up_GBps, (pair[1], pair[0]): joint.down_GBps}


def _is_slow(latency: float, usual: float) -> bool:
    return latency > _SLOWER * usual and latency - usual > _SLOWER_BY_US


def _is_narrow(bandwidth: float, usual: float) -> bool:
    return bandwidth < _NARROWER * usual


_LATENCY = _Measure(
    "latency",
    "us",
    SMALL,
    _latencies,
    _is_slow,
    "CPUs that other programs keep busy (top), and power saving",
    "CPUs that other programs keep busy (top), power saving, and the route between the two",
)
_BANDWIDTH = _Measure(
    "bandwidth",
    "GB/s",
    LARGE,
    _bandwidths,
    _is_narrow,
    "CPUs and memory that other programs keep busy (top), and the NUMA nodes of the two (numactl)",
    "the speed of the link (ethtool), its errors, the MTU, and other traffic on it",
)


def _slow(job: Job, measure: _Measure) -> Iterable[Finding]:
    """Pairs whose value is odd beside the median of their kind: transport, and whether they share a
    host."""
    for within, like in _like(job, measure.step).items():
        for transport in dict.fromkeys(joint.transport for joint in like.values()):
            pairs = {pair: joint for pair, joint in like.items() if joint.transport == transport}
            if len(pairs) < _LEAST_PAIRS:
                continue
            values: dict[Pair, float] = {}
            for pair, joint in pairs.items():
                values |= measure.values(pair, joint)
            usual = median(values.values())
            place = "on one host" if within else "between hosts"
            beside = f"the median of {transport} {place} is {usual:.3g} {measure.unit}"
            odd = {pair: value for pair, value in values.items() if measure.odd(value, usual)}
            check = measure.check_host if within else measure.check_route
            yield from _name(job, measure, odd, beside, check, pairs)


def _name(
    job: Job,
    measure: _Measure,
    odd: Mapping[Pair, float],
    beside: str,
    check: str,
    pairs: Mapping[Pair, Joint],
) -> Iterable[Finding]:
    """Names a rank where most of its pairs are odd, else the pairs."""
    odd_pairs = {(min(pair), max(pair)) for pair in odd}
    of_rank = Counter(rank for pair in odd_pairs for rank in pair)
    all_of_rank = Counter(rank for pair in pairs for rank in pair)
    named = set()
    for rank, count in of_rank.most_common():
        if count > 1 and 2 * count > all_of_rank[rank] and 2 * count > len(odd_pairs):
            value = median(value for pair, value in odd.items() if rank in pair)
            host = job.facts[rank].host
            text = f"rank {rank} ({host}): {measure.what} of {value:.3g} {measure.unit}"
            yield Finding([rank], f"{text} with {count} others; {beside}", check)
            named.add(rank)
    for (a, b), value in odd.items():
        if not named & {a, b}:
            one_way = measure is _BANDWIDTH
            between = f"from rank {a} to rank {b}" if one_way else f"between ranks {a} and {b}"
            text = f"{measure.what} of {value:.3g} {measure.unit} {between}; {beside}"
            yield Finding(sorted((a, b)), text, check)


@dataclass(frozen=True)
class _Limit:
    """What an idle host keeps, with much to spare, by the transport.

    Attributes:
        latency_us: of an exchange of 4 bytes.
        GBps: of messages, in 10^9 bytes a second; 0 where it is told by copies in memory.
    """

    latency_us: float
    GBps: float


# By transport, and whether the ranks share a host. Usual are 0.3 to 15 us through shared memory, 10
# to 40 us and 1 to 8 GB/s through loopback, 20 to 200 us between hosts of one data centre, and 2 to
# 10 us by RDMA, 20 to 60 us where software does it. A network of 1 Gbit/s carries 0.117 GB/s.
_LIMITS = {
    ("mem", True): _Limit(50.0, 0.0),
    ("shm", True): _Limit(50.0, 0.0),
    ("tcp", True): _Limit(150.0, 0.3),
    ("tcp", False): _Limit(1000.0, 0.1),
    ("verbs", True): _Limit(150.0, 0.3),
    ("verbs", False): _Limit(150.0, 0.3),
}


@dataclass(frozen=True)
class _Beyond:
    """A pair that is beyond a limit: text and check as of a Finding, and by how many times."""

    pair: Pair
    text: str
    check: str
    times: float


def _beyond_limits(
    job: Job, slow: Sequence[Finding], narrow: Sequence[Finding]
) -> Iterable[Finding]:
    """What is odd of a pair by itself, whatever others do. A busy host is named instead of the
    pairs that it explains; of many alike the worst is. slow, narrow: what comparisons have found,
    which is not said again."""
    found: dict[tuple[str, str, bool], list[_Beyond]] = defaultdict(list)
    explained: dict[str, list[_Beyond]] = defaultdict(list)
    for (a, b), joint in sorted(job.pairs.items()):
        within = job.facts[a].where == job.facts[b].where
        busy = [rank for rank in (a, b) if job.facts[rank].busy]
        for kind, beyond in _beyond_limit(job, (a, b), joint, within):
            known = slow if kind == "latency" else narrow
            if any({a, b} >= set(finding.ranks) for finding in known):
                continue
            if busy:
                explained[job.facts[busy[0]].where].append(beyond)
            else:
                found[kind, joint.transport, within].append(beyond)
    for alike in found.values():
        worst = max(alike, key=lambda beyond: beyond.times)
        more = f"; so it is with {len(alike)} pairs, and this is the worst" if alike[1:] else ""
        ranks = _members(beyond.pair for beyond in alike)
        yield Finding(ranks, worst.text + more, worst.check)
    for where, beyonds in explained.items():
        ranks = [rank for rank, facts in sorted(job.facts.items()) if facts.where == where]
        facts = max((job.facts[rank] for rank in ranks), key=lambda facts: facts.load)
        worst = max(beyonds, key=lambda beyond: beyond.times)
        yield Finding(
            ranks,
            f"host {_host(job, where)} was busy before the ranks came: a load of {facts.load:.1f} "
            f"with {facts.host_cpus or facts.cpus} CPUs. That may explain this: {worst.text}",
            "what else runs there (top), and measure again when the host is idle",
        )


def _beyond_limit(
    job: Job, pair: Pair, joint: Joint, within: bool
) -> Iterable[tuple[str, _Beyond]]:
    """What of a pair is beyond a limit, each with its kind."""
    limit = _LIMITS.get((joint.transport, within))
    if limit is None or _takes_turns(job, pair, within):
        return
    a, b = pair
    place = "on one host" if within else "between hosts"
    by = f"by {joint.transport} {place}"
    if joint.did(SMALL) and joint.latency_us > limit.latency_us:
        text = (
            f"latency of {joint.latency_us:.3g} us between ranks {a} and {b} {by}; at most "
            f"{limit.latency_us:.3g} us are usual on idle hosts"
        )
        check = _LATENCY.check_host if within else _LATENCY.check_route
        yield "latency", _Beyond(pair, text, check, joint.latency_us / limit.latency_us)
    if not joint.did(LARGE):
        return
    check = _BANDWIDTH.check_host if within else _BANDWIDTH.check_route
    ways = sorted([(joint.up_GBps, a, b), (joint.down_GBps, b, a)])
    (less, low, high), (most, _, _) = ways
    copy = min(job.facts[rank].copy_GBps for rank in pair)
    least = limit.GBps or _COPY * copy
    if less < least:
        why = (
            f"{least:.2g} GB/s at least are usual"
            if limit.GBps
            else f"their own copies in memory reach {copy:.3g} GB/s"
        )
        text = f"bandwidth of {less:.3g} GB/s from rank {low} to rank {high} {by}; {why}"
        yield "bandwidth", _Beyond(pair, text, check, least / less if less else float("inf"))
    elif less < _ONE_WAY * most:
        text = (
            f"bandwidth of {less:.3g} GB/s from rank {low} to rank {high}, and of {most:.3g} GB/s "
            f"the other way, {by}"
        )
        yield "one way", _Beyond(pair, text, check, most / less if less else float("inf"))


def _takes_turns(job: Job, pair: Pair, within: bool) -> bool:
    """Whether two ranks have one CPU, so that each message waits for the kernel's scheduler."""
    return within and min(job.facts[rank].cpus for rank in pair) < 2


def _clocks(job: Job) -> Iterable[Finding]:
    for rank, ahead in clocks(job).items():
        if abs(ahead) > _CLOCK:
            yield Finding(
                [rank],
                f"the clock of rank {rank} ({job.facts[rank].host}) is {abs(ahead):.3g} s"
                f" {'ahead of' if ahead > 0 else 'behind'} rank 0's: times in their logs cannot "
                f"be compared",
                "that its host keeps the time (chronyc tracking, timedatectl)",
            )


def clocks(job: Job) -> dict[int, float]:
    """How far the clock of each rank that was measured with rank 0 is ahead of rank 0's, in
    seconds."""
    measured = {
        b: joint.clock_s for (a, b), joint in job.pairs.items() if a == 0 and joint.did(SMALL)
    }
    return {0: 0.0, **measured} if 0 in job.facts else measured


def names(ranks: Sequence[int]) -> str:
    """Names ranks: "rank 3", "ranks 0 to 6", "ranks 0, 2 and 5"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
