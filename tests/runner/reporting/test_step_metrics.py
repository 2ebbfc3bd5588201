"""What a step took, and what is said of it."""

from runner.reporting.metrics import Clock, in_words, throughput, tracked


def test_a_clock_adds_up_phases():
    clock = Clock()
    for _ in range(2):
        with clock.measure("report"):
            pass
    clock.add("grade", 1.5)
    seconds = clock.stop()
    assert set(seconds) == {"timing_s/report", "timing_s/grade", "timing_s/step"} and seconds["timing_s/grade"] == 1.5


def test_throughput_counts_devices_and_is_absent_without_tokens():
    assert throughput({"perf/total_num_tokens": 100.0, "timing_s/step": 2.0}, 0) == {"perf/throughput": 50.0}
    assert throughput({"sft/tokens": 100.0, "timing_s/step": 2.0}, 2) == {"perf/throughput": 25.0}
    assert throughput({"timing_s/step": 2.0}, 1) == {}


def test_only_tracked_metrics_name_a_checkpoint_and_a_step_is_said_in_words():
    assert tracked({"val/accuracy": 1.0, "actor/lr": 2.0}) == {"val/accuracy": 1.0}
    assert in_words({"critic/score/mean": 0.5, "timing_s/step": 1.0}) == "reward 0.5000 · 1.00 s"
