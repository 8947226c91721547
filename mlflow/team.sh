#!/usr/bin/env bash
# A team's tracking server without containers: the parts of compose.yaml on this machine, in the foreground.
# MLflow with users and passwords, a PostgreSQL cluster of its own, an S3-compatible store. Ctrl-C ends all.
#
#   sudo apt-get install -y postgresql && pip install "fedray[team]"
#   mlflow/team.sh                          # serve; prints the address and where the passwords are
#   mlflow/team.sh database restart         # any action of pg_ctl on the cluster: restart, stop, start, status
#   mlflow/team.sh backup FILE              # runs, users and permissions, while it serves (pg_dump)
#
# Settings, all optional, named as in .env.example: MLFLOW_BIND, MLFLOW_PORT, MLFLOW_WORKERS,
# MLFLOW_ALLOWED_HOSTS, MLFLOW_ALLOWED_ORIGINS, MLFLOW_S3_ENDPOINT_URL, S3_BUCKET and the secrets.
# What is secret and not set is made at the first start and kept in $MLFLOW_DATA/secrets.env. Besides:
#   MLFLOW_DATA        folder of database and secrets, default ~/fedray_team; as root it must be reachable
#                      by the user postgres, who runs the database then
#   DATABASE_PORT      default 5433, on the loopback
#   STORAGE_PORT       default 9000, on the loopback
#   COMPOSE_PROFILES   default storage: a store of our own, moto, which keeps artifacts IN MEMORY: for trying
#                      out. Set it to nothing, and MLFLOW_S3_ENDPOINT_URL and the keys to those of a real one
# shellcheck disable=SC2317  # functions are reached by name and by traps
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
data="${MLFLOW_DATA:-$HOME/fedray_team}"
host="${MLFLOW_BIND:-127.0.0.1}"
port="${MLFLOW_PORT:-5000}"
database_port="${DATABASE_PORT:-5433}"
storage_port="${STORAGE_PORT:-9000}"
profiles="${COMPOSE_PROFILES-storage}"

fail() { echo "team.sh: $*" >&2; exit 2; }
mkdir -p "$data"
cd "$data" && data="$PWD"

# --- the database --------------------------------------------------------------------------------

PATH="$PATH:$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)"
command -v pg_ctl >/dev/null || fail "no pg_ctl; install PostgreSQL, for example: apt-get install -y postgresql"

# PostgreSQL refuses to run as root.
as_owner() {
  if [[ $EUID -eq 0 ]]; then setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; else "$@"; fi
}

database() { (cd / && as_owner pg_ctl -D "$data/postgres" -l "$data/postgres/log" -w -s "$@"); }

make_database() {
  local password="$data/.password" made=0
  mkdir -p "$data/postgres"
  (umask 077 && echo "$POSTGRES_PASSWORD" >"$password")
  if [[ $EUID -eq 0 ]]; then chown postgres "$data/postgres" "$password"; fi
  (cd / && as_owner initdb -D "$data/postgres" -U mlflow --auth=scram-sha-256 --encoding=UTF8 \
    --pwfile="$password" >/dev/null) || made=$?
  rm "$password"
  [[ $made -eq 0 ]] || fail "initdb could not make $data/postgres"
  as_owner tee -a "$data/postgres/postgresql.conf" >/dev/null <<EOF
listen_addresses = '127.0.0.1'
port = $database_port
unix_socket_directories = ''
EOF
}

# --- secrets -------------------------------------------------------------------------------------

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

secrets=(POSTGRES_PASSWORD MLFLOW_AUTH_ADMIN_PASSWORD MLFLOW_FLASK_SERVER_SECRET_KEY AWS_SECRET_ACCESS_KEY)
touch secrets.env && chmod 600 secrets.env
for name in "${secrets[@]}"; do
  kept="$(sed -n "s/^$name=//p" secrets.env)"
  if [[ -z "${!name:-}" ]]; then printf -v "$name" %s "${kept:-$(random)}"; fi
  if [[ -z "$kept" ]]; then echo "$name=${!name}" >>secrets.env; fi
  export "${name?}"
done
export PGPASSWORD="$POSTGRES_PASSWORD"

