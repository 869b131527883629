"""H1, H2: handlers that raise, and handlers that hang. Training and the other handlers notice nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import Child, left_in, opened, opens
from tests.faults.test_kills import assert_all_delivered_is_there, wait_for_deliveries

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults import Remains
    from tests.perfetto import Engine

RAISERS = {
    "everywhere": "RaisesAlways()",
    "in events": "RaisesAlways(RuntimeError, 'process_events')",
    "in flush": "RaisesAlways(RuntimeError, 'flush')",
    "when stopping": "RaisesAlways(RuntimeError, 'stopping')",
    "1 in 1000": "RaisesSometimes()",
    "no Exception": "RaisesAlways(BaseException)",
    "system exit in close": "RaisesAlways(SystemExit, 'close')",
}


@pytest.mark.parametrize("raiser", RAISERS)
def test_a_handler_that_raises_takes_nothing_from_training_and_the_others(
    tmp_path: Path, engine: Engine, raiser: str
) -> None:
    program = f"""
        from tests.faults.bad_writers import RaisesAlways, RaisesSometimes
        from tests.faults.writers import make_writer
        bad = {RAISERS[raiser]}
        os.mkdir("last")
        profiler = profiler_of("t.json", bad, make_writer(WRITER, "last/t.json"), flush_interval=0.0005)
        try:
            profiler.start()
            for number in range(3000):
                with profiler.marker("work"):
                    profiler.marker("n").counter({{"n": number}})
                profiler.step()
                if number % 20 == 0:
                    profiler.flush()
            profiler.stop()
        except BaseException as error:
            say(f"saw {{error!r}}")
            raise
        say(f"calls {{bad.calls}}")
    """
    with Child(program, tmp_path) as child:
        assert child.end() == 0, child.errors
        calls = int(child.hear("calls"))
        for folder in (tmp_path, tmp_path / "last"):
            assert_all_is_there(left_in(folder), engine)
        summary = left_in(tmp_path).summary
        assert summary is not None
        if raiser == "when stopping":
            # Each handler stops on its own thread: the first may write its summary before the bad one has raised.
            assert set(summary["failures"]) <= {"RaisesAlways.stopping"}
            assert "RaisesAlways.stopping" in child.errors
        elif "close" not in raiser:
            expected = "RaisesSometimes" if raiser == "1 in 1000" else "RaisesAlways"
            assert {name.split(".")[0] for name in summary["failures"]} == {expected}
        if raiser == "in events":
            assert calls == summary["failures"]["RaisesAlways.process_events"] == 10
        # One line with a traceback for each kind of failure, whatever their number, and one when it is given up.
        assert child.errors.count("Traceback") <= max(len(summary["failures"]), 1) + 1
        assert child.errors.count("is left out") <= 1


def assert_all_is_there(remains: Remains, engine: Engine) -> None:
    opens(engine, remains)
    assert remains.values("n", "n") == list(range(3000))
    assert remains.count("XE", "work") == 3000
    assert remains.closed


HANGS = ("process_events", "flush", "batch_end")


@pytest.mark.parametrize(
    ("hang", "first"), [("process_events", True), ("process_events", False), ("flush", True), ("batch_end", True)]
)
def test_a_handler_that_hangs_does_not_widen_the_loss_window_of_the_others(
    tmp_path: Path, engine: Engine, hang: str, first: bool
) -> None:
    program = f"""
        from tests.faults.bad_writers import Blocks
        from tracekit import JSONTraceHandler, Profiler
        bad, good = Blocks({hang!r}), note_deliveries(JSONTraceHandler("t.json"))
        profiler = Profiler([bad, good] if {first} else [good, bad], rank=0, record_batches=False)
        profiler.start()
        profiler.step()
        with profiler.marker("first"):
            pass
        bad.blocked.wait()
        say("hangs")
        emit_at(profiler, 20_000)
    """
    with Child(program, tmp_path) as child:
        child.hear("hangs")
        wait_for_deliveries(child)  # to the other
        child.kill()
        remains = opened(engine, tmp_path)
        assert_all_delivered_is_there(remains, child.tally)


@pytest.mark.parametrize("hang", [*HANGS, "close"])
def test_stop_waits_no_longer_than_it_was_told_and_the_process_ends(tmp_path: Path, engine: Engine, hang: str) -> None:
    program = f"""
        from tests.faults.bad_writers import Blocks
        bad = Blocks({hang!r})
        with profiler_of("t.json", bad, shutdown_timeout=1.0) as profiler:
            for number in range(1000):
                profiler.marker("n").counter({{"n": number}})
            profiler.step()
            if {hang != "close"}:
                bad.blocked.wait()
            # A busy machine may need longer for that than the stop waits for the handler that hangs.
            while b'"n":999' not in open("t.json", "rb").read():
                time.sleep(0.01)
        sys.exit(7)
    """
    with Child(program, tmp_path) as child:
        assert child.end() == 7  # the handler hangs for an hour
        assert "did not finish within 1 s" in child.errors
        remains = opened(engine, tmp_path)
        assert remains.values("n", "n") == list(range(1000))
