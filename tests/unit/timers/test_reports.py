"""What Timers print and write in one process: Megatron's and NeMo's calls against the documented shapes."""

from __future__ import annotations

import copy
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit import ConfigError, Profiler, TimerError, Timers
from tracekit.statistics import DurationStatistics
from tracekit.testing import FakeClock
from tracekit.timers import TextSink, TimerTable
from tracekit.timers.table import sums_text

MS = 1_000_000
LONG = "backward-compute-with-a-very-long-timer-name-over-48-chars"


class Writer:
    """TensorBoard's SummaryWriter, or with ``log`` a run of wandb, as far as they are used."""

    def __init__(self, *, is_wandb: bool = False) -> None:
        self.written: list[tuple[str, float, int]] = []
        if is_wandb:
            self.log = lambda values, step: self.written.extend((*item, step) for item in values.items())
        else:
            self.add_scalar = lambda *scalar: self.written.append(scalar)


def timed(timers: Timers, **seconds: float) -> Timers:
    for name, value in seconds.items():
        timers(name.replace("_", "-")).set_elapsed(value)
    return timers


RANKS = {
    0: {"forward": 750 * MS, LONG: 375 * MS},
    1: {"forward": 1250 * MS},
    2: {"forward": 250 * MS, "late": 0},
    100: {"forward": 100_000_001_010_000},
}


SHAPES = {
    "max": """max time across ranks (ms):
    forward ........................................: 100000001.01
    backward-compute-with-a-very-long-timer-name-over-48-chars : 375.00""",
    "minmax": """(min, max) time across ranks (ms):
    forward ........................................: (250.00, 100000001.01)
    backward-compute-with-a-very-long-timer-name-over-48-chars : (375.00, 375.00)""",
    "all": """times across ranks (ms):
  forward:
     rank  0: 750.00
     rank  1: 1250.00
     rank  2: 250.00
     rank 100: 100000001.01
  backward-compute-with-a-very-long-timer-name-over-48-chars:
     rank  0: 375.00""",
}


@pytest.mark.parametrize("option", SHAPES)
def test_the_shape_of_an_option(option: str) -> None:
    """T12: there 100000.00101 s are 100000000.00 ms."""
    assert sums_text(RANKS, ["forward", LONG, "late", "nobody's"], option) == SHAPES[option]
    assert sums_text({0: {"x": 0}, 1: {}}, ["x", "y"], option) is None, "nothing to report"


@pytest.mark.parametrize("normalizer", [0, -1, float("nan"), float("inf"), "2"])
def test_a_normalizer_is_above_zero(normalizer: Any) -> None:
    timers = Timers(2, "max")
    for report in (
        lambda: timers.get_all_timers_string(normalizer=normalizer),
        lambda: timers.log(["x"], normalizer=normalizer),
        lambda: timers.write(["x"], None, 1, normalizer),
        lambda: timers.write_to_wandb(["x"], None, 1, normalizer),
    ):
        with pytest.raises(ConfigError, match="normalizer must be a number above 0"):
            report()


def test_a_megatron_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The calls of a training loop there: levels, barriers, write without a reset before log with one."""
    clock = FakeClock()
    timers = Timers(1, "minmax", clock=clock.clock)
    writer, run = Writer(), Writer(is_wandb=True)
    timers("model-and-optimizer-setup", log_level=0).start(barrier=True)
    clock.advance(250 * MS)
    timers("model-and-optimizer-setup").stop()
    timers.log(["model-and-optimizer-setup", "no-such-timer"], barrier=True)
    to_log = ["forward-backward", "optimizer", "batch-generator"]
    timers("interval-time", log_level=0).start(barrier=True)
    for iteration in range(1, 5):
        timers("forward-backward", log_level=1).start(barrier=True)
        with timers("batch-generator", log_level=2):
            pass
        clock.advance(100 * MS)
        timers("forward-backward").stop()
        timers("optimizer", log_level=1).start(barrier=True)
        clock.advance(10 * iteration * MS)
        timers("optimizer").stop()
        if iteration % 2 == 0:
            elapsed = timers("interval-time").elapsed(barrier=True)
            timers.write(to_log, writer, iteration, normalizer=2, reset=False)
            timers.write(to_log, run, iteration, normalizer=2, reset=False)
            assert elapsed == (0.23 if iteration == 2 else 0.27)
            timers.log(to_log, normalizer=2)
    assert capsys.readouterr().out == (
        "(min, max) time across ranks (ms):\n"
        "    model-and-optimizer-setup ......................: (250.00, 250.00)\n"
        "(min, max) time across ranks (ms / 2):\n"
        "    forward-backward ...............................: (100.00, 100.00)\n"
        "    optimizer ......................................: (15.00, 15.00)\n"
        "(min, max) time across ranks (ms / 2):\n"
        "    forward-backward ...............................: (100.00, 100.00)\n"
        "    optimizer ......................................: (35.00, 35.00)\n"
    )
    assert writer.written == [
        ("forward-backward-time", 0.1, 2),
        ("optimizer-time", 0.015, 2),
        ("forward-backward-time", 0.1, 4),
        ("optimizer-time", 0.035, 4),
    ]
    assert run.written == writer.written


def test_a_nemo_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The calls of the benchmark recipe there, with the two private names that it uses."""
    clock = FakeClock()
    timers = Timers(log_level=2, log_option="minmax", clock=clock.clock)
    run = Writer(is_wandb=True)
    slowest = []
    for index in range(2):
        with timers("iteration", log_level=1):
            clock.advance((200 + index) * MS)
            with timers("optimizer", log_level=2).with_barrier() as timer:
                assert timer.name == "optimizer"
                clock.advance(50 * MS)
        slowest.append(timers._get_global_min_max_time(["iteration"], reset=False, barrier=False, normalizer=1.0))
        names = ["iteration", "optimizer"]
        timers.write_to_wandb(names=names, writer=run, iteration=index, normalizer=1.0, reset=False, barrier=False)
        timers.log(names=names, rank=0, normalizer=1000.0, reset=True, barrier=True)
    assert slowest == [{"iteration": (0.25, 0.25)}, {"iteration": (0.251, 0.251)}]
    assert timers._timers["iteration"].active_time() == 0.501
    assert run.written == [
        *[("iteration-time", 0.25, 0), ("optimizer-time", 0.05, 0)],
        *[("iteration-time", 0.251, 1), ("optimizer-time", 0.05, 1)],
    ]
    report = [
        "(min, max) time across ranks (ms / 1000):",
        "    iteration ......................................: (0.25, 0.25)",
        "    optimizer ......................................: (0.05, 0.05)",
    ]
    assert capsys.readouterr().out.splitlines() == report * 2