case "${1:-serve}" in
  serve) shift || true ;;
  database) shift; database "$@"; exit ;;
  backup)
    [[ $# -eq 2 ]] || fail "backup needs a file"
    cd "$OLDPWD"
    exec pg_dump -h 127.0.0.1 -p "$database_port" -U mlflow -d mlflow --format=custom --file="$2"
    ;;
  *) fail "what is '$1'? Without words it serves; else: database ACTION, backup FILE" ;;
esac

# --- the parts, one after the other --------------------------------------------------------------

command -v mlflow >/dev/null || fail "no 'mlflow' on PATH; activate the environment that fedray is installed in"
python -c "import psycopg2, boto3, flask_wtf" 2>/dev/null || fail 'packages are missing: pip install "fedray[team]"'

started=()
stop() {
  trap - EXIT INT TERM
  for process in ${started[@]+"${started[@]}"}; do kill -TERM -- "-$process" 2>/dev/null || true; done
  wait
  if [[ -f "$data/postgres/PG_VERSION" ]]; then database stop -m fast || true; fi
}
trap stop EXIT
trap 'exit 0' INT TERM
set -m    # each part gets a process group, so that it ends with its workers

# What is started must answer within two minutes, and live until then.
await() {
  local what="$1" process="$2"; shift 2
  for _ in $(seq 240); do
    if "$@" >/dev/null 2>&1; then return; fi
    kill -0 "$process" 2>/dev/null || break
    sleep 0.5
  done
  fail "$what did not start; see $data/$what.log"
}
answers() { python -c "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)" "$1"; }

[[ -f postgres/PG_VERSION ]] || make_database
database status >/dev/null 2>&1 || database start || fail "the database did not start; see $data/postgres/log"
psql=(psql -X -q -h 127.0.0.1 -p "$database_port" -U mlflow)
"${psql[@]}" -d postgres -Atc "SELECT 1 FROM pg_database WHERE datname = 'mlflow'" | grep -q 1 ||
  "${psql[@]}" -d postgres -c "CREATE DATABASE mlflow"

export AWS_ACCESS_KEY_ID="${AWS_ACCESS_KEY_ID:-mlflow}" AWS_DEFAULT_REGION="${AWS_DEFAULT_REGION:-us-east-1}"
export MLFLOW_S3_ENDPOINT_URL="${MLFLOW_S3_ENDPOINT_URL:-http://127.0.0.1:$storage_port}"
export S3_BUCKET="${S3_BUCKET:-mlflow}"
if [[ ",$profiles," == *,storage,* ]]; then
  moto_server -H 127.0.0.1 -p "$storage_port" >storage.log 2>&1 &
  started+=($!)
  await storage $! answers "http://127.0.0.1:$storage_port/moto-api/"
  python - "http://127.0.0.1:$storage_port" <<'EOF'
import os, sys, boto3
s3 = boto3.client("s3", endpoint_url=sys.argv[1])
if os.environ["S3_BUCKET"] not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
    s3.create_bucket(Bucket=os.environ["S3_BUCKET"])
EOF
fi

database_uri="postgresql+psycopg2://mlflow@127.0.0.1:$database_port/mlflow"
sed "s#^database_uri.*#database_uri = $database_uri#" "$folder/basic_auth.ini" >basic_auth.ini
export MLFLOW_AUTH_CONFIG_PATH="$data/basic_auth.ini" MLFLOW_DISABLE_TELEMETRY=true
# These would otherwise have a say in what the server does.
unset MLFLOW_TRACKING_URI MLFLOW_BACKEND_STORE_URI MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD
mlflow server \
  --host="$host" \
  --port="$port" \
  --workers="${MLFLOW_WORKERS:-4}" \
  --uvicorn-opts="--timeout-worker-healthcheck 60" \
  --app-name=basic-auth \
  --backend-store-uri="$database_uri" \
  --artifacts-destination="s3://$S3_BUCKET" \
  --allowed-hosts="${MLFLOW_ALLOWED_HOSTS:-localhost:*,127.0.0.1:*}" \
  --cors-allowed-origins="${MLFLOW_ALLOWED_ORIGINS:-http://localhost:*}" \
  "$@" >mlflow.log 2>&1 &
started+=($!)
await mlflow $! answers "http://127.0.0.1:$port/health"

echo "MLflow keeps its runs in $data/postgres, its log is $data/mlflow.log"
echo "export MLFLOW_TRACKING_URI=http://$host:$port MLFLOW_TRACKING_USERNAME=admin"
echo "the admin's first password: MLFLOW_AUTH_ADMIN_PASSWORD in $data/secrets.env"
echo "ready; Ctrl-C stops MLflow, the store and the database"
wait -n "${started[@]}" || true
fail "a part has ended; see the logs in $data"
