#!/usr/bin/env bash
# Start a Ray head node on this machine, with token authentication, in the foreground.
# Ctrl-C (or SIGTERM to this process) ends the node and all its processes.
#
#   clusters/laptop/start-head.sh                      # all CPUs and GPUs of the machine
#   clusters/laptop/start-head.sh --num-cpus=8         # options of `ray start` are passed on
#
# Settings, all optional:
#   FEDRAY_RAY_HOST        address to bind to, default 127.0.0.1 (this machine only)
#   FEDRAY_RAY_PORT        default 6379; this port and the next two are used
#   FEDRAY_DASHBOARD_PORT  default 8265: dashboard and `ray job submit`
#   FEDRAY_RAY_TMP         default /tmp/ray-<user>; must be short, because Ray creates sockets in it
set -euo pipefail

host="${FEDRAY_RAY_HOST:-127.0.0.1}"
port="${FEDRAY_RAY_PORT:-6379}"
dashboard_port="${FEDRAY_DASHBOARD_PORT:-8265}"
ray_tmp="${FEDRAY_RAY_TMP:-/tmp/ray-$(id -un)}"

command -v ray >/dev/null || {
  echo "start-head.sh: no 'ray' on PATH; activate the environment that fedray is installed in." >&2
  exit 2
}

# Ray makes its --temp-dir writable by all users, so it lies in a private folder.
(umask 077 && mkdir -p "$ray_tmp")
[[ -O "$ray_tmp" ]] || {
  echo "start-head.sh: $ray_tmp belongs to somebody else; set FEDRAY_RAY_TMP to a short path of yours." >&2
  exit 2
}

# The token is a password: anyone who has it can run code as you. Ray writes it with the current umask.
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0
if [[ -z "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ]]; then
  (umask 077 && ray get-auth-token --generate >/dev/null)
fi
token="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"
if [[ -O "$token" && ! -L "$token" ]]; then chmod go= "$token"; fi

# Without the first variable, Ray replaces 127.0.0.1 by this machine's network address and listens on
# all addresses. Without the second, each node has a port for metrics that requires no token.
case "$host" in
  127.0.0.1 | localhost | ::1) export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="${RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER:-0}" ;;
esac
export RAY_enable_metrics_collection="${RAY_enable_metrics_collection:-0}"

cat <<MESSAGE
Dashboard:  http://$host:$dashboard_port   (it asks for the token: ray get-auth-token)
In another terminal:
  export RAY_AUTH_MODE=token RAY_API_SERVER_ADDRESS=http://$host:$dashboard_port
  ray job submit --working-dir . --runtime-env clusters/runtime-env.yaml -- python -m fedray.sweep fedtsp_lambda
MESSAGE

exec ray start --head --block \
  --node-ip-address="$host" --port="$port" \
  --ray-client-server-port=$(( port + 1 )) --dashboard-agent-listen-port=$(( port + 2 )) \
  --dashboard-host="$host" --dashboard-port="$dashboard_port" \
  --temp-dir="$ray_tmp/r" "$@"
