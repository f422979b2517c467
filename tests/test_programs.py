"""`goccl.plan`: programs, their files, and `goccl plan`."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import goccl
import pytest
from goccl import _capi, plan


def two_shot(n):
    p = plan.Program("two_shot", plan.AllReduce(), ranks=n, chunks=n, scratch=n)
    for me in p.ranks:
        for other in me.others:
            p.copy(other.scratch[me], me.input[other])
    for me in p.ranks:
        mine = [me.input[me] if r is me else me.scratch[r] for r in p.ranks]
        p.reduce([me.output[me]] + [r.output[me] for r in me.others], mine)
    return p


def ring(n):
    """Written by offsets, so that each n moves in succession are one of each rank."""
    p = plan.Program("ring", plan.AllGather(), ranks=n, chunks=2)
    for me in p.ranks:
        p.copy(me.output[2 * me.number : 2 * me.number + 2], me.input[:])
    for step in range(n - 1):
        for me in p.ranks:
            block = 2 * ((me.number - step) % n)
            chunks = slice(block, block + 2)
            p.copy(me.others[0].output[chunks], me.output[chunks])
    return p


def direct(collective, n):
    """Each output straight from the inputs that it is made of."""
    p = plan.Program("direct", collective, ranks=n)
    root = p.ranks[collective.root]
    for me in p.ranks:
        match collective:
            case plan.Reduce() if me is root:
                p.reduce(me.output[0], [r.input[0] for r in p.ranks])
            case plan.ReduceScatter():
                p.reduce(me.output[0], [r.input[me] for r in p.ranks])
            case plan.Broadcast() if me is not root:
                p.copy(me.output[0], root.input[0])
            case plan.Scatter():
                p.copy(me.output[0], root.input[me])
            case plan.Gather():
                p.copy(root.output[me], me.input[0])
            case plan.AllToAll():
                for other in p.ranks:
                    p.copy(other.output[me], me.input[other])
    return p


def statements(p):
    return [(m.to, m.source) for m in p.moves]


@pytest.mark.parametrize(
    "make",
    [
        lambda: two_shot(4),
        lambda: ring(5),
        *[
            lambda c=c: direct(c, 3)
            for c in (
                plan.Reduce(2), plan.ReduceScatter(), plan.Broadcast(1), plan.Scatter(1),
                plan.Gather(2), plan.AllToAll(),
            )
        ],
    ],
)  # fmt: skip
def test_programs_are_proved_and_read_again(make, tmp_path):
    p = make()
    facts = p.verify(1000)
    assert facts.order == "canonical"
    assert facts.same_bits
    assert (facts.ranks, facts.collective) == (len(p.ranks), p.collective.name)
    p.save(tmp_path / "p.json")
    again = plan.load(tmp_path / "p.json")
    assert statements(again) == statements(p)
    assert (again.collective, again.inputs, again.outputs, again.scratch) == (
        p.collective, p.inputs, p.outputs, p.scratch
    )  # fmt: skip
    assert again.verify(1000) == facts
    assert again.text() == p.text()


def test_custom_says_itself_what_it_does(tmp_path):
    p = plan.Program(
        "halo", plan.Custom(2, 2), ranks=3, order="plan", bytes=(8, 1 << 30), per_host=1
    )
    for me in p.ranks:
        p.copy(me.others[0].output[0], me.input[1])
        p.copy(me.others[-1].output[1], me.input[0])
    assert p.verify().messages >= 2
    p.save(tmp_path / "p.json")
    again = plan.load(tmp_path / "p.json")
    assert (again.order, again.bytes, again.per_host) == (p.order, p.bytes, p.per_host)
    assert again.text() == p.text()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from goccl import _capi, plan
p = plan.load(sys.argv[1])
print(p.verify().messages, p.simulate()["last_us"] > 0, p.export("mscclpp")[0], p.draw()[:4])
print(plan.builtin(plan.AllReduce(), 4).name)
"""


