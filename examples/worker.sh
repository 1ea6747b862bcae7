#!/bin/sh
# A worker in shell and curl: takes tasks of the handler `greet`, does them, and says how it went.
#   ABIDE_SERVER=http://127.0.0.1:7070 ABIDE_API_KEY=… sh examples/worker.sh
server=${ABIDE_SERVER:-http://127.0.0.1:7070}

say() { # PATH BODY: repeating a report changes nothing, so a lost answer is simply asked for again
  curl -sSf --retry 3 -H 'Content-Type: application/json' ${epoch:+-H "Abide-Epoch: $epoch"} \
    ${ABIDE_API_KEY:+-H "Authorization: Bearer $ABIDE_API_KEY"} -d "$2" "$server/v1/tasks/$1"
}
field() { printf '%s' "$task" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
text() { printf '%s' "$task" | sed -n "s/.*\"$1\":\"\(\([^\"\\\\]\|\\\\.\)*\)\".*/\1/p"; } # escapes stay as they are

greet() { [ -n "$1" ] && printf '{"greeting":"Hello, %s!"}' "$1"; }

while :; do
  epoch= # with it a result that cannot be read still ends its attempt
  task=$(say claim '{"worker":"shell-'$$'","queues":["default"],"handlers":["greet"]}') || { sleep 1; continue; }
  [ -n "$task" ] || continue # nothing came within the 20 seconds that a claim waits
  id=$(field task_id) epoch=$(field epoch)
  while sleep 5; do say "$id/heartbeat" "{\"epoch\":$epoch}" || exit; done >/dev/null 2>&1 &
  if output=$(greet "$(text name)"); then
    say "$id/complete" "{\"epoch\":$epoch,\"output\":$output}" # 409 lease-lost: somebody else has it now
  else
    say "$id/fail" "{\"epoch\":$epoch,\"class\":\"validation\",\"message\":\"the name is empty\"}"
  fi
  kill $!
  echo
done
