#!/usr/bin/env python3
"""A worker without dependencies: ABIDE_SERVER=http://127.0.0.1:7070 ABIDE_API_KEY=… python3 examples/worker.py"""
import json, os, sys, threading, time, urllib.request
SERVER, KEY = os.environ.get("ABIDE_SERVER", "http://127.0.0.1:7070"), os.environ.get("ABIDE_API_KEY")
HEADERS = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})

def say(path, **body):
    headers = HEADERS | ({"Abide-Epoch": str(body["epoch"])} if "epoch" in body else {})  # known also if the body is refused
    request = urllib.request.Request(f"{SERVER}/v1/tasks/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.loads(answer.read() or "{}")  # 204 has no body: nothing came within 20 seconds

def greet(name):
    if not name: raise ValueError("the name is empty")
    return {"greeting": f"Hello, {name}!"}

def beat(task, ended):  # without heartbeats the lease runs out, and somebody else gets the task
    while not ended.wait(task["heartbeat_every_ms"] / 1000): say(f"{task['task_id']}/heartbeat", epoch=task["epoch"])

def work(task):
    ended = threading.Event()
    threading.Thread(target=beat, args=(task, ended), daemon=True).start()
    try: verb, told = "complete", {"output": greet(**task["input"])}
    except (TypeError, ValueError) as error: verb, told = "fail", {"class": "validation", "message": str(error)}
    except Exception as error: verb, told = "fail", {"message": repr(error)}  # no class: the engine decides
    finally: ended.set()
    say(f"{task['task_id']}/{verb}", epoch=task["epoch"], **told)  # refused with 409 if the lease was lost
while True:
    try: [work(t) for t in say("claim", worker=f"py-{os.getpid()}", queues=["default"], handlers=["greet"]).get("tasks", [])]
    except OSError as error: print(error, file=sys.stderr); time.sleep(1)
