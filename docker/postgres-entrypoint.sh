#!/bin/sh
# First start: a cluster with password login only, and the database. Every start: the server in the foreground.
set -eu
bin=$(dirname "$(ls -d /usr/lib/postgresql/*/bin/postgres | tail -n 1)")
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
    password=$(mktemp)
    printf %s "$POSTGRES_PASSWORD" > "$password"
    "$bin/initdb" -D "$data" -U "$POSTGRES_USER" --pwfile="$password" --auth=scram-sha-256 -E UTF8 --locale=C.UTF-8
    rm "$password"
    echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
    echo "CREATE DATABASE \"$POSTGRES_DB\"" | "$bin/postgres" --single -D "$data" postgres
fi
exec "$bin/postgres" -D "$data" -c listen_addresses='*' "$@"
