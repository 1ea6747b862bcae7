#!/usr/bin/env python3
"""A worker without dependencies: ABIDE_SERVER=http://127.0.0.1:7070 ABIDE_API_KEY=… python3 examples/worker.py"""

import json
import os
import sys
import threading
import time
import urllib.request

SERVER = os.environ.get("ABIDE_SERVER", "http://127.0.0.1:7070")
KEY = os.environ.get("ABIDE_API_KEY")
NAME = f"py-{os.getpid()}"


def greet(name):
    if not name:
        raise ValueError("the name is empty")
    return {"greeting": f"Hello, {name}!"}


HANDLERS = {"greet": greet}


def post(path, epoch=None, **body):
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    if epoch is not None:
        # Proves the lease even when the body cannot be read: a result that is too large then ends the attempt.
        headers["Abide-Epoch"] = str(epoch)
        body["epoch"] = epoch
    request = urllib.request.Request(f"{SERVER}/v1/tasks/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.loads(answer.read() or "{}")  # 204 has no body: no task came within 20 seconds


def heartbeat(task, ended):
    """Keeps the lease: without heartbeats it runs out, and another worker gets the task."""
    while not ended.wait(task["heartbeat_every_ms"] / 1000):
        post(f"{task['task_id']}/heartbeat", task["epoch"])


def outcome(task):
    """The call that reports how the task went, and its body."""
    try:
        return "complete", {"output": HANDLERS[task["handler"]](**task["input"])}
    except (TypeError, ValueError) as error:
        return "fail", {"class": "validation", "message": str(error)}
    except Exception as error:  # no class: the engine decides
        return "fail", {"message": repr(error)}


def work(task):
    ended = threading.Event()
    threading.Thread(target=heartbeat, args=(task, ended), daemon=True).start()
    verb, body = outcome(task)
    ended.set()
    post(f"{task['task_id']}/{verb}", task["epoch"], **body)  # 409: the lease was lost


while True:
    try:
        claimed = post("claim", worker=NAME, queues=["default"], handlers=list(HANDLERS))
        for task in claimed.get("tasks", []):
            work(task)
    except OSError as error:
        print(error, file=sys.stderr)
        time.sleep(1)