def test_only_runs_need_torch(tmp_path):
    two_shot(4).save(tmp_path / "p.json")
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, tmp_path / "p.json"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[0].endswith(" True { <svg")


def test_handles_of_programs_are_freed():
    p = two_shot(4)
    p.text()
    handle = p._checked().handle
    p.name = "another"
    p.text()
    with pytest.raises(goccl.Error, match="handle"):
        _capi.text("goccl_program_text", handle)


def test_symmetric_programs_have_short_files():
    assert len(ring(100).text()) < 40_000


def test_errors_name_the_statement():
    p = plan.Program("x", plan.AllReduce(), ranks=2, scratch=1)
    p.copy(p.ranks[0].output[0], p.ranks[1].scratch[0])
    line = p.moves[0].line
    assert line.startswith("test_programs.py:")
    with pytest.raises(
        ValueError, match=line + r": reads scratch chunk 0 of rank 1, which nothing"
    ):
        p.verify()


def test_what_cannot_be_named_is_refused_at_once():
    p = plan.Program("x", plan.AllReduce(), ranks=2, chunks=3)
    me = p.ranks[0]
    for index in (3, -1, slice(2, 4), slice(1, 1)):
        with pytest.raises(IndexError, match="there are 3 chunks"):
            me.input[index]
    with pytest.raises(ValueError, match="step of a slice of chunks is 2"):
        me.input[0:2:2]
    with pytest.raises(ValueError, match="ranks is 0"):
        plan.Program("x", plan.AllReduce(), ranks=0)
    with pytest.raises(ValueError, match="order is 'mine'"):
        plan.Program("x", plan.AllReduce(), ranks=1, order="mine")


