#!/usr/bin/env python3
"""Makes a data directory with a run in every state, so that later programs show that they open it and go on with it.

    make.py PROGRAM OUT.tar.gz      with the program of the version that is to be kept
"""
import json, os, signal, subprocess, sys, tarfile, tempfile, time, urllib.request

PROGRAM, OUT = sys.argv[1:3]
RETRY = "retry: { max_attempts: 5, first: 20s, max: 1h }"
DOCUMENTS = {
    "one": "steps: [ { id: a, task: t, lease: 2s } ]",
    "warned": "steps: [ { id: a, task: t, on_failure: warn }, { id: b, task: t } ]",
    "approval": "steps: [ { id: a, task: t }, { id: ok, approval: { title: 'Ship ${{ steps.a.output.n }}?', approvers: [ana, ben], quorum: 2, deadline: 365d } } ]",
    "form": "steps: [ { id: ok, approval: { approvers: [ana], form: { type: object, required: [n] } } } ]",
    "signal": "steps: [ { id: a, signal: go, deadline: 365d } ]",
    "sleep": "steps: [ { id: a, sleep: 2s }, { id: b, sleep: 2s } ]",
    "parent": "steps: [ { id: kid, child: signal } ]",
    "held": "steps: [ { id: a, task: t, lease: 1s, recovery: { lost: hold } } ]",
    "external": "defaults: { lease: 2s }\nsteps: [ { id: pay, task: t, effect: external, reconcile: find, lease: 1s }, { id: b, task: t } ]",
    "unknown": "steps: [ { id: pay, task: t, effect: external, lease: 1s } ]",
    "retried": "steps: [ { id: a, task: t, " + RETRY + " } ]",
    "saga": "saga: true\nsteps: [ { id: a, task: t, compensate: undo }, { id: b, task: t } ]",
    "finally": "steps: [ { id: a, task: t, lease: 2s } ]\nfinally: [ { id: z, task: t, lease: 2s } ]",
    "list": "steps: [ { id: all, for_each: input.items, parallel: 3, task: t, lease: 2s } ]",
    "secret": "sensitive: [/card]\nsteps: [ { id: a, task: t, with: { card: '${{ input.card }}' } }, { id: ok, approval: { approvers: [ana] } } ]",
    "coded": "coded: { revision: '1' }\ndefaults: { lease: 2s }",
    "missing": "steps: [ { id: a, task: t, with: { to: '${{ input.absent }}' } }, { id: ok, approval: { approvers: [ana] } } ]",
}


def call(method, path, body=None, kind="application/json"):
    data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, {"Content-Type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "{}")


def start(workflow, **more):
    return call("POST", "/v1/runs", {"workflow": workflow, "run_id": f"run_{workflow}-{more.pop('n', 1)}", **more})["run_id"]


def claim(handler, run):
    """The next task of this run, wherever others stand before it."""
    while True:
        for task in call("POST", "/v1/tasks/claim", {"worker": "gone", "queues": ["default"], "handlers": [handler], "max": 1}).get("tasks", []):
            assert task["run_id"] == run, f"{task['run_id']} and not {run}"
            return task


def report(task, verb, **body):
    return call("POST", f"/v1/tasks/{task['task_id']}/{verb}", {"epoch": task["epoch"], **body})


def done(run, handler="t", **output):
    report(claim(handler, run), "complete", output=output)


def until(run, state):
    for _ in range(600):
        if call("GET", f"/v1/runs/{run}")["state"] == state:
            return
        time.sleep(0.05)
    raise SystemExit(f"{run} is {call('GET', f'/v1/runs/{run}')['state']} and not {state}")


def play():
    done(start("one", n="succeeded", labels={"team": "a"}))
    run = start("warned"); report(claim("t", run), "fail", **{"class": "fatal", "message": "no"}); done(run)
    run = start("one", n="failed"); report(claim("t", run), "fail", **{"class": "fatal", "message": "no"})
    call("POST", f"/v1/runs/{start('signal', n='canceled')}/cancel", {"reason": "enough"})
    run = start("approval"); done(run, n=1); call("POST", f"/v1/runs/{run}/approve", {"decision_by": "ana"})
    start("form"); start("signal"); start("sleep"); start("parent")
    run = start("one", n="auth"); report(claim("t", run), "block", on="auth", tool="drive")
    run = start("one", n="operator"); report(claim("t", run), "block", on="operator", reason="look")
    run = start("one", n="invalid"); report(claim("t", run), "fail", **{"class": "validation", "message": "no"})
    run = start("held"); claim("t", run); until(run, "stalled")
    run = start("unknown"); claim("t", run); until(run, "waiting_on_operator")
    run = start("external"); claim("t", run)
    while call("GET", f"/v1/runs/{run}")["state"] == "running": time.sleep(0.05)
    claim("find", run)
    run = start("retried"); report(claim("t", run), "fail", **{"class": "transient", "message": "busy"})
    run = start("saga"); done(run); report(claim("t", run), "fail", **{"class": "fatal", "message": "no"}); until(run, "compensating")
    run = start("secret", input={"card": "4111-1111-1111"}); done(run, seen="4111-1111-1111")
    run = start("missing"); done(run)
    run = start("coded"); task = claim("coded@1", run)
    report(task, "steps", begin=[{"step_id": "first"}])
    report(task, "steps", done=[{"step_id": "first", "output": 1}], begin=[{"step_id": "second", "effect": "external"}])
    run = start("list", input={"items": [1, 2, 3, 4, 5]}); claim("t", run); done(run, n=2); claim("t", run); claim("t", run)
    run = start("finally"); claim("t", run); call("POST", f"/v1/runs/{run}/cancel", {"reason": "enough", "grace": "1h"})
    run = start("one", n="running"); claim("t", run)
    run = start("one", n="paused"); call("POST", f"/v1/runs/{run}/pause", {"reason": "hold"})
    start("one", n="queued")
    states = sorted({run["state"] for run in call("GET", "/v1/runs?limit=100")["runs"]})
    contract = sorted(one if isinstance(one, str) else one["state"] for one in call("GET", "/v1/contract")["states"])
    assert states == contract, f"{set(contract) - set(states)} are missing"


with tempfile.TemporaryDirectory() as folder:
    data = os.path.join(folder, "data")
    server = subprocess.Popen([PROGRAM, "serve", "--listen", "127.0.0.1:0", "--data", data], stdout=subprocess.PIPE, text=True)
    SERVER = server.stdout.readline().strip().removeprefix("listening on ")
    for name, text in DOCUMENTS.items():
        call("PUT", f"/v1/workflows/{name}", f"workflow: {name}\n{text}\n", "application/yaml")
    play()
    # An orderly stop folds the write-ahead log in, which keeps the file small.
    server.send_signal(signal.SIGTERM); server.wait()
    with tarfile.open(OUT, "w:gz") as archive:
        for name in sorted(os.listdir(data)):
            if name != "lock":
                archive.add(os.path.join(data, name), name)
    print(f"{OUT}: {os.path.getsize(OUT)} bytes")
