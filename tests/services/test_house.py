"""Folders, sockets, ports, the private Postgres and broker."""

import os
import re
import shutil
import socket
import stat
from pathlib import Path

import psycopg
import pytest

from controlplane.services import postgres
from controlplane.services.house import SOCKET_PATH_BYTES, House, HouseError, house_at
from controlplane.services.ports import CANDIDATES, free_ports, is_free
from controlplane.services.ray_head import LONGEST_SESSION
from controlplane.services.up import check_machine, up


def test_sockets_stay_short_however_long_the_home():
    house = house_at(Path("/" + "long-folder-name/" * 20))
    assert len(os.fsencode(house.socket("ray", LONGEST_SESSION, "sockets", "plasma_store"))) <= SOCKET_PATH_BYTES
    assert house.runtime != house_at(Path("/elsewhere")).runtime


def test_a_socket_path_that_the_kernel_would_refuse_is_refused_with_words(tmp_path):
    house = House(home=tmp_path, data=tmp_path, runtime=tmp_path / ("r" * 100))
    with pytest.raises(HouseError, match="longer than 107 bytes"):
        house.socket("broker.sock")


def test_a_runtime_folder_planted_by_somebody_else_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(HouseError, match="remove it"):
        House(home=tmp_path / "home", data=tmp_path / "data", runtime=tmp_path / "run").prepare()


def test_the_database_of_a_deleted_home_is_set_aside_and_not_opened_by_the_next_one(tmp_path, capsys):
    house = House(home=tmp_path / "home", data=tmp_path / "var" / "key", runtime=tmp_path / "run")
    house.prepare()
    (house.data / "cluster").mkdir()
    house.prepare()
    assert (house.data / "cluster").exists() and not capsys.readouterr().out
    shutil.rmtree(house.home)
    house.prepare()
    assert not list(house.data.iterdir())
    (aside,) = tmp_path.glob("var/key-until-*")
    assert (aside / "cluster").exists() and str(aside) in capsys.readouterr().out


def test_data_within_their_home_stay_with_it(tmp_path):
    house = House(home=tmp_path / "home", data=tmp_path / "home" / "data", runtime=tmp_path / "run")
    (house.data / "cluster").mkdir(parents=True)
    house.prepare()
    assert (house.data / "cluster").exists()


def test_free_ports_are_free_distinct_and_outside_rays_range():
    found = free_ports(9)
    assert len(set(found)) == 9 and all(port in CANDIDATES and is_free(port) for port in found)
    assert not set(CANDIDATES) & set(range(10002, 20000))


def test_a_taken_port_is_refused_with_the_remedy(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HouseError, match=f"Port {port} .* is taken.*--port {port + 1}"):
            check_machine(house_at(tmp_path), port)


def test_up_beside_a_serving_house_says_where_it_serves_and_prepares_nothing(tmp_path, monkeypatch, capsys):
    ran, house = [], house_at(tmp_path)
    house.prepare()
    house.write_environment({"ASSAY_URL": "http://127.0.0.1:8123"})
    monkeypatch.setattr("controlplane.services.up.home_folder", lambda: tmp_path)
    monkeypatch.setattr("controlplane.services.up.read_state", lambda house: {"services": {"web": {}}})
    monkeypatch.setattr("controlplane.services.up.manage", lambda house, environment, command: ran.append(command) or "LINK")
    assert up() == 0 and ran == ["login_link"]
    assert capsys.readouterr().out == "Assay is already up at http://127.0.0.1:8123\nLog in once with: LINK\n"


def test_too_little_disk_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("controlplane.services.up.DISK_NEEDED_GIB", 10**9)
    with pytest.raises(HouseError, match="are needed; free some, or set ASSAY_HOME"):
        check_machine(house_at(tmp_path), free_ports(1)[0])


def test_postgres_trusts_nobody(services):
    good = postgres.url(services)
    with psycopg.connect(good) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.info.server_version >= 180000
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(good.replace(":" + good.split(":")[2].split("@")[0], ":wrong"))
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(f"postgresql://assay@/assay?host={services.runtime / 'pg'}", passfile="/dev/null")


def test_a_connection_gives_back_what_large_answers_took(services):
    def resident(pid: int) -> float:
        return int(re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024

    with psycopg.connect(postgres.url(services), autocommit=True) as connection:
        connection.execute("SELECT 1")
        before = resident(connection.info.backend_pid)
        # Growing and shrinking, as pages ask: each size freed once raises what glibc by default keeps.
        for rows in (50_000, 200_000, 400_000, 200_000, 50_000):
            connection.execute("SELECT array_length(array_agg(md5(n::text) ORDER BY md5(n::text)), 1) FROM generate_series(1, %s) n", [rows])
        assert resident(connection.info.backend_pid) - before < 4.0


def test_what_is_private_has_private_modes(services):
    def mode(path):
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(postgres.password_file(services)) == 0o600
    assert mode(services.runtime / "pg") == mode(services.data / "postgres") == 0o700
    assert mode(services.runtime / "broker.sock") == 0o700
    assert mode(services.home) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives Postgres away to a service user")
def test_as_root_postgres_runs_under_a_user_without_a_shell(services):
    import pwd

    owner = pwd.getpwuid((services.data / "postgres").stat().st_uid)
    assert owner.pw_uid != 0 and owner.pw_shell.endswith("nologin")
