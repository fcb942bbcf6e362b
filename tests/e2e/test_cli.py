"""The command line: bad input gets one line and exit code 2, `--json` is one value, `run` is as the script alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from e2e.processes import ROOT, run_of, trainbudget
from trainbudget.events import End, Event, Header, Reading, Step
from trainbudget.trace import read_trace, write_trace

QUIET = {"TRAINBUDGET_LISTEN": "off", "TRAINBUDGET_BACKEND": "mock:healthy"}


def trace(path, *, idle=False):
    facts = [Header(run="night", process_started_s=-1.0), Event(t_s=0.0, event="train_begin")]
    facts += [Step(t_s=float(n), step=n, start_s=n - 0.7, data_wait_s=0.3) for n in range(1, 120)]
    write_trace(path, [*facts, End(t_s=120.0, outcome="finished")])
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo", "--scenario", "nonsense"), "unknown scenario 'nonsense'"),
        (("demo", "--steps", "0"), "--steps 0"),
        (("replay", "nothing.jsonl"), "no such trace"),
        (("replay", "foreign.txt"), "not a trace"),
        (("replay", "broken.gz"), "not a trace"),
        (("replay", "."), "no trace in this directory"),
        (("run", "nothing.py"), "no such script"),
        (("run", "--price", "-3 USD/h", "script.py"), "negative"),
        (("run", "--price", "cheap", "script.py"), "cheap"),
        (("run", "--budget", "40 EUR", "--price", "2 USD/h", "script.py"), "never mixed"),
        (("run", "--run-time", "soon", "script.py"), "soon"),
        (("run", "--plan", "nothing.json", "script.py"), "nothing.json"),
        (("run", "--plan", "list.json", "script.py"), "not a plan"),
        (("doctor", "--backend", "abacus"), "abacus"),
        (("fly",), "invalid choice: 'fly'"),
        (("replay", "--fail-on", "doom", "x"), "(trainbudget replay --help)"),
        (("run",), "(trainbudget run --help)"),
        (("plan", "--nope"), "trainbudget plan: error: unrecognized arguments: --nope (trainbudget plan --help)"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, arguments, says):
    (tmp_path / "foreign.txt").write_text("hello\n")
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bnot really")
    (tmp_path / "script.py").write_text("print('must not run')\n")
    (tmp_path / "list.json").write_text('{"memory": [1]}')
    done = trainbudget(*arguments, cwd=tmp_path, **QUIET)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_usage_errors_are_code_2(tmp_path):
    assert trainbudget(cwd=tmp_path).code == 2
    done = trainbudget("fly", cwd=tmp_path)
    assert done.code == 2
    assert "invalid choice: 'fly'" in done.err


@pytest.mark.parametrize("verb", [("demo", "--framework", "loop"), ("run", "script.py")])
def test_a_busy_port_with_strict_is_bad_input(tmp_path, verb):
    (tmp_path / "script.py").write_text("print('must not run')\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = trainbudget(*verb, cwd=tmp_path, TRAINBUDGET_LISTEN=listen, TRAINBUDGET_STRICT_PORT="1")
    assert (done.code, done.out) == (2, "")
    assert listen in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_replay_json_is_one_value(tmp_path):
    done = trainbudget("replay", str(trace(tmp_path / "trace.jsonl")), "--json", cwd=tmp_path)
    value = json.loads(done.out)
    assert done.code == 0
    assert value.keys() == {"run", "findings", "ledger", "summary"}
    assert value["run"] == "night"
    assert sum(line["gpu_seconds"] for line in value["ledger"].values()) == pytest.approx(121.0)


def test_replay_for_people_and_fail_on(tmp_path):
    path = str(trace(tmp_path / "trace.jsonl"))
    done = trainbudget("replay", path, cwd=tmp_path)
    assert done.code == 0
    assert "night finished: 119 steps" in done.out
    assert "[input_bound" in done.out
    assert trainbudget("replay", path, "--fail-on", "info", cwd=tmp_path).code == 3
    muted = trainbudget("replay", path, "--fail-on", "info", "--ignore", "input_bound", "--json", cwd=tmp_path)
    assert not [f for f in json.loads(muted.out)["findings"] if f["code"] == "input_bound"]


def test_a_wrong_path_is_told_the_runs_nearby(tmp_path):
    for name in ("a-1", "b-2"):
        (tmp_path / "trainbudget_runs" / name).mkdir(parents=True)
        trace(tmp_path / "trainbudget_runs" / name / "trace.jsonl")
    for wrong in (".", "trainbudget_runs", "trainbudget_runs/c-3", "nothing.jsonl"):
        done = trainbudget("replay", wrong, cwd=tmp_path)
        assert done.code == 2
        assert len(done.err.splitlines()) == 1
        assert "runs nearby: " in done.err
        assert {"a-1", "b-2"} <= {word.strip(",").rpartition("/")[2] for word in done.err.split()}


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    import subprocess
    import sys

    from e2e.processes import ROOT

    path = trace(tmp_path / "trace.jsonl")
    shell = f"{sys.executable} -m trainbudget replay {path} | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_one_line(tmp_path, more):
    trace(tmp_path / "trace.jsonl")
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trainbudget", "replay", "trace.jsonl", *more],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "trainbudget: cannot write the answer: No space left on device\n")


def test_doctor_json_tells_what_is_there_and_what_is_not(tmp_path):
    done = trainbudget("doctor", "--json", "--backend", "mock:healthy", cwd=tmp_path)
    value = json.loads(done.out)
    assert (done.code, value["ok"]) == (0, True)
    assert value["gpus"][0]["owned"]
    assert {"driver", "record", "metrics", "price"} <= {check["name"] for check in value["checks"]}
    nothing = trainbudget("doctor", "--json", "--backend", "none", cwd=tmp_path)
    assert nothing.code == 3
    assert not json.loads(nothing.out)["ok"]


# --- run


def run(tmp_path, text, *arguments, **environ):
    (tmp_path / "train.py").write_text(text)
    return trainbudget("run", "--price", "2 USD/h", "train.py", *arguments, cwd=tmp_path, **QUIET | environ)


def outcome_of(tmp_path):
    facts = list(read_trace(run_of(tmp_path)))
    return facts[0].framework, [f.outcome for f in facts if isinstance(f, End)], facts


def test_run_gives_the_script_its_arguments_output_and_place(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'neighbour'\n")
    text = "import sys, beside, os\nprint(__name__, sys.argv, beside.WORD, os.path.basename(__file__))\n"
    done = run(tmp_path, text, "--epochs", "3")
    assert (done.code, done.out) == (0, "__main__ ['train.py', '--epochs', '3'] neighbour train.py\n")
    assert outcome_of(tmp_path)[:2] == ("loop", ["finished"])


@pytest.mark.parametrize(
    ("text", "code", "outcome"),
    [
        ("import sys; sys.exit(7)", 7, "failed"),
        ("import sys; sys.exit()", 0, "finished"),
        ("raise SystemExit('what went wrong')", 1, "failed"),
        ("def f():\n    raise ValueError('mine')\nf()", 1, "failed"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_run_ends_as_the_script_ends(tmp_path, text, code, outcome):
    done = run(tmp_path, text)
    assert done.code == code
    assert outcome_of(tmp_path)[1] == [outcome]
    if "mine" in text:
        assert "ValueError: mine" in done.err
        assert "runpy" not in done.err
        assert 'train.py", line 2, in f' in done.err
    if "went wrong" in text:
        assert "what went wrong" in done.err


def test_run_switched_off_is_the_script_alone(tmp_path):
    done = run(tmp_path, "print('alone')", TRAINBUDGET_DISABLED="1")
    assert (done.code, done.out, done.err) == (0, "alone\n", "")
    assert not (tmp_path / "runs").exists()


OWN = """
import time
{imports}
print("trainbudget is only spoken of here")
def train():
    with {monitor}(run_name="mine") as monitor:
        for _ in range(5):
            with monitor.step():
                time.sleep(0.05)
{body}
"""


@pytest.mark.parametrize("started", [True, False])
def test_run_gives_way_to_a_monitor_that_the_script_really_starts(tmp_path, started):
    text = OWN.format(
        imports="import importlib; own = importlib.import_module('train' + 'budget')",
        monitor="own.Monitor",
        body="time.sleep(1.0); train()" if started else "time.sleep(1.0)",
    )
    done = run(tmp_path, text, "--x", TRAINBUDGET_INTERVAL="0.05")
    assert done.code == 0, done.err
    assert done.err.count("has its own monitor, which takes over") == started
    directory = run_of(tmp_path)  # one record, whoever wrote it
    assert directory.name.startswith("mine-" if started else "train-")
    _, outcomes, facts = outcome_of(tmp_path)
    assert outcomes == ["finished"]
    assert sum(f.count or 1 for f in facts if isinstance(f, Step)) == (5 if started else 0)
    assert facts[0].process_started_s < (-0.9 if started else -0.05)  # the second before is billed once, by the one that is left
    assert facts[0].price.per_gpu_hour == 2.0


def test_what_run_was_asked_for_reaches_the_scripts_own_monitor(tmp_path):
    text = OWN.format(imports="import trainbudget", monitor="trainbudget.Monitor", body="train()")
    (tmp_path / "train.py").write_text(text)
    asked = ("--budget", "4 USD", "--run-time", "2h", "--price", "2 USD/h")
    done = trainbudget("run", *asked, "train.py", cwd=tmp_path, **QUIET)
    assert done.code == 0, done.err
    summary = json.loads(trainbudget("replay", str(run_of(tmp_path)), "--json", cwd=tmp_path).out)["summary"]
    assert summary["budget"]["cost"]["value"] == 4.0
    assert summary["budget"]["run_time_s"]["value"] == 7200.0


HUGGINGFACE = """
import tempfile, torch
from transformers import Trainer, TrainingArguments
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        return {"loss": ((self.layer(x).squeeze(-1) - labels) ** 2).mean()}
data = [{"x": torch.ones(4), "labels": torch.tensor(1.0)}] * 16
arguments = TrainingArguments(tempfile.mkdtemp(), max_steps=8, per_device_train_batch_size=2, report_to=[], use_cpu=True,
                              disable_tqdm=True, save_strategy="no", remove_unused_columns=False)
Trainer(model=Net(), args=arguments, train_dataset=data).train()
"""

LIGHTNING = """
import lightning.pytorch as pl, torch
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
pl.Trainer(max_steps=8, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False).fit(
    Net(), torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "text"), [("huggingface", HUGGINGFACE), ("lightning", LIGHTNING)])
def test_run_adds_the_callback_to_a_framework(tmp_path, framework, text):
    done = run(tmp_path, text)
    assert done.code == 0, done.err
    _, outcomes, facts = outcome_of(tmp_path)
    assert outcomes == ["finished"]
    assert sum(f.count or 1 for f in facts if isinstance(f, Step)) == 8
    headers = [f for f in facts if isinstance(f, Header)]
    assert headers[-1].framework == framework  # known only once the script had loaded it
    assert headers[-1].settings["max_steps"] == 8
    assert any(isinstance(f, Reading) for f in facts)
    summary = json.loads(trainbudget("replay", str(run_of(tmp_path)), "--json", cwd=tmp_path).out)["summary"]
    assert summary["settings"]["max_steps"] == 8
    assert summary["framework"] == framework