def test_write_and_then_log_show_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """T7: there the second report, and the repository's own test of it, find nothing."""
    timers = timed(Timers(2, "max"), forward=3)
    writer, other, run = Writer(), Writer(), Writer(is_wandb=True)
    timers.write(["forward"], writer, 7)
    timers.write(["forward"], other, 7)
    timers.write_to_wandb(["forward"], run, 7)
    timers.log(["forward"])
    assert writer.written == other.written == run.written == [("forward-time", 3.0, 7)]
    assert "forward" in capsys.readouterr().out
    assert "3000.00" in str(timers.get_all_timers_string())
    assert timers.get_all_timers_string() is None, "this report has shown it"
    timers.write(["forward"], writer, 8)
    assert len(writer.written) == 1


def test_a_reading_takes_nothing_from_the_reports_which_reset_what_elapsed_reads() -> None:
    timers = timed(Timers(2, "max"), forward=3)
    assert timers("forward").elapsed() == 3.0
    assert "3000.00" in str(timers.get_all_timers_string())
    timers("forward").set_elapsed(1)
    timers("forward").reset()
    assert timers.get_all_timers_string() is None
    timers("forward").set_elapsed(2)
    timers.get_all_timers_string(reset=False)
    assert timers("forward").elapsed(reset=False) == 2.0
    timers.get_all_timers_string()
    assert timers("forward").elapsed() == 0.0


def test_names_are_reported_in_the_order_that_was_asked_for() -> None:
    timers = timed(Timers(2, "max"), a=1, b=2, c=3)

    def names(text: str | None) -> list[str]:
        return [line.split()[0] for line in str(text).splitlines()[1:]]

    assert names(timers.get_all_timers_string(reset=False)) == ["a", "b", "c"]
    assert names(timers.get_all_timers_string(["c", "x", "a", "c"])) == ["c", "a"]
    for report in (timers.log, timers.snapshot, timers.gather, timers.get_all_timers_string):
        with pytest.raises(ConfigError, match=r"such as \['a'\], not 'a'"):
            report("a")
        with pytest.raises(ConfigError, match=r"such as \['forward'\], not <generator"):
            report(name for name in "a")  # type: ignore[arg-type]  # it can be read once only


