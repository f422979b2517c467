"""A cluster with Slurm, whose hosts are namespaces: a controller and compute nodes."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import harness
import recipes
from hosts import Host, hosts

# Daemons keep their files in the folder. Nodes claim more CPUs than there are. A job that is queued
# again waits until its credential has expired.
CONFIGURATION = """
ClusterName=recipes
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName={nodes} CPUs=16
PartitionName=main Nodes={nodes} Default=YES
"""


class Cluster:
    """Slurm on hosts node0, node1 ..., and its controller on the last one.

    Attributes:
        folder: of its files.
        controller: the host whose commands start jobs.
    """

    def __init__(self, count: int, folder: Path, controller: Host, environ: dict[str, str]):
        self.folder, self.controller = folder, controller
        self._count, self._environ = count, environ

    def start(
        self, *words: str | Path, path: Path | None = None, **env: str
    ) -> "subprocess.Popen[str]":
        """Starts a command on the controller, as recipes.start() does."""
        inside = self.controller.words(*map(str, words))
        return recipes.start(*inside, path=path, **self._environ, **env)

    def run(self, *words: str | Path, path: Path | None = None, **env: str) -> str:
        """Runs a command there, and returns what it has printed.

        Raises:
            AssertionError: it has failed, or has not ended in time.
        """
        return recipes.said(self.start(*words, path=path, **env))

    def job(self, *words: str | Path, **env: str) -> str:
        """Submits a batch job, waits for its end, and returns what it has printed.

        Raises:
            AssertionError: it has failed, or has not ended in time.
        """
        output = self.folder / "output"
        output.unlink(missing_ok=True)
        wait = ("sbatch", "--wait", "--output", output, "--open-mode", "append")
        (done,) = harness.finished(self.start(*wait, *words, **env), seconds=recipes.LIMIT)
        printed = output.read_text() if output.exists() else ""
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}\n{printed}"
        return printed

    def until_idle(self) -> None:
        """Cancels all jobs, and waits until no node has one."""
        self.run("scancel", "--user", "root")
        idle = ("sinfo", "-h", "-t", "idle", "-o", "%D")
        harness.until(lambda: self.run(*idle).strip() == str(self._count), what="nodes are idle")


@contextlib.contextmanager
def cluster(count: int, folder: Path) -> Iterator[Cluster]:
    """Makes a cluster.

    Args:
        count: how many nodes compute.
        folder: for files.

    Raises:
        NoHosts: the system makes no hosts.
    """
    environ = {"SLURM_CONF": str(folder / "slurm.conf")}
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(controller=f"node{count}", nodes=f"node[0-{count - 1}]", folder=folder)
    )
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(hosts(count + 1, folder))
        for host in network.hosts:
            usr = recipes.FOLDER / "slurm" / "usr"
            host.run(f"mount -t overlay overlay -o lowerdir={usr}:/usr /usr")

        def daemon(host: Host, *words: str | Path) -> None:
            log = stack.enter_context((folder / f"{host.name}-{words[0]}.log").open("w"))
            process = subprocess.Popen(
                host.words(*map(str, words)),
                env={**os.environ, **environ},
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(end, process)

        *nodes, controller = network.hosts
        files = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "seed-file")]
        files += [f"--log-file={folder}/munge.log", f"--key-file={key}"]
        daemon(controller, "munged", "--foreground", "--force", *files)
        harness.until((folder / "munge.socket").exists, what="munged serves")
        daemon(controller, "slurmctld", "-D")
        for node in nodes:
            (folder / f"spool-{node.name}").mkdir()
            daemon(node, "slurmd", "-D")
        yield Cluster(count, folder, controller, environ)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a daemon, with all that it has started."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        for pid in harness.descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.kill()
        process.wait()