def test_a_program_takes_as_long_as_the_algorithm_that_it_is(tmp_path):
    """Between hosts two_shot as a program is the built-in algorithm of this name."""
    file = tmp_path / "two_shot.json"
    two_shot(4).save(file)
    job = ("--bytes", "1M", "--per-host", "1", "--net", "star:10g", "--json")
    mine = json.loads(goccl_plan("simulate", str(file), *job).stdout)
    assert mine["algorithm"] == "plan:two_shot"
    built_in = subprocess.run(
        [sys.executable, "-m", "goccl", "simulate", "allreduce", "--ranks", "4", *job],
        env={"PATH": "/usr/bin:/bin", "GOCCL_ALGO": "allreduce:two_shot"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    theirs = json.loads(built_in.stdout)
    assert 0.8 < mine["last_us"] / theirs["last_us"] < 1.25
    assert mine["messages"][0]["bytes"] == theirs["messages"][0]["bytes"]
    # Exported, it does the same in the same order.
    exported = plan.builtin(plan.AllReduce(), 4, 1 << 20, algorithm="two_shot")
    assert exported.simulate(1 << 20, 1, "star:10g")["last_us"] == theirs["last_us"]


def test_a_simulation_writes_files(tmp_path):
    """A trace and GOAL from Python and from the command; a network of a file."""
    net = tmp_path / "net.json"
    links = [{"between": [host, "s"], "speed": "10g"} for host in "abcd"]
    network = {"format": "goccl.net/1", "hosts": list("abcd"), "switches": ["s"], "links": links}
    net.write_text(json.dumps(network))
    trace, goal, file = (tmp_path / name for name in ("trace.json", "run.goal", "p.json"))
    mine = two_shot(4).simulate(1 << 20, 1, str(net), trace=trace, goal=goal)
    assert mine["traced_ranks"] == 4
    texts = [trace.read_text(), goal.read_text()]
    assert len(json.loads(texts[0])["traceEvents"]) > 4
    two_shot(4).save(file)
    job = ("--bytes", "1M", "--per-host", "1", "--net", net, "--trace", trace, "--goal", goal)
    done = goccl_plan("simulate", file, *job)
    assert done.returncode == 0, done.stderr
    assert [trace.read_text(), goal.read_text()] == texts
    net.unlink()
    done = goccl_plan("simulate", file, *job)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{net}: No such file" in done.stderr


def test_a_custom_program_is_simulated():
    p = plan.Program("swap", plan.Custom(1, 1), ranks=2)
    p.copy(p.ranks[1].output[0], p.ranks[0].input[0])
    p.copy(p.ranks[0].output[0], p.ranks[1].input[0])
    found = [p.simulate(1 << size, per_host=1, net="star:10g") for size in (20, 23)]
    assert [f["messages"][0]["bytes"] for f in found] == [2 << 20, 2 << 23]
    assert 6 < found[1]["last_us"] / found[0]["last_us"] < 8


def goccl_plan(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "goccl", "plan", *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_command_verifies(tmp_path):
    two_shot(3).save(tmp_path / "p.json")
    done = goccl_plan("verify", tmp_path / "p.json", "--bytes", "1K", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == 1024
    done = goccl_plan("verify", tmp_path / "p.json")
    assert "two_shot: allreduce among 3 ranks is right" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["verify", "p.json", "--to", "mscclpp"], "verify has no --to"),
        (["draw", "p.json", "--json"], "draw has no --json"),
        (["simulate", "p.json", "--per-host", "0"], "--per-host is 0"),
        (["export", "allreduce"], "export needs --ranks"),
    ],
)
def test_an_option_without_effect_is_refused(arguments, error):
    done = goccl_plan(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert error in done.stderr


def test_a_write_that_fails_names_its_file(tmp_path):
    two_shot(2).save(tmp_path / "p.json")
    done = goccl_plan("convert", tmp_path / "p.json", "-o", "/dev/full")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "goccl plan: /dev/full: No space left on device\n"


def test_arguments_of_the_wrong_kind_are_named():
    p = plan.Program("p", plan.AllGather(), ranks=2)
    a, b = p.ranks
    for error, call in (
        ("src is list", lambda: p.copy(a.output[0], [b.input[0]])),
        ("dst is int", lambda: p.copy(0, a.input[0])),
        ("src is Memory", lambda: p.copy(a.output, a.input)),
        ("dst has Memory", lambda: p.copy([a.output], a.input[0])),  # type: ignore[list-item]
        ("srcs is Chunks", lambda: p.reduce(a.output[0], b.input[0])),
        ("collective is <class", lambda: plan.Program("p", plan.AllReduce, ranks=2)),
    ):
        with pytest.raises(TypeError, match=error):
            call()
    for argument in ("scratch", "per_host"):
        with pytest.raises(ValueError, match=f"{argument} is -1; it must be 0 or more"):
            plan.Program("p", plan.AllReduce(), ranks=2, **{argument: -1})
    for bad in (-1, 1 << 64, 1.5, "4K"):
        with pytest.raises(ValueError, match=r"bytes is .* it must be a number in 0\.\."):
            two_shot(2).verify(bad)
    with pytest.raises(ValueError, match="root is -1; it must be 0 or more"):
        plan.Program("p", plan.Reduce(-1), ranks=2)
    assert not p.moves


PLANS = Path(__file__).parent.parent / "core" / "program"


@pytest.mark.parametrize(
    ("file", "name", "source"),
    [
        ("mscclpp/testdata/plans/allreduce_8.json", "allreduce_8", "MSCCL++ JSON"),
        ("mscclpp/testdata/made/old_rs.json", "put_rs", "MSCCL++ JSON of 0.5 to 0.7"),
        ("msccl/testdata/steps.xml", "steps", "MSCCL XML"),
    ],
)
def test_plans_of_other_libraries_are_converted(file, name, source, tmp_path):
    p = plan.load(PLANS / file)
    facts = p.verify(1000)
    assert (facts.name, facts.collective, p.order) == (name, "allreduce", "canonical")
    out = tmp_path / "p.json"
    done = goccl_plan("convert", PLANS / file, "-o", out)
    assert done.stdout.startswith(f"{name}: allreduce among {facts.ranks} ranks in ")
    assert done.stdout.endswith(f" moves, from {source}, written to {out}\n")
    assert done.returncode == 0
    assert out.read_text(encoding="utf-8") == p.text()
    assert plan.load(out).verify(1000) == facts


def test_a_plan_may_keep_its_order_of_sums(tmp_path):
    file = PLANS / "msccl/testdata/ar_tree_12_LL.xml"
    assert plan.load(file).verify(1000).order == "plan"
    assert (plan.load(file).order, plan.load(file, order="plan").order) == ("canonical", "plan")
    with pytest.raises(ValueError, match="order is 'other'"):
        plan.load(file, order="other")
    done = goccl_plan("convert", file, "--order", "plan", "--json")
    assert json.loads(done.stdout)["order"] == "plan"  # the program, as there is no -o
    assert json.loads(done.stderr)["source"] == "MSCCL XML"


def test_a_plan_that_is_wrong_is_refused_by_rank_block_and_op(tmp_path):
    file = PLANS / "mscclpp/testdata/plans/reduce_tbg.json"
    done = goccl_plan("convert", file, "-o", tmp_path / "p.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "rank 0, block 1, op 6 (rres): reads scratch chunk 0 of rank 1, which" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "p.json").exists()
    done = goccl_plan(
        "convert", PLANS / "msccl/testdata/steps.xml", "-o", tmp_path / "no" / "p.json"
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No such file" in done.stderr


@pytest.mark.parametrize(
    ("text", "error"),
    [("{", "the text ends too early"), ("\xff", "not JSON"), (None, "No such file")],
)
def test_the_command_refuses_in_one_line(text, error, tmp_path):
    file = tmp_path / "p.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    done = goccl_plan("verify", file)
    assert done.returncode == 1
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (plan.AllReduce(), "two_shot"), (plan.AllReduce(), "hierarchical(2,3)"),
        (plan.AllGather(), ""), (plan.ReduceScatter(), ""), (plan.Broadcast(2), "flat"),
        (plan.Reduce(1), "binomial_tree"), (plan.Gather(5), ""), (plan.Scatter(3), ""),
        (plan.AllToAll(), ""),
    ],
)  # fmt: skip
def test_what_goccl_does_by_itself_is_a_program(collective, algorithm):
    p = plan.builtin(collective, 6, 1 << 16, algorithm=algorithm)
    assert p.collective == collective
    assert p.name == algorithm.split("(")[0] or not algorithm
    facts = p.verify(1 << 16)
    assert facts.order == "canonical"
    assert p.export("goccl") == p.text()


def test_what_is_built_in_depends_on_hosts():
    p = plan.builtin(plan.AllReduce(), 16, 1 << 20, per_host=4)
    assert (p.name, p.per_host) == ("hierarchical", 4)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": 3, "algorithm": "direct"}, 'algorithm is "direct"'),
        ({"ranks": 3, "algorithm": "ring"}, "ring"),
        ({"ranks": 3, "transport": "ip"}, 'transport is "ip"'),
        ({"ranks": 3, "bytes": -1}, "bytes"),
    ],
)
def test_builtin_refuses(arguments, error):
    with pytest.raises(ValueError, match=error):
        plan.builtin(plan.AllReduce(), **arguments)


