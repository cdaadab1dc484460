"""A profile fitted to a recording is that of the machine that made it.

usage: check_trace_calibration.py PROGRAM MODEL PROFILES FOLDER

The recording is a prediction for a machine with other rates than any shipped profile; what `calibrate --from` fits to it, with the
shipped profile as its base, must have these rates again and predict the recorded step.
"""
import json
import pathlib
import subprocess
import sys
import tomllib


def run(*arguments, expect=0):
    done = subprocess.run(list(arguments), capture_output=True, text=True)
    assert done.returncode == expect, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def close(value, expected, share):
    assert abs(value / expected - 1) <= share, f"{value} is not {expected} within {share:.0%}"


def main():
    program, model, profiles, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    shipped = (pathlib.Path(profiles) / "h100-sxm-80.toml").read_text()
    machine = folder / "recorded_machine.toml"
    other = shipped
    for rate, slower in (("bfloat16 = 794.5", "bfloat16 = 380"), ("attention_share = 0.68", "attention_share = 0.3"),
                         ("hbm_share = 0.7", "hbm_share = 0.55")):
        assert rate in other, f"{rate} is not in the shipped profile"
        other = other.replace(rate, slower)
    machine.write_text(other)
    job = [model, "--set", "model.batch=4"]
    recording, fitted = str(folder / "recorded.fst"), str(folder / "fitted.toml")
    step = json.loads(run(program, "simulate", *job, "--json", "--timeline", recording, "--set",
                          f"cluster.profile={machine}"))["step_time_ns"]["value"]
    before = json.loads(run(program, "simulate", *job, "--json"))["step_time_ns"]["value"]
    assert abs(before / step - 1) > 0.1, "the two machines differ"
    told = json.loads(run(program, "calibrate", *job, "--from", recording, "--output", fitted, "--json"))
    profile = tomllib.loads(pathlib.Path(fitted).read_text())
    # Collectives slow the kernels beside them: a recording's kernels are a little longer than alone.
    close(profile["gemm_tflops"]["bfloat16"], 380, 0.08)
    close(profile["device"]["attention_share"], 0.3, 0.08)
    close(profile["device"]["hbm_share"], 0.55, 0.08)
    assert profile["level"] == "measured-step"
    assert {c["kind"] for c in profile["collectives"]} >= {"all_gather", "reduce_scatter"}
    assert "recorded.fst" in profile["calibration"]["recording"]
    again = json.loads(run(program, "simulate", *job, "--json", "--set", f"cluster.profile={fitted}"))
    assert again["level"] == "measured-step"
    close(again["step_time_ns"]["value"], step, 0.08)
    assert again["step_time_ns"]["low"] <= step <= again["step_time_ns"]["high"]
    assert told["schema"] == "foreshard.trace_calibration/1" and len(told["rates"]) == 3

    larger = [model, "--set", "model.batch=64"]
    error = run(program, "calibrate", *larger, "--from", recording, "--output", str(folder / "none.toml"), "--json", expect=3)
    assert "faster than this job can be" in json.loads(error)["error"]["message"], error
    assert not (folder / "none.toml").exists()

    empty = folder / "no_kernels.json"
    empty.write_text('{"traceEvents": [{"ph": "X", "name": "f", "cat": "python_function", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}')
    error = run(program, "calibrate", *job, "--from", str(empty), "--output", fitted, "--json", expect=3)
    assert "no_kernels.json" in json.loads(error)["error"]["file"], error


main()
