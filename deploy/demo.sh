#!/bin/sh
# The first look: a real sandbox on this machine, a command in it, its output streamed out. Everything it makes lies in a
# temporary directory that is removed at the end.
set -eu
cd "$(dirname "$0")/.."
caisson=$PWD/bin/caisson
state=$(mktemp -d "${TMPDIR:-/tmp}/caisson-demo.XXXXXX")
export CAISSON_STATE_DIR="$state"
unset CAISSON_URL CAISSON_API_KEY CAISSON_LISTEN || true
"$caisson" serve --state-dir "$state" >"$state/serve.log" 2>&1 &
serve=$!
id=
cleanup() {
	status=$?
	trap - EXIT INT TERM
	[ -z "$id" ] || "$caisson" rm "$id" >/dev/null 2>&1 || true
	kill "$serve" 2>/dev/null || true
	wait "$serve" 2>/dev/null || true
	[ $status -eq 0 ] || { echo "--- server log:"; tail -20 "$state/serve.log"; }
	rm -rf "$state"
	exit $status
}
trap cleanup EXIT INT TERM
echo "\$ caisson serve &"
n=0
until "$caisson" ls >/dev/null 2>&1; do
	n=$((n + 1))
	[ $n -lt 300 ] && kill -0 "$serve" 2>/dev/null || { echo "the server did not start"; exit 1; }
	sleep 0.1
done
echo "\$ caisson create"
id=$("$caisson" create)
echo "$id"
echo "\$ caisson exec $id -- sh -c 'uname -a; for i in 1 2 3; do echo \"line \$i\"; sleep 1; done'"
"$caisson" exec "$id" -- sh -c 'uname -a; for i in 1 2 3; do echo "line $i"; sleep 1; done'
echo "\$ caisson ls"
"$caisson" ls
echo "\$ caisson rm $id"
"$caisson" rm "$id"
id=
echo "It works. Next: README.md, \"First steps\"."
