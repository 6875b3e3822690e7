"""What docker-compose.yml promises: who may reach what, who holds which key, and as what its containers run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

from nectar.engines.site import supernode, turned_away

FILES = ["docker-compose.yml", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docker/*.yml"))]

SITES = ("north", "south", "east")
NODES = [*SITES, *(f"{site}-cuda" for site in SITES)]


def compose(name: str = "docker-compose.yml") -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return content


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
NETWORKS: dict[str, dict[str, Any]] = compose()["networks"]


def volumes(service: str) -> dict[str, tuple[str, bool]]:
    """Return a service's volumes: name -> (where, whether it may write)."""
    found = {}
    for entry in SERVICES[service]["volumes"]:
        # A default value holds a colon of its own.
        source, target, *mode = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", entry).split(":")
        found[source] = (target, mode != ["ro"])
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_no_more_rights_than_it_needs(service: str) -> None:
    entry = SERVICES[service]
    user = entry["user"].partition(":")[0]
    assert user.isdigit()
    assert int(user) > 0
    assert entry["read_only"] is True
    assert entry["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in entry["security_opt"]
    assert entry["init"] is True
    for key in ("privileged", "cap_add", "pid", "ipc", "devices", "userns_mode"):
        assert key not in entry
    assert not any("docker.sock" in str(volume) for volume in entry["volumes"])


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_limits(service: str) -> None:
    limits = SERVICES[service]["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert SERVICES[service]["logging"]["options"]["max-size"]


@pytest.mark.parametrize("service", ["superlink", "proxy", *NODES])
def test_what_keeps_running_is_watched_and_started_again(service: str) -> None:
    assert SERVICES[service]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[service]["restart"] == ("on-failure" if service in NODES else "unless-stopped")


def test_only_the_proxy_has_a_published_port_and_that_on_loopback() -> None:
    assert [name for name, entry in SERVICES.items() if "ports" in entry] == ["proxy"]
    (port,) = SERVICES["proxy"]["ports"]
    assert port.startswith("${PROXY_ADDRESS:-127.0.0.1}:")
    assert port.endswith(":8443")
    for name in FILES[1:]:
        for service, entry in compose(name)["services"].items():
            for port in entry.get("ports", []):
                assert (service, port.partition(":")[0]) == ("superlink", "127.0.0.1"), name


@pytest.mark.parametrize("node", NODES)
def test_a_site_shares_a_network_with_the_proxy_and_nobody_else(node: str) -> None:
    (network,) = SERVICES[node]["networks"]
    assert NETWORKS[network]["internal"] is True
    there = {name for name, entry in SERVICES.items() if network in entry.get("networks", [])}
    site = node.removesuffix("-cuda")
    assert there == {site, f"{site}-cuda", "proxy"}
    assert SERVICES[node]["environment"]["SERVER"] == "proxy:8443"


def test_the_control_api_is_on_a_network_without_sites() -> None:
    assert SERVICES["superlink"]["networks"] == ["control"]
    assert NETWORKS["control"]["internal"] is True
    there = {name for name, entry in SERVICES.items() if "control" in entry.get("networks", [])}
    assert there == {"superlink", "proxy", "register", "operator"}
    assert SERVICES["init"]["network_mode"] == "none"


def test_keys_are_where_they_belong_and_nowhere_else() -> None:
    holders = {
        key: {name for name in SERVICES if key in volumes(name)}
        for key in compose()["volumes"]
        if key.endswith("-keys") or key in ("authority", "public", "operator")
    }
    assert holders == {
        "authority": {"init"},
        "public": {"init", "register", "operator"},
        "operator": {"init", "register", "operator"},
        "superlink-keys": {"init", "superlink"},
        "proxy-keys": {"init", "proxy"},
        **{f"{site}-keys": {"init", site, f"{site}-cuda"} for site in SITES},
    }
    for key, names in holders.items():
        for name in names - {"init", "register", "operator"}:
            assert volumes(name)[key][1] is False, (name, key)


@pytest.mark.parametrize("node", NODES)
def test_a_site_has_its_own_state_and_shares_no_volume_to_write_to(node: str) -> None:
    site = node.removesuffix("-cuda")
    writable = {name: where for name, (where, writes) in volumes(node).items() if writes}
    assert writable == {f"{site}-state": "/state"}
    assert SERVICES[node]["environment"]["SITE"] == site


def test_the_sites_hold_different_parts_of_the_data() -> None:
    parts = [SERVICES[site]["environment"]["NODE_CONFIG"] for site in SITES]
    assert parts == [f"partition-id={i} num-partitions={len(SITES)}" for i in range(len(SITES))]


def test_records_and_the_superlinks_database_outlive_their_container() -> None:
    there = volumes("superlink")
    assert there["results"] == ("/results", True)
    assert there["superlink-state"] == ("/state", True)
    assert "--database=/state/superlink.db" in SERVICES["superlink"]["command"]
    assert volumes("operator")["results"] == ("/results", False), "the operator reads, and no more"
    named = set(compose()["volumes"])
    for service in SERVICES:
        assert set(volumes(service)) <= named


def test_tls_and_authentication_are_on() -> None:
    command = " ".join(SERVICES["superlink"]["command"])
    for option in (
        "--ssl-ca-certfile",
        "--ssl-certfile",
        "--ssl-keyfile",
        "--enable-supernode-auth",
    ):
        assert option in command
    scripts = [p.read_text() for p in (ROOT / "docker").rglob("*") if p.is_file()]
    assert not any("--insecure" in text for text in [command, *scripts])
    node = (ROOT / "docker/nectar/bin/nectar-supernode").read_text()
    assert "exec nectar site" in node
    assert "--root-certificates" in node
    assert "--auth-supernode-private-key" in node


def test_keys_are_made_and_sites_registered_before_a_node_starts() -> None:
    done = "service_completed_successfully"
    for service in ("superlink", "proxy"):
        assert SERVICES[service]["depends_on"]["init"]["condition"] == done
    assert SERVICES["register"]["depends_on"]["superlink"]["condition"] == "service_healthy"
    for node in NODES:
        waits = {name: entry["condition"] for name, entry in SERVICES[node]["depends_on"].items()}
        assert waits == {"proxy": "service_healthy", "register": done}


def test_a_gpu_is_asked_for_under_the_profile_alone() -> None:
    for name, entry in SERVICES.items():
        reserved = entry["deploy"]["resources"].get("reservations", {}).get("devices", [])
        is_cuda = name.endswith("-cuda")
        assert bool(reserved) is is_cuda
        assert (entry.get("profiles") == ["cuda"]) is is_cuda
        assert all("gpu" in device["capabilities"] for device in reserved)


def test_each_site_has_a_gpu_of_its_own() -> None:
    """`count: 1` gave all three the machine's first."""
    ids = []
    for site in SITES:
        (device,) = SERVICES[f"{site}-cuda"]["deploy"]["resources"]["reservations"]["devices"]
        assert "count" not in device
        ids += device["device_ids"]
    assert ids == ["${GPU_NORTH:-0}", "${GPU_SOUTH:-1}", "${GPU_EAST:-2}"]


def test_the_operator_sees_the_certificates_of_both_servers() -> None:
    """They lie in volumes that the operator does not have; a certificate is no secret."""
    text = (ROOT / "docker/nectar/bin/nectar-init").read_text()
    assert 'place "/keys/$name/server.pem" "$public/$name.pem"' in text


def test_a_backup_is_made_where_all_keys_and_the_database_are() -> None:
    there = volumes("init")
    assert there["superlink-state"] == ("/state", True)
    assert {"authority", "superlink-keys", "proxy-keys", "public"} <= set(there)


def test_the_images_need_no_registry_but_the_bases() -> None:
    built = {entry["image"]: entry["build"] for entry in SERVICES.values() if "build" in entry}
    assert {entry["image"] for entry in SERVICES.values()} == set(built)
    for build in built.values():
        text = (ROOT / build["dockerfile"]).read_text()
        bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
        assert set(bases) == {"${BASE}"}
        assert re.search(r"^ARG BASE=python:3\.\d+-slim$", text, re.MULTILINE)
        assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
        assert "syntax=" not in text


def test_what_is_copied_into_an_image_holds_no_secret() -> None:
    allowed = (ROOT / ".dockerignore").read_text().split("\n")
    assert allowed[1] == "*", "first of all, nothing"
    opened = {line[1:] for line in allowed if line.startswith("!")}
    assert opened == {
        "pyproject.toml", "README.md", "LICENSE",
        "client_app", "common", "conf", "nectar", "server_app", "strategies", "synth",
        "docker/nectar", "docker/proxy",
    }  # fmt: skip


@pytest.mark.parametrize("script", sorted(p.name for p in (ROOT / "docker/nectar/bin").iterdir()))
def test_the_scripts_can_be_run(script: str) -> None:
    path = ROOT / "docker/nectar/bin" / script
    assert path.stat().st_mode & 0o111
    if path.read_text().startswith("#!/bin/sh"):
        assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
    else:
        compile(path.read_text(), str(path), "exec")


def test_an_override_names_services_and_settings_that_there_are() -> None:
    for name in FILES[1:]:
        for service, entry in compose(name)["services"].items():
            assert service in SERVICES, name
            assert set(entry.get("environment", {})) <= set(
                SERVICES[service].get("environment", {})
            ), name


SCRIPTS = ROOT / "docker/nectar/bin"


def test_no_health_check_leaves_a_refusal_in_the_superlinks_log() -> None:
    """49 of 54 idle lines were refused calls of the sites' own checks, among which no stranger was to be seen."""
    for check in (SCRIPTS / "nectar-healthy", ROOT / "docker/proxy/healthy.py"):
        assert "/v1/" not in check.read_text()


def test_one_site_that_was_unregistered_keeps_no_other_down() -> None:
    """Named by its file, it made `register` end with 2, on which every site waits (`docker/rehearsal` shows it)."""
    assert SERVICES["register"]["command"] == [
        "nectar",
        "keys",
        "register",
        "federation",
        "/keys/public",
    ]
    healthy = (SCRIPTS / "nectar-healthy").read_text()
    assert f'glob("{supernode.PREFIX}*/{turned_away.MARK}")' in healthy


@pytest.mark.parametrize("missing", ["key", "ca.crt"])
def test_a_key_that_cannot_be_read_is_one_sentence_and_no_loop(
    tmp_path: Path, missing: str
) -> None:
    """A container that ends with 0 is not started again by `restart: on-failure`."""
    text = (SCRIPTS / "nectar-supernode").read_text().replace("/keys/", f"{tmp_path}/")
    (tmp_path / "north").mkdir()
    for name in {"key", "ca.crt"} - {missing}:
        (tmp_path / "north" / name).write_text("x")
    done = subprocess.run(
        ["sh", "-c", text],
        env={"SITE": "north", "SERVER": "x:1", "NODE_CONFIG": "", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    (message,) = done.stderr.splitlines()
    assert message.startswith(
        f"nectar-supernode: {tmp_path}/north/{missing} is not there, or not for"
    )
    assert "then start this container again" in message


def test_the_sites_with_a_gpu_compute_on_no_other() -> None:
    """An image built for a CPU would be slow unseen."""
    for site in SITES:
        assert SERVICES[f"{site}-cuda"]["command"] == ["nectar-supernode", "device='cuda'"]


def test_the_image_is_built_for_a_cpu_unless_a_gpu_is_asked_for() -> None:
    assert SERVICES["init"]["build"]["args"]["TORCH_BACKEND"] == "${TORCH_BACKEND:-cpu}"
    text = (ROOT / "docker/nectar/Dockerfile").read_text()
    assert '--torch-backend "$TORCH_BACKEND"' in text
    assert "simulation" not in text, "no Ray"
