#!/usr/bin/env bash
# A tracking server on this machine, in the foreground: sqlite and a folder of artifacts. Ctrl-C ends it.
#
#   mlflow/server.sh
#   export MLFLOW_TRACKING_URI=http://127.0.0.1:5000        # what it prints; then run and sweep as usual
#
# Settings, all optional:
#   MLFLOW_HOST             address to bind to, default 127.0.0.1 (this machine only)
#   MLFLOW_PORT             default 5000
#   MLFLOW_DATA             folder of the database and the artifacts, default ~/fedray_mlflow
#   MLFLOW_ALLOWED_HOSTS    names under which it may be addressed, comma-separated, e.g. gpu1.lab:*;
#                           MLflow's default is localhost and private addresses
#   MLFLOW_ALLOWED_ORIGINS  addresses at which browsers open it, comma-separated, e.g.
#                           http://gpu1.lab:5000; MLflow's default is localhost only
# Further arguments go to `mlflow server`, e.g. --app-name basic-auth (README.md, "Passwords").
set -euo pipefail

host="${MLFLOW_HOST:-127.0.0.1}"
port="${MLFLOW_PORT:-5000}"
data="${MLFLOW_DATA:-$HOME/fedray_mlflow}"

command -v mlflow >/dev/null || {
  echo "server.sh: no 'mlflow' on PATH; activate the environment that fedray is installed in." >&2
  exit 2
}
mkdir -p "$data/artifacts"
cd "$data" && data="$PWD"     # absolute, and no mlflow.db or mlruns appears where you stand

export MLFLOW_DISABLE_TELEMETRY=true
# uvicorn's default, 5 s, kills the workers of a busy machine while they start.
options=(--host "$host" --port "$port" --workers 2
  --uvicorn-opts "--timeout-worker-healthcheck 60"
  --backend-store-uri "sqlite:///$data/mlflow.db"
  --artifacts-destination "$data/artifacts")
if [[ -n "${MLFLOW_ALLOWED_HOSTS:-}" ]]; then
  options+=(--allowed-hosts "$MLFLOW_ALLOWED_HOSTS")
fi
if [[ -n "${MLFLOW_ALLOWED_ORIGINS:-}" ]]; then
  options+=(--cors-allowed-origins "$MLFLOW_ALLOWED_ORIGINS")
fi

echo "MLflow keeps its data in $data"
echo "export MLFLOW_TRACKING_URI=http://$host:$port"
# These two would otherwise have a say in what the server does.
unset MLFLOW_TRACKING_URI MLFLOW_BACKEND_STORE_URI
exec mlflow server "${options[@]}" "$@"