def test_plans_of_mscclpp():
    made = json.loads(two_shot(4).export("mscclpp"))
    assert (made["collective"], made["inplace"], len(made["gpus"])) == ("allreduce", False, 4)
    with pytest.raises(ValueError, match="it has no collective broadcast"):
        direct(plan.Broadcast(1), 3).export("mscclpp")
    with pytest.raises(ValueError, match='format is "xml"'):
        two_shot(2).export("xml")


SVG = "{http://www.w3.org/2000/svg}"


def messages(p):
    """What goes between ranks, by source and destination, as moves say it."""
    pairs = []
    for move in p.moves:
        sources, ranks = [c.rank for c in move.source], [c.rank for c in move.to]
        if len(sources) == 1:
            pairs += [(sources[0], r) for r in ranks if r != sources[0]]
        else:
            pairs += [(r, ranks[0]) for r in sources if r != ranks[0]]
            pairs += [(ranks[0], r) for r in ranks if r != ranks[0]]
    return sorted(pairs)


@pytest.mark.parametrize("make", [lambda: two_shot(4), lambda: ring(5), lambda: two_shot(1)])
def test_pictures_have_all_ranks_moves_and_messages(make, tmp_path):
    p = make()
    p.name = 'a < b & "c"'
    picture = p.draw(tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text(encoding="utf-8") == picture == make_again(p).draw()
    root = ElementTree.fromstring(picture)
    assert root.find(f"{SVG}title").text.startswith(p.name)
    of = {kind: root.findall(f".//*[@class='{kind}']") for kind in ("lane", "copy", "reduce")}
    assert len(of["lane"]) == len(p.ranks)
    assert len(of["copy"]) == sum(len(m.source) == 1 for m in p.moves)
    assert len(of["reduce"]) == sum(len(m.source) > 1 for m in p.moves)
    arrows = root.findall(f"{SVG}line[@class='message']")
    assert sorted((int(a.get("data-from")), int(a.get("data-to"))) for a in arrows) == messages(p)
    assert all(float(a.get("x1")) < float(a.get("x2")) for a in arrows)
    # Nothing is outside, and no two boxes of a rank are one upon the other.
    boxes = [box.find(f"{SVG}rect") for kind in ("copy", "reduce") for box in of[kind]]
    places = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(places) == len(boxes)
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(0 <= float(x) < width and 0 <= float(y) < height for x, y in places)


def make_again(p):
    """The same program, of the same lines."""
    again = plan.Program(p.name, p.collective, ranks=len(p.ranks), scratch=p.scratch)
    again.inputs, again.outputs, again.moves = p.inputs, p.outputs, list(p.moves)
    return again


def test_pictures_of_too_much_are_refused():
    with pytest.raises(ValueError, match="has 65 ranks; a picture has at most 64"):
        ring(65).draw()
    assert len(ElementTree.fromstring(ring(64).draw())) > 64
    p = plan.Program("x", plan.AllReduce(), ranks=2, scratch=1)
    p.copy(p.ranks[0].output[0], p.ranks[1].scratch[0])
    with pytest.raises(ValueError, match="which nothing has written"):
        p.draw()


def test_the_picture_in_the_manual_is_new():
    """It is drawn by `goccl plan export allreduce --ranks 4 --algorithm two_shot`, then `draw`."""
    picture = Path(__file__).parents[1] / "docs" / "howto" / "two_shot.svg"
    p = plan.builtin(plan.AllReduce(), 4, algorithm="two_shot")
    assert picture.read_text(encoding="utf-8") == p.draw()


def test_the_command_exports_and_draws(tmp_path):
    file, picture = tmp_path / "p.json", tmp_path / "p.svg"
    done = goccl_plan(
        "export", "reduce", "--ranks", 5, "--root", 3, "--algorithm", "flat", "-o", file
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    p = plan.load(file)
    assert (p.collective, len(p.ranks), p.name) == (plan.Reduce(3), 5, "flat")
    assert goccl_plan("draw", file, "-o", picture).returncode == 0
    assert goccl_plan("draw", file).stdout == picture.read_text(encoding="utf-8")
    for arguments, status, error in (
        (("export", "reduce"), 2, "export needs --ranks"),
        (("export", "sum", "--ranks", 2), 1, "collective is 'sum'"),
        (("export", "allreduce", "--ranks", 2, "--root", 1), 1, "root is 1"),
        (("draw", file, "-o", tmp_path / "no" / "p.svg"), 1, "No such file"),
    ):
        done = goccl_plan(*arguments)
        assert (done.returncode, done.stdout) == (status, "")
        assert error in done.stderr
        assert done.stderr.count("\n") == 1