def test_a_report_of_a_rank_that_does_not_exist_is_named(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    timers = timed(Timers(2, "max"), a=1)
    for _ in range(2):
        timers.log(rank=1)
        assert timers.gather(rank=-1) is None
    assert capsys.readouterr().out == ""
    assert caplog.messages == [
        f"tracekit: timers: {call} reports nothing: there is only rank 0" for call in ("log(rank=1)", "gather(rank=-1)")
    ]


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    timers = Timers(2, "max")
    timers("a").set_elapsed(numpy.float32(3))
    run = Writer(is_wandb=True)
    timers.write_to_wandb(["a"], run, numpy.int64(7))
    assert [(step, type(step)) for *_, step in run.written] == [(7, int)], "wandb refuses others"
    text = timers.get_all_timers_string(normalizer=numpy.int64(2))
    assert text == "max time across ranks (ms / 2):\n    a ..............................................: 1500.00"


def test_what_is_no_writer_is_refused_and_none_is_fine() -> None:
    timers = timed(Timers(2, "max"), a=1)
    timers.write(["a"], None, 1)
    timers.write_to_wandb(["a"], None, 1)
    with pytest.raises(TimerError, match="SummaryWriter of TensorBoard or a run of wandb"):
        timers.write(["a"], object(), 1)
    with pytest.raises(TimerError, match="takes wandb or a run of it"):
        timers.write_to_wandb(["a"], SimpleNamespace(add_scalar=print), 1)


@pytest.mark.parametrize("method", ["write", "write_to_wandb"])
def test_a_writer_may_count_its_steps_itself(method: str) -> None:
    written: list[tuple[dict[str, float], int | None]] = []
    writer = SimpleNamespace(log=lambda values, step: written.append((values, step)))
    timers = timed(Timers(2, "max"), a=1)
    getattr(timers, method)(["a"], writer, None)
    timed(timers, a=2)
    getattr(timers, method)(["a"], writer, None)
    assert written == [({"a-time": 1.0}, None), ({"a-time": 2.0}, None)]
    with pytest.raises(TimerError, match="iteration must be a whole number or None, not 'x'"):
        getattr(timers, method)(["a"], writer, "x")


def test_a_copy_is_the_same_object_and_a_pickled_one_has_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    config = SimpleNamespace(timers=Timers(2, "max"))  # Megatron copies it with the configuration
    assert copy.deepcopy(config).timers is copy.copy(config.timers) is config.timers
    timers = Timers(2, "all", device="host", profiler=Profiler([]), timeout=3, name="n", output=print)
    found = pickle.loads(pickle.dumps(timed(timers, a=1)))
    assert (found._again.args, found._again.keywords) == (timers._again.args, timers._again.keywords)
    assert (type(found), found.names) == (Timers, [])
    found("a").set_elapsed(2)
    found.log()
    assert capsys.readouterr().out == "times across ranks (ms):\n  a:\n     rank  0: 2000.00\n"
    assert pickle.loads(pickle.dumps(Timers(2, "max"))).names == []


def test_snapshots_reset_only_when_asked_and_keep_the_lifetime() -> None:
    timers = timed(Timers(2, "max"), a=1, b=2)
    timers.log()
    first = timers.snapshot(["a"], reset=True)
    assert first.names == ["a"]
    assert (first.of("a")[0].count, timers.snapshot().of("a")) == (1, {})
    assert timers.snapshot().of("b")[0].count == 1
    timers("a").set_elapsed(3)
    assert timers.snapshot(lifetime=True).of("a")[0].total_ns == 4000 * MS
    assert first.of("a")[0].total_ns == 1000 * MS, "a snapshot is a value"


def test_the_memory_of_a_timer_is_bounded() -> None:
    timers = Timers(2, "max", clock=FakeClock(tick_ns=5).clock)
    for _ in range(5000):
        with timers("x"):
            pass
    timer = timers("x")
    assert len(timer._calls) < 1024  # type: ignore[attr-defined]
    assert timers.snapshot().of("x")[0].count == 5000


def table() -> TimerTable:
    return TimerTable(
        {
            1: {"forward": DurationStatistics([4 * MS, 6 * MS]), "only on 1": DurationStatistics([MS])},
            0: {"forward": DurationStatistics([1 * MS, 3 * MS]), "unused": DurationStatistics()},
            2: {},
        },
        missing=(3,),
    )


def test_a_table_matches_timers_by_name() -> None:
    """T13: there the columns of ranks with another order of names are mixed up."""
    found = table()
    assert found.names == ["forward", "unused", "only on 1"]
    assert (found.slowest("forward"), found.fastest("forward"), found.slowest("unused")) == (1, 0, None)
    assert found.across("forward") == DurationStatistics([MS, 3 * MS, 4 * MS, 6 * MS])
    assert list(found.of("only on 1")) == [1]
    assert [(row.timer, row.rank) for row in found.rows()] == [
        ("forward", None), ("forward", 0), ("forward", 1), ("only on 1", None), ("only on 1", 1),
    ]  # fmt: skip
    more = TimerTable({3: {"forward": DurationStatistics([MS])}, 0: {"forward": DurationStatistics([MS])}})
    both = found.merged_with(more)
    assert (both.of("forward")[0].count, both.of("forward")[3].count, both.missing) == (3, 1, ())


def test_the_text_of_a_table_says_its_units_and_who_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    text = """\
timer      calls  total ms  mean ms  stdev ms  min ms  p50 ms  p95 ms  p99 ms  max ms  slowest rank  its total ms
forward        4    14.000    3.500     1.803   1.000   2.998   6.000   6.000   6.000             1        10.000
only on 1      1     1.000    1.000     0.000   1.000   1.000   1.000   1.000   1.000             1         1.000
without rank 3, which did not report"""
    said: list[str] = []
    with caplog.at_level(logging.INFO, "tracekit.timers"):
        for sink in (TextSink(said.append), TextSink()):
            sink.write(table(), 5)
    assert said == caplog.messages == [f"timers at step 5:\n{text}"]
    assert TimerTable({0: {}}).text().splitlines()[1:] == ["(no timer has been used)"]
