#!/usr/bin/env bash
# Run a tracking server on this machine, in the foreground, with sqlite and a folder of artifacts.
# Ctrl-C ends the server.
#
#   mlflow/server.sh
#   export MLFLOW_TRACKING_URI=http://127.0.0.1:5000        # as printed; then run and sweep as usual
#
# Settings, all optional:
#   MLFLOW_HOST             address to bind to, default 127.0.0.1 (this machine only)
#   MLFLOW_PORT             default 5000
#   MLFLOW_DATA             folder of the database and the artifacts, default ~/fedray_mlflow
#   MLFLOW_ALLOWED_HOSTS    host names of the server, comma-separated, e.g. gpu1.lab:*;
#                           MLflow's default is localhost and private addresses
#   MLFLOW_ALLOWED_ORIGINS  addresses of the server in browsers, comma-separated, e.g.
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
cd "$data" && data="$PWD"     # an absolute path; keeps mlflow.db and mlruns out of the caller's folder

export MLFLOW_DISABLE_TELEMETRY=true
# With uvicorn's default of 5 s, workers on a busy machine are killed while they start.
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
# Unset these two variables, which would change the server's behaviour.
unset MLFLOW_TRACKING_URI MLFLOW_BACKEND_STORE_URI
exec mlflow server "${options[@]}" "$@"
