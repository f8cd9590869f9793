"""The whole run in the list of plans: its length, device-hours and money follow from the step."""

import json
import re

from gangsaw.cli.main import run

JOB = ["estimate", "llama-3.1-8b", "h100-sxm:8", "--global-batch", "64", "--tp", "2"]


def test_tokens_give_the_whole_run():
    answer = json.loads(run([*JOB, "--tokens", "1T", "--json"]).out)
    text = run([*JOB, "--tokens", "1T"]).out
    found = re.search(r"whole run without failures: (\S+) d, (\S+) device-hours, \$(\S+)", text)
    assert found
    days, hours, usd = (float(part.replace(",", "")) for part in found.groups())
    steps = 1e12 / (64 * 4096)
    run_s = steps * answer["step_time_s"]
    assert abs(days / (run_s / 86400) - 1) < 0.01
    assert abs(hours / (run_s * 8 / 3600) - 1) < 0.01
    assert abs(usd / (answer["bill"]["usd"] * steps) - 1) < 0.01


def test_without_tokens_nothing_is_said_of_a_run():
    assert "whole run" not in run(JOB).out
