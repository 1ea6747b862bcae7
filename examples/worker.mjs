// A worker without dependencies: ABIDE_SERVER=http://127.0.0.1:7070 ABIDE_API_KEY=… node examples/worker.mjs
const server = process.env.ABIDE_SERVER ?? "http://127.0.0.1:7070";
const key = process.env.ABIDE_API_KEY && { authorization: `Bearer ${process.env.ABIDE_API_KEY}` };
const handlers = {
  greet({ name }) {
    if (!name) throw new TypeError("the name is empty");
    return { greeting: `Hello, ${name}!` };
  },
};

async function say(path, body) {
  const asked = { method: "POST", headers: { "content-type": "application/json", ...key }, body: JSON.stringify(body) };
  const answer = await fetch(`${server}/v1/tasks/${path}`, asked);
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer.status === 204 ? {} : answer.json(); // 204: nothing came within 20 seconds
}
async function work({ task_id, epoch, handler, input, heartbeat_every_ms }) {
  const tell = (verb, body) => say(`${task_id}/${verb}`, { epoch, ...body });
  // Without heartbeats the lease runs out, and somebody else gets the task.
  const beat = setInterval(() => tell("heartbeat", {}).catch(console.error), heartbeat_every_ms);
  const failed = (error) => ({ message: String(error), ...(error instanceof TypeError && { class: "validation" }) });
  await Promise.resolve(input).then(handlers[handler])
    .then((output) => tell("complete", { output }), (error) => tell("fail", failed(error))) // 409: the lease was lost
    .finally(() => clearInterval(beat));
}

for (const asked = { worker: `js-${process.pid}`, queues: ["default"], handlers: Object.keys(handlers) }; ; ) {
  try { for (const task of (await say("claim", asked)).tasks ?? []) await work(task); }
  catch (error) { console.error(String(error)); await new Promise((resolve) => setTimeout(resolve, 1000)); }
}
